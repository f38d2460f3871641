"""Messages between the ranks of a process group: data and weights of rank 0 on all ranks, errors of one rank on all,
facts in which ranks must agree, ranks in words."""

from __future__ import annotations

import builtins
import hashlib
import json
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from itertools import groupby
from typing import Any, TypeAlias

import torch
import torch.distributed as dist

from .. import errors
from ..capture.torch_private import process_groups, timeout_of
from ..errors import AutoparError, DeviceError, PlanError
from ..system import VERSION
from ..transform.buckets import filled

Group: TypeAlias = dist.ProcessGroup | None
"""A process group; None: the default group, or this process alone if there is none."""

BUCKET_BYTES = 4 << 20
"""Bytes of tensors in one message: on loopback and 10 Gbit/s links they take milliseconds, ten times the latency."""

_FAILED = "cannot say what it runs"


def rank_of(group: Group = None) -> int:
    """Return the rank of this process in a group; 0 outside a job."""
    return dist.get_rank(group) if dist.is_initialized() else 0


def size_of(group: Group = None) -> int:
    """Return the number of ranks of a group; 1 outside a job."""
    return dist.get_world_size(group) if dist.is_initialized() else 1


def subgroup(ranks: Sequence[int], group: Group = None) -> Any:
    """Make a group of some ranks, given as those of the job, with the timeout of `group`; only its members can use what
    is returned. Every rank of `group` must call it, and no other."""
    timeout = timeout_of(group or dist.group.WORLD, device_of(group))
    if size_of(group) == size_of():
        return dist.new_group([*ranks], timeout=timeout)
    # The ranks of a part of the job make it alone. torch then names it by the number of groups that each member knows.
    count = len(process_groups.pg_names)
    for _ in range(max(gather(count, group)) - count):
        dist.new_group([dist.get_rank()], use_local_synchronization=True)
    return dist.new_group([*ranks], timeout=timeout, use_local_synchronization=True)


def device_of(group: Group = None) -> torch.device:
    """Return the device whose tensors the group can send: the CPU if possible, else this process's accelerator."""
    kinds = [pair.partition(":")[0] for pair in dist.get_backend_config(group).split(",")]
    if "cpu" in kinds:
        return torch.device("cpu")
    return torch.device(kinds[0], torch.accelerator.current_device_index())


def from_first(make: Callable[[], Any], group: Group = None) -> Any:
    """Return, on every rank, the data that `make` returns on rank 0 of the group.

    If `make` raises, every rank does: the same class of error if autopar or Python has it, else PlanError.
    """
    message, fault = [None, "", ""], None
    if rank_of(group) == 0:
        try:
            message[0] = make()
        except Exception as error:
            fault, message = error, [None, type(error).__name__, str(error)]
    if size_of(group) > 1:
        dist.broadcast_object_list(message, group=group, group_src=0)
    if fault is not None:
        raise fault
    data, name, text = message
    if name:
        raise _raised(str(name), str(text))
    return data


def _raised(name: str, text: str) -> Exception:
    """Return the error of rank 0, of the same class if this process knows it."""
    kind = getattr(errors, name, None) or getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        with suppress(TypeError):
            return kind(text)
    return PlanError(f"rank 0 could not plan: {name}: {text}")


@torch.no_grad()
def share_weights(
    named: Iterable[tuple[str, torch.Tensor]],
    group: Group,
    device: torch.device | None = None,
    sources: Mapping[str, int] | None = None,
) -> None:
    """Replace tensors by those of rank 0, or of the ranks of the group that `sources` has by name.

    They are sent in buckets, from `device`, or from their own devices for None. Raises DeviceError if the group's
    backend cannot send from there.
    """
    source_of = (sources or {}).get
    keyed = (
        ((each.dtype, device or each.device, source_of(name, 0)), each.nbytes, (source_of(name, 0), each))
        for name, each in named
    )
    for bucket in filled(keyed, BUCKET_BYTES):
        tensors = [each for _, each in bucket]
        # As bytes: backends refuse some dtypes.
        parts = [each.to(device or each.device).reshape(-1).view(torch.uint8) for each in tensors]
        flat, source = torch.cat(parts), bucket[0][0]
        try:
            dist.broadcast(flat, group=group, group_src=source)
        except RuntimeError as error:
            if "backend" not in str(error):
                raise
            raise DeviceError(
                f"the process group cannot send what is on {flat.device} ({error}); give it a backend for each "
                'kind of device, init_process_group("cpu:gloo,cuda:nccl"), or move the model'
            ) from error
        if dist.get_rank(group) != source:
            for tensor, part in zip(tensors, flat.split([part.numel() for part in parts])):
                with torch.inference_mode() if tensor.is_inference() else nullcontext():
                    tensor.copy_(part.view(tensor.dtype).view(tensor.shape))


