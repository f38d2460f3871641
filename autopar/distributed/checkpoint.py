"""Checkpoints by `torch.distributed.checkpoint`, each complete or ignored, which any number of ranks can read.

Parameters, buffers and optimizer state are named by module path, so that a rank reads what it holds whichever rank
wrote it. torch writes the file `.metadata` last, by a rename: a directory without it is incomplete.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from os import PathLike
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.nn.parallel import DistributedDataParallel

from ..errors import RunError
from ..training.messages import Group, from_first, on_every_rank, rank_of

KEEP = 2
"""Default number of complete checkpoints to keep."""

_COMPLETE = ".metadata"


def save(
    path: str | PathLike[str], state: Mapping[str, Any], *, keep: int = KEEP, group: Group = None
) -> Path:
    """Write a checkpoint of step `state["step"]` under the directory `path`, then delete all but the last `keep`.

    Every rank of the group must call it with its own `state`, and see the same directory `path`. `state`
    holds by name: modules and jobs of `autopar.distribute` (DDP and compiled modules count as the modules they wrap);
    optimizers of their parameters; objects with `state_dict()` and `load_state_dict()`; values that can be pickled.
    Ranks may hold the same or different parameters, by module path. If several ranks hold a name, the lowest saves
    it. The state of torch's random generators is saved for each rank.

    Returns the directory of the checkpoint once it is complete. Raises on every rank: RunError if one rank cannot
    write, and for a step that is not after the last checkpoint; OSError if rank 0 cannot make or remove directories.
    """
    root, step = Path(path), state.get("step")
    if not isinstance(step, int) or step < 0:
        raise RunError(f"a checkpoint needs its step, found {step!r}; save(path, {{..., 'step': 12}})")
    if keep < 1:
        raise RunError(f"keep={keep} would delete what was saved; give 1 or more")
    target = root / f"step-{step:09d}"
    from_first(lambda: _begin(root, target, keep), group)
    entries = on_every_rank(lambda: _entries(state, target, group), group, RunError)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            # Replicas may differ in buffers that each rank updates by itself; all ranks resume with those of rank 0.
            dcp.save(
                entries,
                storage_writer=dcp.FileSystemWriter(target, sync_files=True),
                planner=DefaultSavePlanner(False, False, dedup_save_to_lowest_rank=True),
                process_group=group,
            )
    except dcp.api.CheckpointException as error:
        said = "; ".join(f"rank {rank}: {fault[0]}" for rank, fault in sorted(error.failures.items()))
        raise RunError(f"step {step} could not be saved in {root}: {said}") from error
    from_first(lambda: _clean(root, keep), group)
    return target


def load_latest(
    path: str | PathLike[str], state: MutableMapping[str, Any], *, group: Group = None
) -> int | None:
    """Load the last complete checkpoint under `path` into `state` and return its step; None if there is none.

    `state` is as for `save`, without the step. Modules, optimizers and objects with `load_state_dict()` are loaded in
    place; other values are replaced in `state`. Each rank reads what it holds, by module path, whichever rank wrote
    it, so the number of ranks may differ. Torch's generators are restored on ranks that existed when saving.

    Raises RunError on every rank, naming the value, if one rank cannot read what it holds.
    """
    latest = from_first(lambda: str(["", *_complete(Path(path))][-1]), group)
    if not latest:
        return None
    return int(on_every_rank(lambda: _load(Path(latest), state, group), group, RunError))


def _entries(state: Mapping[str, Any], target: Path, group: Group) -> dict[str, Any]:
    """Return the tensors of this rank by name, and values that torch pickles: among them, for each parameter of an
    optimizer, its options and the state that is no tensor."""
    if not target.is_dir():
        raise RunError(f"{target} is not seen here; give a path that all hosts share")
    entries: dict[str, Any] = {f"random.{rank_of(group)}": {kind: get() for kind, get, _ in _generators()}}
    for key, value in state.items():
        if isinstance(value, torch.optim.Optimizer):
            for name, (parameter, options, _, _) in _parameters(key, value, state).items():
                fields = value.state.get(parameter, {})
                tensors = {field: entry for field, entry in fields.items() if isinstance(entry, torch.Tensor)}
                entries |= {f"{name}.{field}": entry.detach() for field, entry in tensors.items()}
                entries[name] = options, {field: fields[field] for field in fields if field not in tensors}
        else:
            entries |= _entries_of(key, value)
    return entries


def _load(latest: Path, state: MutableMapping[str, Any], group: Group) -> int:
    reader = dcp.FileSystemReader(latest)
    saved = reader.read_metadata().state_dict_metadata
    fields: dict[str, list[str]] = {}
    for name in saved:
        owner, _, field = name.rpartition(".")
        fields.setdefault(owner, []).append(field)
    random = f"random.{rank_of(group)}"
    entries: dict[str, Any] = dict.fromkeys(("step", random) if random in saved else ("step",))
    for key, value in state.items():
        if isinstance(value, torch.optim.Optimizer):
            for name, (parameter, *_) in _parameters(key, value, state).items():
                entries[name] = None
                for field in fields.get(name, ()):
                    entries[f"{name}.{field}"] = _empty(saved[f"{name}.{field}"], parameter)
        else:
            entries |= _entries_of(key, value)
    for name, entry in entries.items():
        shape = getattr(saved.get(name), "size", None)
        if name not in saved or (isinstance(entry, torch.Tensor) and shape != entry.shape):
            known = f"was saved with shape {tuple(shape)}" if shape is not None else "was not saved"
            raise RunError(f"{name} {known}: the checkpoint is of another model; give another path")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        # Ranks may hold different names, so each reads by itself.
        dcp.load(entries, storage_reader=reader, planner=DefaultLoadPlanner(False, False), no_dist=True)
    for key, value in state.items():
        if isinstance(value, torch.optim.Optimizer):
            packed = value.state_dict()
            packed["state"] = {}
            for name, (_, _, number, index) in _parameters(key, value, state).items():
                options, state_of = entries[name]
                packed["param_groups"][number] |= options
                state_of |= {field: entries[f"{name}.{field}"] for field in fields.get(name, ())}
                if state_of:
                    packed["state"][index] = state_of
            value.load_state_dict(packed)
        elif _is_module(value):
            _plain(value).load_state_dict(
                {path: entries[f"{key}.{path}"] for path in _plain(value).state_dict()}
            )
        elif hasattr(value, "load_state_dict"):
            value.load_state_dict(entries[key])
        else:
            state[key] = entries[key]
    for kind, _, restore in _generators():
        if kind in entries.get(random, {}):
            restore(entries[random][kind])
    return int(entries["step"])


def _entries_of(key: str, value: Any) -> dict[str, Any]:
    """Return the entries of a value that is no optimizer by name: one for each tensor of a module."""
    if _is_module(value):
        return {f"{key}.{path}": entry for path, entry in _plain(value).state_dict().items()}
    return {key: value.state_dict() if hasattr(value, "load_state_dict") else value}


def _is_module(value: Any) -> bool:
    return hasattr(value, "named_parameters") and hasattr(value, "load_state_dict")


def _plain(module: Any) -> Any:
    """Return a module without DDP and compiled wrappers."""
    while isinstance(module, nn.Module):
        if isinstance(module, DistributedDataParallel):
            module = module.module
        elif "_orig_mod" in module._modules:
            module = module.get_submodule("_orig_mod")
        else:
            break
    return module


def _parameters(
    key: str, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]
) -> dict[str, tuple[torch.Tensor, dict[str, Any], int, int]]:
    """Return, by name, the parameters of an optimizer that are not empty: the tensor, the options and the number of
    its group, and its index in the optimizer's state dict."""
    paths = {
        id(parameter): f"{key}.{module}.{path}"
        for module, value in state.items()
        if _is_module(value)
        for path, parameter in _plain(value).named_parameters()
    }
    parameters, count = {}, 0
    for number, group in enumerate(optimizer.param_groups):
        options = {name: value for name, value in group.items() if name not in ("params", "param_names")}
        for index, parameter in enumerate(group["params"], count):
            if parameter.numel() and id(parameter) not in paths:
                raise RunError(
                    f"{key!r} has a parameter of shape {tuple(parameter.shape)} that no module of the checkpoint has; "
                    "save the module beside its optimizer: save(path, {'model': model, 'optimizer': optimizer, "
                    "'step': step})"
                )
            if parameter.numel():
                parameters[paths[id(parameter)]] = parameter, options, number, index
        count += len(group["params"])
    return parameters


