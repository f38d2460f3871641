"""Search for the shortest latency with one call for each accelerator."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence

from autopar.planner.model.toposort import late

from .calls import Calls, Reach, blocks, ones

WORK = 100_000_000
"""Nodes and edges looked at in all, about: what the search is counted in, unless fewer are asked for."""
MOST = 400_000
"""Moves tried in all."""
PAIRS = 40
"""Moves for each pair of classes, at most."""
CHAINS = (1, 1, 1, 1, 1, 2)
"""Parts of the moves for each chain of annealing; the first `RESTARTS` go on from different starts, the rest from the
best so far, and cooler."""
RESTARTS = 4
HEAT = 0.02
"""Share of itself that the latency may rise by at the beginning, falling to nothing."""
ORDERS = 12
"""Topological orders that are split for starts."""


def search(calls: Calls, until: float = math.inf, work: int = WORK) -> tuple[list[int], bool]:
    """The part of each class in the best placement found, and whether the time that `until` names (of
    `time.monotonic`) ended the search. Deterministic; `work` is about the nodes and edges looked at. The placement does
    not fit where none that is tried does.

    Starts are everything on the host, accelerators filled one after the other, and the best splits of some orders;
    the best is improved by simulated annealing, whose result is split again in its own order.
    """
    ring = blocks([list(own) for own in calls.before])
    reach = Reach([list(own) for own in calls.before], ring)
    starts = [[0] * len(calls.members), *(_filled(calls, line) for line in _lines(calls, ring)[:2])]
    for line in _lines(calls, ring):
        starts.append(calls.split(line))
        if time.monotonic() > until:
            break
    good = [(calls.latency(at), index) for index, at in enumerate(starts) if calls.fits(at)]
    if not good:
        return starts[0], False
    good.sort()
    # Equal latencies are mostly equal placements, from which nothing new would come.
    good = [entry for rank, entry in enumerate(good) if not rank or entry[0] > good[rank - 1][0]]
    best, latency = starts[good[0][1]], good[0][0]
    if not calls.parts or not any(calls.able):
        return best, False
    size = len(calls.host) + sum(map(len, calls.readers)) + 1
    # Sets of classes are numbers of as many bits, so that a move takes more where there are many.
    size *= 1 + len(calls.members) // 500
    steps = max(1000, min(MOST, work // size, PAIRS * len(calls.members) ** 2)) // sum(CHAINS)
    cut = False
    for turn, share in enumerate(CHAINS):
        start = starts[good[turn % len(good)][1]] if turn < RESTARTS else best
        heat = HEAT if turn < RESTARTS else HEAT / 5
        found, reached, cut = _anneal(calls, reach, start, heat, steps * share, random.Random(turn), until)
        if reached < latency:
            best, latency = found, reached
        if cut:
            break
        again = calls.split(_own_line(calls, ring, best))
        if calls.fits(again) and calls.latency(again) < latency:
            best, latency = again, calls.latency(again)
    return best, cut


def resplit(calls: Calls, at: Sequence[int]) -> float:
    """The latency of a placement, or of the best split of its own order if that is shorter; inf where nothing fits."""
    ring = blocks([list(own) for own in calls.before])
    split = calls.split(_own_line(calls, ring, at))
    return min((calls.latency(found) for found in (at, split) if calls.fits(found)), default=math.inf)


def _lines(calls: Calls, ring: list[list[int]]) -> list[list[list[int]]]:
    """Some topological orders of the blocks."""
    block = {c: index for index, own in enumerate(ring) for c in own}
    before = [sorted({block[p] for c in own for p in calls.before[c]} - {b}) for b, own in enumerate(ring)]
    draw = random.Random(0)
    found = [late(before), late(before, reverse=True), early(before, lambda ready: len(ready) - 1)]
    found.append(early(before, lambda ready: 0))
    while len(found) < ORDERS:
        mixed = [draw.sample(needs, len(needs)) for needs in before]
        found += [late(mixed), early(before, lambda ready: draw.randrange(len(ready)))]
    return [[ring[b] for b in line] for line in found]


def _own_line(calls: Calls, ring: list[list[int]], at: Sequence[int]) -> list[list[int]]:
    """An order in which the classes of each call are together."""
    block = {c: index for index, own in enumerate(ring) for c in own}
    part = [0] * len(ring)
    for b, own in enumerate(ring):
        parts = {at[c] for c in own}
        part[b] = parts.pop() if len(parts) == 1 else 0
    unit = [p or calls.parts + 1 + b for b, p in enumerate(part)]
    needs: dict[int, set[int]] = {u: set() for u in unit}
    inner: list[list[int]] = []
    for b, own in enumerate(ring):
        before = sorted({block[p] for c in own for p in calls.before[c]} - {b})
        inner.append(before)
        needs[unit[b]].update(unit[p] for p in before if unit[p] != unit[b])
    names = sorted(needs)
    number = {u: index for index, u in enumerate(names)}
    rank = {names[i]: r for r, i in enumerate(late([sorted(number[p] for p in needs[u]) for u in names]))}
    inside = {b: r for r, b in enumerate(late(inner))}
    return [ring[b] for b in sorted(range(len(ring)), key=lambda b: (rank[unit[b]], inside[b]))]


def _filled(calls: Calls, line: Sequence[Sequence[int]]) -> list[int]:
    """Accelerators filled one after the other along an order, the rest on the host: the greedy rule of the paper."""
    at = [0] * len(calls.members)
    part, left = 0, 0.0
    for own in line:
        held = sum(calls.held[c] for c in own)
        if held > calls.cap or not all(calls.able[c] for c in own):
            left = 0.0
            continue
        if held > left or not part:
            if part == calls.parts:
                break
            part, left = part + 1, calls.cap
        left -= held
        for c in own:
            at[c] = part
    return at


def _anneal(
    calls: Calls,
    reach: Reach,
    start: Sequence[int],
    hot: float,
    steps: int,
    draw: random.Random,
    until: float,
) -> tuple[list[int], float, bool]:
    at = list(start)
    current = calls.latency(at)
    best, latency = list(at), current
    near = [list({**calls.before[c], **calls.after[c]}) for c in range(len(at))]
    for step in range(steps):
        if step % 64 == 0 and time.monotonic() > until:
            return best, latency, True
        moved = _moved(calls, reach, near, at, draw)
        if moved is None or not calls.fits(moved):
            continue
        reached = calls.latency(moved)
        heat = hot * (1 - step / steps) ** 2 * latency
        if reached <= current or (
            heat > 0 and reached < math.inf and draw.random() < math.exp((current - reached) / heat)
        ):
            at, current = moved, reached
            if current < latency * (1 - 1e-12):
                best, latency = list(at), current
    return best, latency, False


def _moved(
    calls: Calls, reach: Reach, near: list[list[int]], at: list[int], draw: random.Random
) -> list[int] | None:
    """A placement beside `at`: a class, what comes before or after it in its part, or what lies between it and
    another part, moved to that part; None when nothing would move."""
    count = len(at)
    c = int(draw.random() * count)
    own = at[c]
    if near[c] and draw.random() < 0.8:
        part = at[near[c][int(draw.random() * len(near[c]))]]
    else:
        part = int(draw.random() * (calls.parts + 1))
    kind = draw.random()
    moving = 1 << c
    if kind < 0.03 and own and part:
        moving = reach.hull(sum(1 << other for other in range(count) if at[other] in (own, part)))
    elif 0.3 <= kind < 0.6:
        side = reach.down[c] if draw.random() < 0.5 else reach.up[c]
        moving = sum(1 << other for other in ones(side) if at[other] == own)
    elif 0.6 <= kind < 0.9 and part:
        moving = reach.hull(moving | sum(1 << other for other in range(count) if at[other] == part))
    elif kind >= 0.9:
        end = c
        for _ in range(1 + int(8 * draw.random())):
            if near[end]:
                end = near[end][int(draw.random() * len(near[end]))]
        moving = reach.hull(moving | 1 << end)
    moved = list(at)
    for other in ones(moving):
        moved[other] = part
    return None if moved == at else moved


def early(before: Sequence[Sequence[int]], choose: Callable[[list[int]], int]) -> list[int]:
    """Numbers in an order in which each follows those of `before` that it needs, as soon as they are done; `choose`
    names the position of the next among those that are ready. What is in a cycle is left out."""
    after: list[list[int]] = [[] for _ in before]
    for v, needs in enumerate(before):
        for p in needs:
            after[p].append(v)
    missing = [len(needs) for needs in before]
    ready = [v for v, count in enumerate(missing) if not count]
    found = []
    while ready:
        v = ready.pop(choose(ready))
        found.append(v)
        for w in after[v]:
            missing[w] -= 1
            if not missing[w]:
                ready.append(w)
    return found
