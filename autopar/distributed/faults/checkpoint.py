"""Atomic checkpoints by `torch.distributed.checkpoint`: each is complete or absent.

All ranks write into a temporary directory and flush every file to disk. Then rank 0 renames the directory, so
a checkpoint under its final name is complete. A crash leaves a directory that nobody reads and that the next
checkpoint removes.
"""

from __future__ import annotations

import os
import re
import shutil
import warnings
from collections.abc import Callable, Mapping, MutableMapping
from os import PathLike
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from ...errors import RunError
from ...training.messages import Group, broadcast, gather, rank_of, size_of
from . import flat_state

KEEP = 2
"""Default number of complete checkpoints to keep."""

_NAME = re.compile(r"step-(\d+)")
_STEP = "step"


def save(
    path: str | PathLike[str], state: Mapping[str, Any], *, keep: int = KEEP, group: Group = None
) -> Path:
    """Write a checkpoint of step `state["step"]` under the directory `path`, then delete all but the last `keep`.

    Every rank of the group must call it with its own `state`, and see the same directory `path`. `state`
    holds by name: modules, or lists of modules (DDP and compiled ones count as the modules they wrap);
    optimizers of their parameters; objects with `state_dict()` and `load_state_dict()`; tensors, numbers,
    text, lists and dicts. Ranks may hold the same or different parameters, by module path. If several ranks
    hold a name, the lowest saves it. The state of torch's random generators is saved for each rank.

    Returns the directory of the checkpoint once it is complete on every rank. Raises RunError on every rank,
    with nothing changed, if one rank cannot write, and for a step that is not after the last checkpoint.
    """
    root, step = Path(path), state.get(_STEP)
    if not isinstance(step, int) or step < 0:
        raise RunError(f"a checkpoint needs its step, found {step!r}; save(path, {{..., 'step': 12}})")
    if keep < 1:
        raise RunError(f"keep={keep} would delete what was saved; give 1 or more")
    draft = _everywhere(lambda: _draft(root, step), group, first=True)
    tensors = _everywhere(lambda: _saved(state, Path(draft), group), group)
    writer = dcp.FileSystemWriter(draft, sync_files=True)
    # Replicas may differ in buffers that each rank updates by itself; all ranks resume with those of rank 0.
    planner = DefaultSavePlanner(dedup_save_to_lowest_rank=True)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            dcp.save(tensors, storage_writer=writer, planner=planner, process_group=group)
    except dcp.api.CheckpointException as error:
        said = "; ".join(f"rank {rank}: {fault[0]}" for rank, fault in sorted(error.failures.items()))
        raise RunError(f"step {step} could not be saved in {root}: {said}") from error
    _everywhere(lambda: _flush(Path(draft)), group)
    return Path(_everywhere(lambda: _commit(Path(draft), root / f"step-{step:09d}", keep), group, first=True))


def load_latest(
    path: str | PathLike[str], state: MutableMapping[str, Any], *, group: Group = None
) -> int | None:
    """Load the last complete checkpoint under `path` into `state` and return its step; None if there is none.

    `state` is as for `save`, without the step. Modules, optimizers and objects with `load_state_dict()` are loaded in
    place; other values are replaced in `state`. Each rank reads what it holds, by module path, whichever rank wrote
    it, so the number of ranks may differ. Torch's generators are restored on ranks that existed when saving.

    Raises RunError on every rank, naming the value, if one rank cannot read what it holds.
    """
    latest = _everywhere(lambda: str(["", *_complete(Path(path)).values()][-1]), group, first=True)
    if not latest:
        return None
    return int(_everywhere(lambda: _restored(Path(latest), state, group), group))


def _saved(state: Mapping[str, Any], draft: Path, group: Group) -> flat_state.Tensors:
    if not draft.is_dir():
        raise RunError(f"{draft} is not seen here; give a path that all hosts share")
    return flat_state.saved({**state, **_random(group)})


def _restored(latest: Path, state: MutableMapping[str, Any], group: Group) -> int:
    metadata = dcp.FileSystemReader(latest).read_metadata()
    shapes = {
        name: (entry.size, entry.properties.dtype)
        for name, entry in metadata.state_dict_metadata.items()
        if isinstance(entry, TensorStorageMetadata)
    }

    def read(tensors: flat_state.Tensors) -> None:
        if tensors:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="torch.distributed is disabled")
                # Ranks may hold different names, so each reads by itself.
                dcp.load(tensors, storage_reader=dcp.FileSystemReader(latest), no_dist=True)

    random = [name for name in _random(group) if name in shapes]
    given = {**state, **dict.fromkeys((_STEP, *random))}
    flat_state.restore(given, shapes, read)
    for name in random:
        kind, drawn = name.rpartition(".")[2], given.pop(name)
        torch.set_rng_state(drawn) if kind == "cpu" else torch.get_device_module(kind).set_rng_state(drawn)
    step = int(given.pop(_STEP))
    state.update(given)
    return step


def _random(group: Group) -> dict[str, torch.Tensor]:
    """Return the states of this rank's generators, of the CPU and of the current accelerator, by their names in a
    checkpoint."""
    prefix = f"random.{rank_of(group)}"
    states = {f"{prefix}.cpu": torch.get_rng_state()}
    kind = torch.accelerator.current_accelerator(check_available=True)
    if kind is not None and hasattr(module := torch.get_device_module(kind.type), "get_rng_state"):
        states[f"{prefix}.{kind.type}"] = module.get_rng_state()
    return states


def _complete(root: Path) -> dict[int, Path]:
    """Return the complete checkpoints in a directory by step, in order."""
    entries = [*root.iterdir()] if root.is_dir() else []
    found = {int(name[1]): entry for entry in entries if (name := _NAME.fullmatch(entry.name))}
    return dict(sorted(found.items()))


def _draft(root: Path, step: int) -> str:
    """Create a temporary directory to write into; remove those left by crashes. Return its name."""
    root.mkdir(parents=True, exist_ok=True)
    last = max(_complete(root), default=-1)
    if step <= last:
        raise RunError(
            f"{root} has a checkpoint of step {last}, this is step {step}: another run saves there, or this one has "
            "not been resumed; call load_latest(path, state) first, or give another path"
        )
    for stale in root.glob(".draft-*"):
        shutil.rmtree(stale)
    draft = root / f".draft-step-{step:09d}"
    draft.mkdir()
    return str(draft)


def _commit(draft: Path, final: Path, keep: int) -> str:
    os.rename(draft, final)
    _flush(final.parent)
    for old in [*_complete(final.parent).values()][:-keep]:
        # Renamed first: a checkpoint that is half deleted must not have the name of a complete one.
        gone = old.with_name(f".draft-{old.name}-old")
        os.rename(old, gone)
        shutil.rmtree(gone)
    return str(final)


def _flush(directory: Path) -> None:
    """Flush a directory's entries to disk."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _everywhere(work: Callable[[], Any], group: Group, first: bool = False) -> Any:
    """Call `work` on every rank and return its result; with `first`, return rank 0's result on all ranks.

    If it raises on one rank, all ranks raise RunError with that rank and its message.
    """
    result, said = None, None
    fault: Exception | None = None
    if not first or rank_of(group) == 0:
        try:
            result = work()
        except RunError as error:
            fault, said = error, str(error)
        except Exception as error:
            fault, said = error, f"{type(error).__name__}: {error}"
    answers = [broadcast([said, result], group)] if first else gather([said, None], group)
    for rank, (text, _) in enumerate(answers):
        if text is not None:
            raise RunError(f"rank {rank}: {text}" if size_of(group) > 1 else text) from fault
    return answers[0][1] if first else result