def _empty(saved: Any, parameter: torch.Tensor) -> torch.Tensor:
    """Return a tensor to read optimizer state into, split over ranks like its parameter if it has the same shape."""
    if saved.size == parameter.shape:
        return torch.zeros_like(parameter, dtype=saved.properties.dtype, requires_grad=False)
    return torch.empty(saved.size, dtype=saved.properties.dtype)


def _generators() -> Iterator[tuple[str, Callable[[], torch.Tensor], Callable[[torch.Tensor], None]]]:
    """Yield kind, getter and setter of the states of torch's generators: the CPU's and the current accelerator's."""
    yield "cpu", torch.get_rng_state, torch.set_rng_state
    kind = torch.accelerator.current_accelerator(check_available=True)
    if kind is not None and hasattr(module := torch.get_device_module(kind.type), "get_rng_state"):
        yield kind.type, module.get_rng_state, module.set_rng_state


def _complete(root: Path) -> list[Path]:
    """Return the complete checkpoints in a directory, in the order of steps."""
    return sorted(entry.parent for entry in root.glob(f"step-*/{_COMPLETE}"))


def _begin(root: Path, target: Path, keep: int) -> None:
    """Create the directory of a checkpoint; remove those that crashes have left incomplete."""
    complete = _complete(root)
    if complete and target <= complete[-1]:
        raise RunError(
            f"{root} has {complete[-1].name}, this is {target.name}: another run saves there, or this one has not been "
            "resumed; call load_latest(path, state) first, or give another path"
        )
    _clean(root, keep)
    target.mkdir(parents=True)


def _clean(root: Path, keep: int) -> None:
    """Remove all checkpoints but the last `keep` complete ones."""
    keep_these = _complete(root)[-keep:]
    for entry in root.glob("step-*"):
        if entry not in keep_these:
            # First, so that no checkpoint that is half removed counts as complete.
            (entry / _COMPLETE).unlink(missing_ok=True)
            shutil.rmtree(entry)
