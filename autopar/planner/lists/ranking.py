"""How urgent each run is, and what each device would mean for what comes after it."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence

import numpy as np

from ..bounds.critical_path import tails
from ..model.problem import Problem

_ORDERS: weakref.WeakKeyDictionary[Problem, list[int]] = weakref.WeakKeyDictionary()


def upward_rank(problem: Problem, allowed: Sequence[Sequence[int]] | None = None) -> list[float]:
    """Seconds from the start of each run to the end of the graph along its longest way, on average over
    devices.

    The upward rank of HEFT (Topcuoglu, Hariri and Wu, IEEE TPDS 13(3), 2002), but that a device counts by its
    lanes and by how fast it runs this very run, since that is where the run will likely be. `allowed` has the
    devices each run may go to where it is known better than by the problem.
    """
    shares = [_shares(problem, r, (allowed or problem.allowed)[r]) for r in range(problem.runs)]
    latency, s_per_byte = (_typical(problem, times) for times in (problem.latency, problem.s_per_byte))
    rank = [0.0] * problem.runs
    for r in reversed(range(problem.runs)):
        own = sum(share * s for share, s in zip(shares[r], problem.seconds[r]) if share)
        longest = max((rank[later] for later in problem.after[r]), default=0.0)
        for v in problem.makes[r]:
            travel = latency + problem.bytes[v] * s_per_byte
            for later in problem.readers[v]:
                apart = 1.0 - sum(a * b for a, b in zip(shares[r], shares[later]))
                longest = max(longest, rank[later] + apart * travel)
            for target in problem.deliver[v]:
                longest = max(longest, (1.0 - shares[r][target]) * travel)
            for holder in problem.carry[v]:
                apart = 1.0 - sum(a * b for a, b in zip(shares[r], shares[holder]))
                longest = max(longest, apart * travel)
        rank[r] = own + longest
    return rank


def urgent_first(problem: Problem, allowed: Sequence[Sequence[int]] | None = None) -> list[int]:
    """Runs by falling rank; ties in graph order, so that it stays topological."""
    if allowed is not None:
        rank = upward_rank(problem, allowed)
        return sorted(range(problem.runs), key=lambda r: (-rank[r], r))
    if problem not in _ORDERS:
        rank = upward_rank(problem)
        _ORDERS[problem] = sorted(range(problem.runs), key=lambda r: (-rank[r], r))
    return _ORDERS[problem]


def mean_first(problem: Problem, copies: float) -> list[int]:
    """Runs by falling upward rank as HEFT has it, all devices alike, a copy counting `copies` times; ties in graph
    order."""
    latency, s_per_byte = (
        copies * _typical(problem, times) for times in (problem.latency, problem.s_per_byte)
    )
    rank = [0.0] * problem.runs
    for r in reversed(range(problem.runs)):
        longest = 0.0
        for later in problem.after[r]:
            if rank[later] > longest:
                longest = rank[later]
        for v in problem.makes[r]:
            travel = latency + problem.bytes[v] * s_per_byte
            for later in problem.readers[v]:
                if rank[later] + travel > longest:
                    longest = rank[later] + travel
        row = problem.seconds[r]
        own = [row[d] for d in problem.allowed[r]]
        rank[r] = longest + sum(own) / len(own)
    return sorted(range(problem.runs), key=lambda r: (-rank[r], r))


def cost_to_go(problem: Problem) -> list[list[float]]:
    """Seconds from the end of each run on each device to the end of the graph, were every later run placed at
    its best; 0 on devices where it cannot run.

    The optimistic cost table of PEFT (Arabnejad and Barbosa, IEEE TPDS 25(3), 2014), deliveries included.
    """
    tail = tails(problem)
    made: list[list[float]] = np.where(np.isfinite(tail), tail, 0.0).tolist()
    return made


def _shares(problem: Problem, run: int, allowed: Sequence[int]) -> list[float]:
    raw = [0.0] * len(problem.devices)
    fastest = min(problem.seconds[run][d] for d in allowed)
    for d in allowed:
        seconds = problem.seconds[run][d]
        speed = fastest / seconds if seconds > 0 else 1.0
        raw[d] = speed * len(problem.lane_names[d])
    total = sum(raw) or 1.0
    return [share / total for share in raw]


def _typical(problem: Problem, matrix: list[list[float]]) -> float:
    everywhere = range(len(matrix))
    known = [
        matrix[s][d] for s in everywhere for d in everywhere if s != d and problem.latency[s][d] < math.inf
    ]
    return sum(known) / len(known) if known else 0.0