def gather(data: Any, group: Group = None) -> list[Any]:
    """Return the data of each rank, in rank order, on every rank."""
    gathered = [data] * size_of(group)
    if len(gathered) > 1:
        dist.all_gather_object(gathered, data, group=group)
    return gathered


def on_every_rank(work: Callable[[], Any], group: Group, kind: type[AutoparError], verb: str = "") -> Any:
    """Call `work` on every rank and return its result; if it raises on one rank, all ranks raise an error of this kind
    with that rank, the `verb` and the message."""
    result, text, fault = None, "", None
    try:
        result = work()
    except Exception as error:
        fault, text = error, str(error) if isinstance(error, kind) else f"{type(error).__name__}: {error}"
    answers = gather(text, group)
    for rank, said in enumerate(answers):
        if said:
            raise kind(f"rank {rank}{verb}: {said}" if len(answers) > 1 else said) from fault
    return result


def agree(
    describe: Callable[[], Mapping[str, str]], group: Group = None, kind: type[AutoparError] = PlanError
) -> None:
    """Compare facts by name, and versions of Python, torch and autopar, over all ranks of a group.

    Every rank of the group must call it. Ranks compare digests, and send the facts only if the digests
    differ. Every rank then raises an error of this kind, with the ranks that differ and the first difference,
    or with the error that `describe` raised on a rank.
    """
    facts_here = _versions()
    fault: Exception | None = None
    try:
        facts_here |= describe()
    except Exception as error:
        fault, facts_here = error, {**facts_here, _FAILED: f"{type(error).__name__}: {error}"}
    digest = hashlib.sha256(json.dumps(facts_here, sort_keys=True).encode()).hexdigest()
    if len(set(gather(digest, group))) == 1 and fault is None:
        return
    facts = gather(facts_here, group)
    if fault is not None:
        raise fault
    for rank, fact in enumerate(facts):
        if _FAILED in fact:
            raise kind(f"rank {rank} {_FAILED}: {fact[_FAILED]}")
    raise kind(difference(facts))


def difference(facts: list[dict[str, str]]) -> str:
    """Return the first difference between ranks as a sentence that names the ranks in the minority."""
    names = [
        name
        for name in dict.fromkeys(name for fact in facts for name in fact)
        if len({fact.get(name) for fact in facts}) > 1
    ]
    # A parameter that differs says more than its class does.
    name = min(names, key=lambda name: name.startswith("module ") or name == "the model")
    having: dict[str | None, list[int]] = {}
    for rank, fact in enumerate(facts):
        having.setdefault(fact.get(name), []).append(rank)
    most = max(having.values(), key=len)
    said: list[str] = []
    for value, ranks in sorted(having.items(), key=lambda item: item[1] is most):
        of = " of" if value is not None and value[0].isdigit() and " × " in value else ""
        first = f"no {name}" if value is None else f"{name}{of} {value}"
        # Only the first clause names the fact that differs.
        what = (value or "none") if said else first
        said.append(f"{named(ranks)} {'has' if len(ranks) == 1 else 'have'} {what}")
    if len(names) > 1:
        others = [other for other in names if other != name]
        more = ", ".join(others[:3]) + (", …" if len(others) > 3 else "")
        said[-1] += f"; {len(others)} more differ, {more}"
    return f"{', '.join(said)}; start every rank with the same code, options and versions"


def named(ranks: Sequence[int]) -> str:
    """Return ranks in words: `rank 3`, `ranks 0 to 2`, `ranks 0, 2 and 5 to 7`."""
    # Along a run of consecutive ranks, rank minus place is constant.
    groups = groupby(enumerate(sorted(ranks)), lambda item: item[1] - item[0])
    runs = [[rank for _, rank in run] for _, run in groups]
    *others, last = (
        word for run in runs for word in ([f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run))
    )
    listed = f"{', '.join(others)} and {last}" if others else last
    return f"rank{'s' if len(ranks) > 1 else ''} {listed}"


def _versions() -> dict[str, str]:
    """Return the versions of Python, torch and autopar: with others, equal models may give other programs."""
    return {
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "torch": torch.__version__.partition("+")[0],
        "autopar": VERSION,
    }
