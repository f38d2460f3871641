"""Placements for short memory from a simpler model: each accelerator runs one part of the graph as one call."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..model.problem import Problem
from .calls import Calls
from .search import search

ROOMS = (1.0, 0.75, 0.5)
"""Shares of the caps that state is to fill, so that some are left to what is made."""


def parts(problem: Problem, work: int, until: float = math.inf) -> Iterator[list[int]]:
    """The device of each run in the best placement found for each of `ROOMS`; none without accelerators, or
    where a run can go to none of these devices.

    The model is that of the dnn-partitioning paper (Tarnawski et al., NeurIPS 2020), of which many placements are
    weighed in the time of one simulation: the host is the device with most memory, the accelerators are as many
    others as are alike.
    What a run keeps has to fit, and time is seconds of the host and of an accelerator. `work` is about the nodes and
    edges looked at for each, and `until` a time of `time.monotonic`.
    """
    host, alike = _devices(problem)
    if not alike or not problem.runs:
        return
    one = alike[0]
    able = [[d in problem.allowed[r] for d in (host, one)] for r in range(problem.runs)]
    seconds = [
        [problem.seconds[r][d] if can else math.inf for d, can in zip((host, one), able[r])]
        for r in range(problem.runs)
    ]
    if any(min(row) == math.inf for row in seconds):
        return
    latency = max(problem.latency[host][one], problem.latency[one][host])
    rate = max(problem.s_per_byte[host][one], problem.s_per_byte[one][host])
    readers: list[list[int]] = []
    move = []
    for r, made in enumerate(problem.makes):
        readers.append(sorted({reader for v in made for reader in problem.readers[v]} - {r}))
        move.append(sum(latency + problem.bytes[v] * rate for v in made if problem.readers[v]))
    free = [r for r in range(problem.runs) if problem.group[r] < 0]
    members = sorted([*([r] for r in free), *map(list, problem.members)])
    kept = [float(sum(nbytes for _, nbytes in own)) for own in problem.kept]
    cap = problem.caps[one]
    given = sum(problem.given[one].values())
    for room in ROOMS:
        left = math.inf if cap is None else room * (cap - given)
        calls = Calls(
            [row[0] for row in seconds],
            [row[1] for row in seconds],
            kept,
            readers,
            move,
            members,
            len(alike),
            left,
        )
        at, cut = search(calls, until, work)
        placement = [(host, *alike)[at[c]] for c in calls.group]
        if calls.fits(at) and all(d in problem.allowed[r] for r, d in enumerate(placement)):
            yield placement
        if cut:
            break


def _devices(problem: Problem) -> tuple[int, list[int]]:
    """The device with most memory, and of the others as many as are alike."""
    caps = [math.inf if cap is None else cap for cap in problem.caps]
    host = caps.index(max(caps))
    kinds: dict[object, list[int]] = {}
    for d, cap in enumerate(caps):
        if d != host and math.inf not in (problem.latency[host][d], problem.latency[d][host]):
            times = tuple(row[d] for row in problem.seconds)
            kinds.setdefault((cap, times, problem.latency[host][d], problem.s_per_byte[host][d]), []).append(
                d
            )
    return host, max(kinds.values(), key=len, default=[])
