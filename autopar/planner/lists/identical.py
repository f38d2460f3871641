"""Schedules without transfers: on one device, with the time of a call after moving the model to it; and list scheduling
on identical lanes, P | prec | Cmax.

Schedules on lanes are justified: clusters are shifted as late as possible, by decreasing end, then as early as
possible, by increasing start (Valls, Ballestín and Quintanilla, "Justification and RCPSP: a technique that pays",
European Journal of Operational Research 165(2), 2005); then lists with some clusters moved, each justified, replace the
shortest one unless they are longer.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from ...ir.costed import CostedGraph
from ...ir.device import Device, Link
from ...ir.graph import Graph
from ...ir.machine import Machine
from ..bounds.ancestors import LARGEST, fernandez_bussell
from ..candidates import Race
from ..model.instance import Instance
from ..model.simulator import Schedule, in_order
from ..model.toposort import inverse
from .heft import list_schedule, urgent_first

LARGE = 6_000
"""Limit on clusters for the transitive reduction."""
JUSTIFIED = 2
"""Limit on the justifications of a list schedule."""
LISTED = 300_000
"""Limit on the clusters placed in all list schedules together."""
SHARES = (0.05, 0.2, 1.0)
"""Shares of the clusters that are moved in a list."""
FAR = (0.2, 0.5, 1.0, 2.0, 4.0)
"""Standard deviations of these moves, in mean durations of a cluster."""
CLOSE = 1e-9
"""Gap to the lower bound, as a share, at which the search ends."""


class _Direction:
    """The graph in one direction of time: forward, with clusters in graph order, or `back` from the end."""

    def __init__(
        self, seconds: list[float], before: Sequence[Sequence[int]], lanes: int, back: bool = False
    ) -> None:
        self.seconds, self.before, self.lanes, self.back = seconds, before, lanes, back
        self.after = inverse(before)

    def levels(self, crowds: bool) -> list[float]:
        """Return lower bounds on the seconds from the start of each cluster to the end; `crowds` counts
        shared lanes."""
        found = list(self.seconds)
        for r in range(len(found)) if self.back else reversed(range(len(found))):
            found[r] += max((found[later] for later in self.after[r]), default=0.0)
        if not crowds:
            return found
        own = np.array(self.seconds)
        unit = float(all(seconds.is_integer() for seconds in self.seconds))
        made: list[float] = (
            own + fernandez_bussell(self.after, own, own / self.lanes, np.array(found) - own, unit)
        ).tolist()
        return made

    def listed(self, rank: Sequence[float]) -> list[float]:
        """Return the finish in seconds of each cluster under list scheduling on identical lanes: a free lane starts
        the ready cluster with the highest rank."""
        missing = [len(earlier) for earlier in self.before]
        ready = [(-rank[r], r) for r, count in enumerate(missing) if not count]
        heapq.heapify(ready)
        running: list[tuple[float, int]] = []
        ends, now = [0.0] * len(missing), 0.0
        while ready or running:
            while ready and len(running) < self.lanes:
                r = heapq.heappop(ready)[1]
                ends[r] = now + self.seconds[r]
                heapq.heappush(running, (ends[r], r))
            now = running[0][0]
            while running and running[0][0] == now:
                for later in self.after[heapq.heappop(running)[1]]:
                    missing[later] -= 1
                    if not missing[later]:
                        heapq.heappush(ready, (-rank[later], later))
        return ends


def _reduced(before: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the transitive reduction of the precedences."""
    found: list[list[int]] = []
    reached: list[int] = []
    for earlier in before:
        kept, known = [], 0
        for p in sorted(earlier, reverse=True):
            if not known >> p & 1:
                kept.append(p)
                known |= reached[p] | 1 << p
        found.append(kept)
        reached.append(known)
    return found


def identical(race: Race, steps: int) -> Schedule:
    """Return the shortest list schedule found on identical lanes, with about `steps` placed clusters; stop at the
    bound.

    O((R + E) log R) for each list of R clusters and E edges.
    """
    instance, lanes = race.instance, race.instance.alike
    seconds = [row[lanes[0][0]] for row in instance.seconds]
    before = _reduced(instance.before) if instance.clusters <= LARGE else instance.before
    forth = _Direction(seconds, before, len(lanes))
    back = _Direction(seconds, forth.after, len(lanes), back=True)
    enough, left = race.bound * (1 + CLOSE), min(steps, LISTED)
    lists, draw = _lists(forth, back), random.Random(0)
    best = next(lists)
    while max(best) > enough and left > 0 and not race.late:
        ends = next(lists, None) or _moved(forth, back, best, draw)
        # Another schedule of the same length may lead on.
        if max(ends) <= max(best):
            best = ends
        left -= 2 * instance.clusters
    return _schedule(instance, forth, lanes, best)


