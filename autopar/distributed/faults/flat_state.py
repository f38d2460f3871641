"""Training state as tensors by name, so that any rank can read what another rank wrote.

Parameters and buffers are named by module path, optimizer state by the path of its parameter. Other values
become JSON in a tensor of bytes. Equal names on several ranks are replicas of the same tensor.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from ...errors import RunError
from ..tensor.shards import local

Tensors: TypeAlias = dict[str, torch.Tensor]
Shapes: TypeAlias = Mapping[str, tuple[torch.Size, torch.dtype]]
"""Shapes and dtypes of saved tensors by name."""
Read: TypeAlias = Callable[[Tensors], None]
"""Function that fills tensors, by name, with saved data."""

_TEXT = ":json"


def saved(state: Mapping[str, Any]) -> Tensors:
    """Return the tensors of a training state by name.

    `state` holds modules (or lists of them, or a job of `autopar.distribute`), optimizers, objects with
    `state_dict()`, and plain values. Raises RunError for values that are neither tensors nor JSON, and for an
    optimizer's parameter that is in none of these modules.
    """
    tensors: Tensors = {}
    for _, (first, *others), value, _ in _leaves(state):
        _store(first, value, tensors)
        # The rank that reads this may know a tied parameter by another of its names.
        tensors |= {name + _TEXT: tensors[first + _TEXT] for name in others}
    return tensors


def restore(state: dict[str, Any], shapes: Shapes, read: Read) -> None:
    """Load saved tensors into what `state` holds, in place; plain values are replaced.

    Raises RunError for values that were not saved, or were saved with another shape.
    """
    targets: Tensors = {}
    likes: dict[str, torch.Tensor | None] = {}
    saved_as: dict[str, list[str]] = {}
    for key, names, value, like in _leaves(state):
        if like is not None and value is like:
            targets[_there(names[0], shapes, like)] = like
        else:
            name = next((name for name in names if name + _TEXT in shapes), names[0])
            saved_as.setdefault(key, []).append(name)
            likes[name] = like
    loaded = _loaded(likes, targets, shapes, read)
    for key, names in saved_as.items():
        value = state[key]
        if modules := _modules(value):
            others = {name.removeprefix(f"{key}."): loaded[name] for name in names}
            for module in modules:
                module.load_state_dict(others, strict=False)
        elif isinstance(value, torch.optim.Optimizer):
            _fill(value, [loaded[name] for name in names])
        elif hasattr(value, "load_state_dict"):
            value.load_state_dict(loaded[key])
        else:
            state[key] = loaded[key]


def _leaves(state: Mapping[str, Any]) -> Iterator[tuple[str, list[str], Any, torch.Tensor | None]]:
    """Yield each leaf of a state: its key, names, value, and the tensor whose sharding its tensors follow,
    which is the leaf itself if it is loaded in place."""
    parameters = _parameters(state)
    for key, value in state.items():
        if modules := _modules(value):
            for module in modules:
                for path, entry in module.state_dict().items():
                    yield key, [f"{key}.{path}"], entry, entry if isinstance(entry, torch.Tensor) else None
        elif isinstance(value, torch.optim.Optimizer):
            for parameter, options in _options(value):
                held = {"options": options, "state": dict(value.state.get(parameter, {}))}
                yield key, _paths(key, parameter, parameters), held, parameter
        else:
            yield key, [key], value.state_dict() if hasattr(value, "load_state_dict") else value, None


def _loaded(
    likes: Mapping[str, torch.Tensor | None], targets: Tensors, shapes: Shapes, read: Read
) -> dict[str, Any]:
    """Return saved values by name, and fill the tensors in `targets`. A tensor with the shape of the one that
    `likes` has for it is sharded like it."""
    texts = {name + _TEXT: _empty(name + _TEXT, shapes) for name in likes if name not in shapes}
    read(texts)
    found: dict[str, Any] = {}
    for name, like in likes.items():
        data = {"tensor": name} if name in shapes else json.loads(bytes(texts[name + _TEXT].numpy()))
        found[name] = _unpacked(data, targets, partial(_empty, shapes=shapes, like=like))
    # This fills the tensors that the values hold.
    read(targets)
    return found


def _modules(value: Any) -> list[Any]:
    """Return the modules of a value, a module or a list of modules, without wrappers; [] for other values."""
    listed = list(value) if isinstance(value, (list, tuple)) else [value]
    if not listed or not all(hasattr(module, "named_parameters") for module in listed):
        return []
    return [_plain(module) for module in listed]


def _plain(module: Any) -> Any:
    while isinstance(module, nn.Module):
        if isinstance(module, DistributedDataParallel):
            module = module.module
        elif "_orig_mod" in module._modules:
            module = module.get_submodule("_orig_mod")
        else:
            break
    return module


def _parameters(state: Mapping[str, Any]) -> dict[int, list[str]]:
    """Return all names of each parameter by `id`: its own first, then those of its ties."""
    names: dict[int, list[str]] = {}
    for key, value in state.items():
        for module in _modules(value):
            held: dict[tuple[Any, ...], list[str]] = {}
            for path, parameter in module.named_parameters():
                held[_memory(parameter)] = names.setdefault(id(parameter), [])
                names[id(parameter)].append(f"{key}.{path}")
            for path, entry in module.state_dict().items():
                own = held.get(_memory(entry)) if isinstance(entry, torch.Tensor) and entry.numel() else None
                if own is not None and f"{key}.{path}" not in own:
                    own.append(f"{key}.{path}")
    return names


def _memory(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return a key that is equal for tensors in the same memory; for shards, that of their local tensor."""
    return local(tensor).data_ptr(), tensor.shape, tensor.stride()


