"""Training state as tensors by name, so that any rank can read what another rank wrote.

Parameters and buffers are named by module path, optimizer state by the path of its parameter; what is not a tensor is
JSON in a tensor of bytes. Equal names on several ranks are replicas of the same tensor.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from ...errors import RunError

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
    names = _parameters(state)
    for key, value in state.items():
        if modules := _modules(value):
            for module in modules:
                for path, entry in module.state_dict().items():
                    _store(f"{key}.{path}", entry, tensors)
        elif isinstance(value, torch.optim.Optimizer):
            for parameter, options in _options(value):
                first, *others = _paths(key, parameter, names)
                _store(first, {"options": options, "state": dict(value.state.get(parameter, {}))}, tensors)
                # A tied parameter may be known by another of its names where this is read.
                tensors |= {path + _TEXT: tensors[first + _TEXT] for path in others}
        else:
            _store(key, value.state_dict() if hasattr(value, "load_state_dict") else value, tensors)
    return tensors


def restore(state: dict[str, Any], shapes: Shapes, read: Read) -> None:
    """Load saved tensors into what `state` holds, in place; plain values are replaced.

    Raises RunError for what was not saved, or was saved with another shape.
    """
    names = _parameters(state)
    targets: Tensors = {}
    likes: dict[str, torch.Tensor | None] = {}
    saved_as: dict[str, list[str]] = {}
    for key, value in state.items():
        if modules := _modules(value):
            for module in modules:
                for path, entry in module.state_dict().items():
                    if isinstance(entry, torch.Tensor):
                        targets[_there(f"{key}.{path}", shapes, entry)] = entry
                    else:
                        likes[f"{key}.{path}"] = None
        elif isinstance(value, torch.optim.Optimizer):
            saved_as[key] = [
                next((path for path in paths if path + _TEXT in shapes), paths[0])
                for paths in (_paths(key, parameter, names) for parameter, _ in _options(value))
            ]
            likes |= {path: parameter for path, (parameter, _) in zip(saved_as[key], _options(value))}
        else:
            likes[key] = None
    loaded = _loaded(likes, targets, shapes, read)
    for key, value in state.items():
        if modules := _modules(value):
            for module in modules:
                others = {
                    path: loaded[f"{key}.{path}"] for path in module.state_dict() if f"{key}.{path}" in loaded
                }
                if others:
                    module.load_state_dict(others, strict=False)
        elif isinstance(value, torch.optim.Optimizer):
            _fill(value, [loaded[name] for name in saved_as[key]])
        elif hasattr(value, "load_state_dict"):
            value.load_state_dict(loaded[key])
        else:
            state[key] = loaded[key]


def _loaded(
    likes: Mapping[str, torch.Tensor | None], targets: Tensors, shapes: Shapes, read: Read
) -> dict[str, Any]:
    """Return saved values by name, read together with the tensors in `targets`; tensors of the shape of one in `likes`
    are sharded like it."""
    texts = {
        name + _TEXT: _empty(_there(name + _TEXT, shapes), shapes) for name in likes if name not in shapes
    }
    read(texts)
    data = {
        name: {"tensor": name} if name in shapes else json.loads(bytes(texts[name + _TEXT].numpy()))
        for name in likes
    }
    own = {
        name: {ref: _empty(_there(ref, shapes), shapes, likes[name]) for ref in _refs(data[name])}
        for name in data
    }
    read(targets | {ref: tensor for held in own.values() for ref, tensor in held.items()})
    return {name: _unpacked(data[name], own[name]) for name in data}


def _modules(value: Any) -> list[Any]:
    """Return the modules that a value is or lists, without wrappers; none for other values."""
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
    """Return all names of each parameter by `id`: its own first, then those it is tied under."""
    names: dict[int, list[str]] = {}
    for key, value in state.items():
        for module in _modules(value):
            own = {
                id(parameter): (f"{key}.{path}", parameter) for path, parameter in module.named_parameters()
            }
            held = {_memory(parameter): name for name, (_, parameter) in own.items()}
            for name, (path, _) in own.items():
                names.setdefault(name, []).append(path)
            for path, entry in module.state_dict().items():
                found = (
                    held.get(_memory(entry)) if isinstance(entry, torch.Tensor) and entry.numel() else None
                )
                if found is not None and f"{key}.{path}" not in names[found]:
                    names[found].append(f"{key}.{path}")
    return names


def _memory(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return a key that is equal for tensors in the same memory; for shards, that of their local tensor."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.data_ptr(), tensor.shape, tensor.stride()


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
    found, rest, number = optimizer.state_dict(), iter(loaded), 0
    for group, kept in zip(optimizer.param_groups, found["param_groups"]):
        full = [parameter.numel() > 0 for parameter in group["params"]]
        held = [next(rest) if own else None for own in full]
        kept |= next((entry["options"] for entry in held if entry), {})
        for index, entry in enumerate(held, number):
            if entry and entry["state"]:
                found["state"][index] = entry["state"]
            else:
                found["state"].pop(index, None)
        number += len(full)
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
    size, dtype = shapes[name]
    if isinstance(like, DTensor) and like.shape == size:
        return torch.zeros_like(like, dtype=dtype, requires_grad=False)
    return torch.empty(size, dtype=dtype)


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


def _refs(data: Any) -> Iterator[str]:
    """Yield the names of the tensors in a value."""
    if isinstance(data, list):
        for item in data:
            yield from _refs(item)
    elif isinstance(data, dict):
        if "tensor" in data:
            yield data["tensor"]
        yield from _refs(data.get("tuple", [item for _, item in data.get("map", ())]))


def _unpacked(data: Any, tensors: Tensors) -> Any:
    if isinstance(data, list):
        return [_unpacked(item, tensors) for item in data]
    if not isinstance(data, dict):
        return data
    if "map" in data:
        return {key: _unpacked(item, tensors) for key, item in data["map"]}
    if "tuple" in data:
        return tuple(_unpacked(item, tensors) for item in data["tuple"])
    return tensors[data["tensor"]]
