"""Messages between the ranks of a process group: data and weights of rank 0 on all ranks, errors of one rank on all,
facts in which ranks must agree, ranks in words."""

from __future__ import annotations

import builtins
import hashlib
import json
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import nn

from .. import errors
from ..capture.torch_private import process_groups, timeout_of
from ..errors import AutoparError, PlanError
from ..system import VERSION

Group: TypeAlias = dist.ProcessGroup | None
"""A process group; None: the default group, or this process alone if there is none."""

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
    own = len(process_groups.pg_names)
    for _ in range(max(gather(own, group)) - own):
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
    sent, fault = [None, "", ""], None
    if rank_of(group) == 0:
        try:
            sent[0] = make()
        except Exception as error:
            fault, sent = error, [None, type(error).__name__, str(error)]
    if size_of(group) > 1:
        dist.broadcast_object_list(sent, group=group, group_src=0)
    if fault is not None:
        raise fault
    data, name, text = sent
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
    model: nn.Module, group: Group, device: torch.device, sources: Mapping[str, int] | None = None
) -> None:
    """Replace the parameters and buffers of a model by those of rank 0, or of the ranks of the group that `sources`
    has by name, sent from `device`."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        sent = tensor.to(device).contiguous()
        # As bytes: backends refuse some dtypes.
        dist.broadcast(
            sent.reshape(-1).view(torch.uint8), group=group, group_src=(sources or {}).get(name, 0)
        )
        tensor.copy_(sent)


def gather(data: Any, group: Group = None) -> list[Any]:
    """Return the data of each rank, in rank order, on every rank."""
    found = [data] * size_of(group)
    if len(found) > 1:
        dist.all_gather_object(found, data, group=group)
    return found


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
    own = _versions()
    fault: Exception | None = None
    try:
        own |= describe()
    except Exception as error:
        fault, own = error, {**own, _FAILED: f"{type(error).__name__}: {error}"}
    digest = hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()
    if len(set(gather(digest, group))) == 1 and fault is None:
        return
    facts = gather(own, group)
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
    apart = groupby(enumerate(sorted(ranks)), lambda item: item[1] - item[0])
    runs = [[rank for _, rank in run] for _, run in apart]
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