def _options(optimizer: torch.optim.Optimizer) -> list[tuple[torch.Tensor, dict[str, Any]]]:
    """Return each non-empty parameter of an optimizer with the options of its group."""
    return [
        (parameter, {name: value for name, value in group.items() if name not in ("params", "param_names")})
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.numel()
    ]


def _paths(key: str, parameter: torch.Tensor, names: Mapping[int, list[str]]) -> list[str]:
    if id(parameter) not in names:
        raise RunError(
            f"{key!r} has a parameter of shape {tuple(parameter.shape)} that no module of the checkpoint has; save "
            "the module beside its optimizer: save(path, {'model': model, 'optimizer': optimizer, 'step': step})"
        )
    return [f"{key}.{name}" for name in names[id(parameter)]]


def _fill(optimizer: torch.optim.Optimizer, loaded: list[Any]) -> None:
    """Load saved state into an optimizer, in the order of its parameters; a group takes the options of its first
    parameter."""
    found, rest = optimizer.state_dict(), iter(loaded)
    found["state"] = {}
    for group, kept in zip(optimizer.param_groups, found["param_groups"]):
        pairs = zip(kept["params"], group["params"])
        entries = {index: next(rest) for index, parameter in pairs if parameter.numel()}
        found["state"] |= {index: entry["state"] for index, entry in entries.items() if entry["state"]}
        kept |= next((entry["options"] for entry in entries.values()), {})
    optimizer.load_state_dict(found)


def _store(name: str, value: Any, tensors: Tensors) -> None:
    if isinstance(value, torch.Tensor):
        tensors[name] = value.detach()
        return
    text = json.dumps(_packed(name, value, tensors)).encode()
    tensors[name + _TEXT] = torch.frombuffer(bytearray(text), dtype=torch.uint8)


def _there(name: str, shapes: Shapes, own: torch.Tensor | None = None) -> str:
    """Return the name. Raises RunError if nothing, or another shape, was saved under it."""
    said = name.removesuffix(_TEXT)
    if name not in shapes:
        raise RunError(f"nothing was saved as {said}: the checkpoint is of another model; give another path")
    if own is not None and shapes[name][0] != own.shape:
        raise RunError(
            f"{said} was saved with shape {tuple(shapes[name][0])} and is {tuple(own.shape)} here: the checkpoint is "
            "of another model; give another path"
        )
    return name


def _empty(name: str, shapes: Shapes, like: torch.Tensor | None = None) -> torch.Tensor:
    size, dtype = shapes[_there(name, shapes)]
    if isinstance(like, DTensor) and like.shape == size:
        return torch.zeros_like(like, dtype=dtype, requires_grad=False)
    return torch.empty(size, dtype=dtype, device="cpu")


def _packed(name: str, value: Any, tensors: Tensors) -> Any:
    """Return a value as JSON data that refers to tensors by name; collect these in `tensors`."""
    if isinstance(value, torch.Tensor):
        tensors[name] = value.detach()
        return {"tensor": name}
    if isinstance(value, Mapping):
        return {"map": [[key, _packed(f"{name}.{key}", item, tensors)] for key, item in value.items()]}
    if isinstance(value, (list, tuple)):
        items = [_packed(f"{name}.{index}", item, tensors) for index, item in enumerate(value)]
        return {"tuple": items} if isinstance(value, tuple) else items
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise RunError(
        f"{name} is a {type(value).__name__}, which a checkpoint cannot hold; give tensors, numbers, text, lists and "
        "dicts of them, or an object with state_dict() and load_state_dict()"
    )


def _unpacked(data: Any, tensors: Tensors, empty: Callable[[str], torch.Tensor]) -> Any:
    """Return the value of JSON data with the tensors that it refers to. Tensors that are not in `tensors` are
    made and added."""
    if isinstance(data, list):
        return [_unpacked(item, tensors, empty) for item in data]
    if not isinstance(data, dict):
        return data
    if "map" in data:
        return {key: _unpacked(item, tensors, empty) for key, item in data["map"]}
    if "tuple" in data:
        return tuple(_unpacked(data["tuple"], tensors, empty))
    if data["tensor"] not in tensors:
        tensors[data["tensor"]] = empty(data["tensor"])
    return tensors[data["tensor"]]
