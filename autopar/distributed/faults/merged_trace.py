"""Timelines of all ranks merged into one, on the clock of rank 0."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from ...errors import RunError
from ...ir.serialize import decode, encode
from ...ir.timeline import Memory, Span, Timeline
from ...system.text import seconds
from ...training.messages import Group, device_of, gather, rank_of, size_of

ROUNDS = 16
"""Clock exchanges between rank 0 and each other rank."""
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
    start of the first call of all. The title gives the uncertainty of the clocks in seconds: half the shortest round
    trip plus the drift since the first call. A backward recorded with its forward follows it immediately.

    Raises RunError on every rank if a timeline is a prediction, or if no rank has any.
    """
    own = list(timelines)
    offset, error = clock_offset(group)
    now = time.perf_counter()
    aged = error + DRIFT * max((now - timeline.began for timeline in own), default=0.0)
    sent = {
        "host": socket.gethostname(),
        "offset": offset,
        "error": aged if size_of(group) > 1 else 0.0,
        "predicted": any(not timeline.began for timeline in own),
        "count": len(own),
    }
    heads = gather(sent, group)
    for rank, head in enumerate(heads):
        if head["predicted"]:
            raise RunError(
                f"rank {rank} gave a predicted timeline; record one: with fast.record() as recording: …"
            )
    if not any(head["count"] for head in heads):
        raise RunError(
            "no rank has recorded a call; call the model inside `with fast.record() as recording:`"
        )
    calls = gather([encode(replace(timeline, predicted=None)) for timeline in own], group, everywhere=False)
    if rank_of(group) != 0:
        return None
    read = [[decode(Timeline, call, f"rank {rank}") for call in given] for rank, given in enumerate(calls)]
    return _joined(read, heads)


def clock_offset(group: Group = None) -> tuple[float, float]:
    """Estimate the clock offset to rank 0 by Cristian's algorithm; return (offset, error bound) in seconds.

    Add the offset to this rank's `time.perf_counter`. Every rank of the group must call it. Of `ROUNDS`
    exchanges, the one with the shortest round trip counts; half of that trip bounds the error (F. Cristian,
    "Probabilistic clock synchronization", Distributed Computing 3, 1989).
    """
    device, rank = device_of(group) if dist.is_initialized() else torch.device("cpu"), rank_of(group)
    best = (0.0, float("inf") if rank else 0.0)
    for other in range(1, size_of(group)):
        for _ in range(ROUNDS):
            mark = torch.zeros(1, device=device)
            clocks = torch.zeros(2, dtype=torch.float64, device=device)
            if rank == 0:
                dist.recv(mark, group=group, group_src=other)
                mark.cpu()
                clocks[0] = time.perf_counter()
                clocks[1] = time.perf_counter()
                dist.send(clocks, group=group, group_dst=other)
            elif rank == other:
                sent = time.perf_counter()
                dist.send(mark, group=group, group_dst=0)
                dist.recv(clocks, group=group, group_src=0)
                arrived, left = clocks.tolist()
                back = time.perf_counter()
                error = ((back - sent) - (left - arrived)) / 2
                if error < best[1]:
                    best = (((arrived - sent) + (left - back)) / 2, error)
    return best


def _joined(calls: list[list[Timeline]], heads: list[dict[str, Any]]) -> Timeline:
    """Join the timelines of all ranks, each shifted by its clock offset."""
    names = [f"rank {rank} ({head['host']})" for rank, head in enumerate(heads)]
    first = min(call.began + head["offset"] for head, given in zip(heads, calls) for call in given)
    placed = [
        (name, call, call.began + head["offset"] - first)
        for name, head, given in zip(names, heads, calls)
        for call in given
    ]
    memory: dict[str, Memory] = {}
    for name, call, shift in placed:
        for account in call.memory:
            device = f"{name}/{account.device}"
            steps = tuple((at + shift, count) for at, count in account.steps)
            before = memory[device].steps if device in memory else ()
            memory[device] = Memory(device, before + steps, account.cap)
    titles = dict.fromkeys(call.title for _, call, _ in placed)
    within = max(head["error"] for head in heads)
    return Timeline(
        f"{', '.join(titles)} on {len(calls)} ranks, whose clocks agree within {seconds(within)}",
        tuple(dict.fromkeys(f"{name}/{lane}" for name, call, _ in placed for lane in call.lanes)),
        tuple(_shifted(span, name, shift) for name, call, shift in placed for span in call.spans),
        max(shift + call.makespan for _, call, shift in placed),
        tuple(memory.values()),
        "; ".join(dict.fromkeys(call.label for _, call, _ in placed if call.label)),
        max(call.late for _, call, _ in placed),
        needs_slow_down=max(call.needs_slow_down for _, call, _ in placed),
        began=first,
        ranks=len(calls),
    )


def _shifted(span: Span, name: str, shift: float) -> Span:
    return replace(
        span.later(shift),
        lane=f"{name}/{span.lane}",
        device=f"{name}/{span.device}",
        src=span.src and f"{name}/{span.src}",
        dst=span.dst and f"{name}/{span.dst}",
    )
