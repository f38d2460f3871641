"""Timelines of all ranks merged into one, on the clock of rank 0."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable
from dataclasses import replace

import torch.distributed as dist

from ..errors import RunError
from ..ir.timeline import Memory, Timeline
from ..system.text import seconds
from ..training.messages import Group, gather, rank_of, size_of

ROUNDS = 16
"""Meetings of all ranks by which clocks are compared."""
DRIFT = 1e-4
"""Seconds per second by which two clocks may drift apart: twice the 50 ppm tolerance of computer crystals."""


def merged(timelines: Iterable[Timeline], group: Group = None) -> Timeline | None:
    """Merge the calls of all ranks on one clock; return the timeline on rank 0, None on others. Every rank must call
    it.

        with fast.record() as recording:
            fast(x)
        together = merged(recording.calls)
        if together:
            together.save("trace.json")

    Each rank passes the measured timelines of its own calls. Devices are named `rank 2 (host1)/cpu`; second 0 is the
    start of the first call of all. The title gives the uncertainty of the clocks in seconds: half the shortest meeting
    of all ranks plus the drift since the first call. A backward recorded with its forward follows it immediately.

    Raises RunError on every rank if a timeline is a prediction, or if no rank has any.
    """
    calls = [replace(call, predicted=None) for call in timelines]
    offset, error = clock_offset(group)
    aged = max((time.perf_counter() - call.began for call in calls), default=0.0)
    error += DRIFT * aged if size_of(group) > 1 else 0.0
    began = gather([call.began and call.began + offset for call in calls], group)
    for rank, starts in enumerate(began):
        if 0.0 in starts:
            raise RunError(
                f"rank {rank} gave a predicted timeline; record one: with fast.record() as recording: …"
            )
    if not any(began):
        raise RunError(
            "no rank has recorded a call; call the model inside `with fast.record() as recording:`"
        )
    mine = f"rank {rank_of(group)} ({socket.gethostname()})", error, calls
    received = [mine] * len(began)
    if len(began) > 1:
        dist.gather_object(mine, received if rank_of(group) == 0 else None, group=group, group_dst=0)
    if rank_of(group) != 0:
        return None
    first = min(start for starts in began for start in starts)
    shifted = [
        _shifted(call, name, start - first)
        for (name, _, calls), starts in zip(received, began)
        for call, start in zip(calls, starts)
    ]
    within = max(error for _, error, _ in received)
    titles = ", ".join(dict.fromkeys(call.title for call in shifted))
    memory: dict[str, Memory] = {}
    for account in (account for call in shifted for account in call.memory):
        before = memory.get(account.device, replace(account, steps=()))
        memory[account.device] = replace(before, steps=before.steps + account.steps)
    return Timeline(
        f"{titles} on {len(began)} ranks, whose clocks agree within {seconds(within)}",
        tuple(dict.fromkeys(lane for call in shifted for lane in call.lanes)),
        tuple(span for call in shifted for span in call.spans),
        max(call.makespan for call in shifted),
        tuple(memory.values()),
        "; ".join(dict.fromkeys(call.label for call in shifted if call.label)),
        max(call.late for call in shifted),
        needs_slow_down=max(call.needs_slow_down for call in shifted),
        began=first,
        ranks=len(began),
    )


def _shifted(call: Timeline, name: str, shift: float) -> Timeline:
    """Return a timeline of the rank `name`, `shift` seconds later, with the end of its last call as makespan."""

    def at(place: str) -> str:
        return place and f"{name}/{place}"

    spans = (
        replace(
            each.later(shift), lane=at(each.lane), device=at(each.device), src=at(each.src), dst=at(each.dst)
        )
        for each in call.spans
    )
    memory = (
        replace(
            each, device=at(each.device), steps=tuple((when + shift, count) for when, count in each.steps)
        )
        for each in call.memory
    )
    return replace(
        call,
        lanes=tuple(map(at, call.lanes)),
        spans=tuple(spans),
        makespan=call.makespan + shift,
        memory=tuple(memory),
    )


def clock_offset(group: Group = None) -> tuple[float, float]:
    """Estimate the clock offset to rank 0; return (offset, error bound) in seconds.

    Add the offset to this rank's `time.perf_counter`. Every rank of the group must call it. All ranks meet `ROUNDS`
    times. Since none leaves before all have come, each round bounds the offset from both sides.
    """
    rounds = []
    for _ in range(ROUNDS):
        comes = time.perf_counter()
        gather(None, group)
        rounds.append((comes, time.perf_counter()))
    first = gather(rounds, group)[0]
    if rank_of(group) == 0:
        return 0.0, 0.0
    most = min(leaves - comes for (_, leaves), (comes, _) in zip(first, rounds))
    least = max(comes - leaves for (comes, _), (_, leaves) in zip(first, rounds))
    return (most + least) / 2, (most - least) / 2