def _lists(forth: _Direction, back: _Direction) -> Iterator[list[float]]:
    """Yield the finish of each cluster in lists ranked by tails, and by a schedule from the end, each then
    justified; then in both again with `crowds`."""
    for crowds in (False, True) if len(forth.seconds) <= LARGEST else (False,):
        for direction in (forth, back):
            rank = direction.levels(crowds)
            ends = forth.listed(rank if direction is forth else back.listed(rank))
            yield ends
            for _ in range(JUSTIFIED):
                ends = forth.listed(back.listed(ends))
                yield ends


def _moved(forth: _Direction, back: _Direction, ends: list[float], draw: random.Random) -> list[float]:
    """Return the finish of each cluster in a justified list in whose order some of the `ends` were moved."""
    share, far = draw.choice(SHARES), draw.choice(FAR) * sum(forth.seconds) / len(forth.seconds)
    moved = [end + (draw.gauss(0.0, far) if draw.random() < share else 0.0) for end in ends]
    return forth.listed(back.listed(moved))


def _schedule(
    instance: Instance, forth: _Direction, lanes: Sequence[tuple[int, int]], ends: list[float]
) -> Schedule:
    """Place each cluster on the lane that has been free for the shortest time."""
    # Rounding may put a start before the end of a predecessor.
    starts = (
        max(end - own, *(ends[p] for p in earlier), 0.0)
        for end, own, earlier in zip(ends, forth.seconds, forth.before)
    )
    free = [0.0] * len(lanes)
    placed = []
    for start, end, r in sorted(zip(starts, ends, range(instance.clusters))):
        able = [since for since in free if since <= start * (1 + CLOSE)] or [min(free)]
        which = free.index(max(able))
        free[which] = end
        placed.append((r, lanes[which][0], (lanes[which][1],)))
    return in_order(instance, "search", placed, ())


Price = Callable[[Graph, str], CostedGraph]
"""Costs a graph with all tasks and state on one device."""


def single(instance: Instance, device: int) -> list[Schedule]:
    """Return schedules with all clusters on `device`: on one queue, and on all if there are several.

    Clusters that cannot run there go where they end first (none if `is_single`).
    """
    policy = f"single {instance.devices[device]}"
    found = []
    allowed = [
        (device,) if device in instance.allowed[r] else instance.allowed[r] for r in range(instance.clusters)
    ]
    if is_single(instance, device):
        found.append(Schedule(policy, {instance.lane_names[device][0]: instance.names}))
    if not found or len(instance.lane_names[device]) > 1:
        found.append(list_schedule(instance, policy, urgent_first(instance), allowed=allowed))
    return found


def is_single(instance: Instance, device: int) -> bool:
    """Return True if every cluster can run on `device`."""
    return all(device in allowed for allowed in instance.allowed)


def _alone(costed: CostedGraph, device: str) -> float | None:
    """Return the seconds of a costed graph on one device; None if it cannot run there or does not fit."""
    instance = Instance(costed)
    d = costed.index[device]
    if not is_single(instance, d):
        return None
    race = Race(instance)
    entries = [race.enter(schedule) for schedule in single(instance, d)]
    return min((entry.makespan for entry in entries if entry and not entry.over), default=None)


def seconds_moved(graph: Graph, machine: Machine, price: Price) -> tuple[tuple[str, float | None], ...]:
    """Return, for each device, the seconds of a call after `model.to(device)`; None if it cannot run or does not fit.

    State stays on the device. Each input comes from its place once, and each output returns once. Equal
    devices are computed once.
    """
    free = replace(
        graph, tasks=tuple(replace(task, home=False) if task.home else task for task in graph.tasks)
    )
    known: dict[tuple[Device, tuple[Link, ...], bool], float | None] = {}
    found = []
    for device in machine.devices:
        links = (link for link in machine.links if machine.host in (link.src, link.dst))
        own = (_blank(link, device.name) for link in links if device.name in (link.src, link.dst))
        key = replace(device, name=""), tuple(own), device.name == machine.host
        if key not in known:
            known[key] = _alone(price(free, device.name), device.name)
        found.append((device.name, known[key]))
    return tuple(found)


def _blank(link: Link, device: str) -> Link:
    """Return a link without its bus and the name of one end."""
    src, dst = (("" if end == device else end) for end in (link.src, link.dst))
    return replace(link, src=src, dst=dst, wire=None)
