"""What must cross wires, whatever way it takes: values one end of which is where it must be."""

from __future__ import annotations

from collections.abc import Iterator

import networkx
import numpy as np

from ..model.problem import Hop, Problem
from .critical_path import Floats, Ints, repeats


class Crossings:
    """What must cross wires: `fixed[w]` seconds on wire w in any case, and, if run r is on device d, `seconds`.

    `uncounted` are values of which nothing is said: their makers and readers may be anywhere."""

    def __init__(self, wires: int, devices: int) -> None:
        self.devices = devices
        self.fixed = np.zeros(wires)
        self.uncounted: list[int] = []
        self._rows: list[tuple[int, int, int, float]] = []

    def close(self) -> Crossings:
        """Make arrays of what has been added."""
        self.run, self.device, self.wire = (
            np.array([row[k] for row in self._rows], dtype=np.int64) for k in range(3)
        )
        self.seconds = np.array([row[3] for row in self._rows])
        self.busy = self.fixed > 0
        self.busy[self.wire] = True
        return self

    def add(self, run: int, device: int, wire: int, seconds: float) -> None:
        """Let a run on a device take some seconds of a wire; run -1 is taken in any case."""
        if run < 0:
            self.fixed[wire] += seconds
        else:
            self._rows.append((run, device, wire, seconds))

    def charge(self, cost: Floats, toll: Floats) -> None:
        """Add to the cost of each run on each device what its wires cost."""
        if len(self.seconds):
            spent = np.bincount(
                self.run * self.devices + self.device,
                weights=toll[self.wire] * self.seconds,
                minlength=cost.size,
            )
            cost += spent.reshape(cost.shape)

    def carried(self, at: Ints) -> Floats:
        """Seconds of each wire when each run is on device `at`."""
        return self._sum(np.where(at[self.run] == self.device, self.seconds, 0.0))

    def expected(self, at: Floats) -> Floats:
        """The same when each run is on each device as often as `at` (R, D) says."""
        return self._sum(at[self.run, self.device] * self.seconds)

    def _sum(self, spent: Floats) -> Floats:
        found = np.zeros(len(self.fixed))
        np.add.at(found, self.wire, spent)
        return found


def crossings(problem: Problem) -> Crossings:
    """What crosses wires because one end of it is where it must be: inputs, deliveries, and runs with one device.

    A value comes to a device once, so that of a transfer for one of k readers each pays 1/k. Where it may come over
    several wires none is charged.
    """
    only = [allowed[0] if len(allowed) == 1 else -1 for allowed in problem.able]
    number = problem.wires + len(problem.copy_lanes)
    found = Crossings(number, len(problem.devices))
    entrances = Entrances(problem)

    def tolls(v: int, src: int, d: int, seen: set[Hop]) -> Iterator[tuple[int, float]]:
        """Wires and queues that value v must take from `src` to `d`, but for those `seen`, and its seconds there."""
        for hop in entrances.between(src, d):
            if hop not in seen:
                seen.add(hop)
                seconds = hop.seconds(problem.bytes[v])
                yield hop.wire if hop.wire >= 0 else problem.wires + hop.lane, seconds

    for v, readers in enumerate(problem.readers if number else ()):
        maker = problem.maker[v]
        source = problem.home[v] if maker < 0 else only[maker]
        wanted = dict.fromkeys((*problem.deliver[v], *(only[r] for r in readers if only[r] >= 0)))
        if problem.values[v] in problem.holders:
            continue
        # A maker that may be repeated may be so wherever its value is wanted.
        if source < 0 and (not wanted or repeats(problem, maker)):
            found.uncounted.append(v)
            continue
        for e in problem.able[maker] if source < 0 else (source,):
            seen: set[Hop] = set()
            for d in wanted:
                for wire, seconds in tolls(v, e, d, seen):
                    found.add(maker if source < 0 else -1, e, wire, seconds)
        free = [r for r in readers if only[r] < 0] if source >= 0 else []
        for r in free:
            for d in problem.able[r]:
                for wire, seconds in tolls(v, source, d, {*seen}):
                    found.add(r, d, wire, seconds / len(free))
    return found.close()


class Entrances:
    """The queues and wires by which devices must be entered: cuts of the network of links."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.known: dict[tuple[int, int], tuple[Hop, ...]] = {}
        self.links = [hops[0] for row in problem.route for hops in row if hops is not None and len(hops) == 1]
        self.graph = networkx.DiGraph()
        self.graph.add_nodes_from(range(len(problem.devices)))
        self.graph.add_edges_from((link.src, link.dst) for link in self.links)

    def between(self, src: int, dst: int) -> tuple[Hop, ...]:
        """The hops without which nothing comes from `src` to `dst`: each is any of those to its `dst` in its queue or
        over its wire, one of the two, and as quick as the quickest."""
        if (src, dst) not in self.known:
            found = []
            for hop in self.problem.route[src][dst] or ():
                for lane, wire in ((hop.lane, -1), (-1, hop.wire)):
                    same = [one for one in self.links if one.dst == hop.dst and _takes(one, lane, wire)]
                    closed = {(one.src, one.dst) for one in same}
                    left = networkx.subgraph_view(
                        self.graph, filter_edge=lambda a, b, cut=closed: (a, b) not in cut
                    )
                    if same and not networkx.has_path(left, src, dst):
                        latency = min(one.latency_s for one in same)
                        s_per_byte = min(one.s_per_byte for one in same)
                        found.append(Hop(-1, hop.dst, lane, wire, latency, s_per_byte))
            self.known[src, dst] = tuple(found)
        return self.known[src, dst]


def _takes(hop: Hop, lane: int, wire: int) -> bool:
    return (lane >= 0 and hop.lane == lane) or (wire >= 0 and hop.wire == wire)
