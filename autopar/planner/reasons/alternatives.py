"""When each run of a plan would end on another device, the rest of the plan as it is."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...ir.steps import Placed
from ..model.intervals import Gaps, Interval, find_all
from ..model.problem import Hop, Problem
from ..model.timing import Timing


@dataclass(frozen=True, slots=True)
class Arrival:
    """What a run could do on device number `device`: when its inputs would be there, when it would start and end, in
    seconds (end None: it cannot run there, or its inputs have no way)."""

    device: int
    arrives: float
    start: float
    end: float | None


class Elsewhere:
    """A plan in numbers, to ask what one run could do elsewhere.

    Values that are on a device in the plan are read when they came; others are brought by transfers of their own, one
    after the other, each in the first gap of its queue and wire that has room for it, where the transfers that the
    run alone needs where it is now have gone. The run takes the first gap of a lane, or of as many as it is quickest
    with, that has room for it. The host's dispatch and memory are not looked at.
    """

    def __init__(self, problem: Problem, timing: Timing) -> None:
        self.problem = problem
        index, value = problem.costed.index, problem.value
        self.original = dict(problem.costed.again)
        place = {step.run: step for step in timing.placed}
        self.own = [place[name] for name in problem.names]
        self.device = [index[step.device] for step in self.own]
        # A value and its copies are one: whoever reads one could read another.
        self.root = [value.get(self.original.get(name, name), v) for v, name in enumerate(problem.values)]
        self.there: list[dict[int, float]] = [{home: 0.0} if home >= 0 else {} for home in problem.home]
        for r, step in enumerate(self.own):
            for v in problem.makes[r]:
                self.there[self.root[v]][self.device[r]] = step.end
        hops = {(hop.src, hop.dst): hop for row in problem.route for way in row for hop in way or ()}
        busy: dict[tuple[str, int], list[Interval]] = {}
        self.came: dict[tuple[int, int], tuple[Hop, Interval]] = {}
        for t in timing.transfers:
            hop = hops[index[t.src], index[t.dst]]
            known = self.there[self.root[value[t.value]]]
            known[hop.dst] = min(t.end, known.get(hop.dst, math.inf))
            self.came[value[t.value], hop.dst] = hop, (t.start, t.end)
            for key in _keys(hop):
                busy.setdefault(key, []).append((t.start, t.end))
        self.shared = {key: Gaps(taken) for key, taken in busy.items()}
        lanes: dict[str, list[Interval]] = {name: [] for names in problem.lane_names for name in names}
        for step in timing.placed:
            for lane in step.lanes:
                lanes[lane].append((step.start, step.end))
        self.lanes = [[Gaps(lanes[name]) for name in names] for names in problem.lane_names]

    def ways(self, r: int) -> list[Arrival]:
        """What run `r` could do on each device; on its own what it does."""
        freed = self._freed(r)
        return [self._on(r, d, freed) for d in range(len(self.problem.devices))]

    def _freed(self, r: int) -> dict[tuple[str, int], list[Interval]]:
        """When wires would be idle that bring what this run alone reads where it is."""
        problem, d = self.problem, self.device[r]
        freed: dict[tuple[str, int], list[Interval]] = {}
        for v in problem.reads[r]:
            others = any(other != r and self.device[other] == d for other in problem.readers[v])
            if (v, d) not in self.came or others or d in problem.deliver[v] or problem.carry[v]:
                continue
            hop, taken = self.came[v, d]
            for key in _keys(hop):
                freed.setdefault(key, []).append(taken)
        return freed

    def _on(self, r: int, d: int, freed: dict[tuple[str, int], list[Interval]]) -> Arrival:
        problem, own = self.problem, self.own[r]
        makers = {problem.maker[v] for v in problem.reads[r]}
        arrives = max((self.own[p].end for p in problem.before[r] if p not in makers), default=0.0)
        if d == self.device[r]:
            read = (self.there[self.root[v]].get(d, 0.0) for v in problem.reads[r])
            return Arrival(d, max([arrives, *read]), own.start, own.end)
        coming = []
        for v in problem.reads[r]:
            known = self.there[self.root[v]]
            if d in known:
                arrives = max(arrives, known[d])
            else:
                source = next(iter(known))
                coming.append((known[source], v, source))
        after: dict[tuple[str, int], float] = {}
        for _, v, source in sorted(coming):
            hops = problem.route[source][d]
            if hops is None:
                return Arrival(d, 0.0, 0.0, None)
            known = self.there[self.root[v]]
            at = known[source]
            for hop in hops:
                if hop.dst in known:
                    at = known[hop.dst]
                    continue
                keys = _keys(hop)
                took = hop.seconds(problem.bytes[v])
                ready = max([at, *(after.get(key, 0.0) for key in keys)])
                queues = [(self.shared[key], freed.get(key, ())) for key in keys if key in self.shared]
                at = find_all(queues, ready, took) + took
                after.update(dict.fromkeys(keys, at))
            arrives = max(arrives, at)
        if d not in problem.allowed[r]:
            return Arrival(d, arrives, arrives, None)
        return self._best(r, d, arrives)

    def _best(self, r: int, d: int, arrives: float) -> Arrival:
        lanes = [(gaps, ()) for gaps in self.lanes[d]]
        found = []
        for count, took in self.problem.modes.get((r, d), ((1, self.problem.seconds[r][d]),)):
            start = find_all(lanes, arrives, took, count)
            found.append((start + took, start))
        end, start = min(found)
        return Arrival(d, arrives, start, end)

    def delayed(self, r: int, d: int, end: float) -> tuple[str, float]:
        """Who would have what run `r` makes later by most, were it to end at `end` on device `d`, and by how many
        seconds, on idle wires."""
        problem = self.problem
        worst = ("", 0.0)
        for v in problem.makes[r]:
            known = self.there[self.root[v]]
            wanted = [(problem.names[reader], self.device[reader]) for reader in problem.readers[v]]
            wanted += [(f"{problem.devices[e]}, where it must come,", e) for e in problem.deliver[v]]
            for reader, e in wanted:
                late = end + problem.travel(v, d, e) - known.get(e, math.inf)
                if late > worst[1]:
                    worst = reader, late
        return worst

    def instead(self, copy: str) -> tuple[Placed, float]:
        """The original of a run that is computed again, and when its results could come to where the copy is."""
        problem = self.problem
        r = problem.number[copy]
        first = problem.number[self.original[copy]]
        values = [self.root[v] for v in problem.makes[r]]
        comes = [self.own[first].end + problem.travel(v, self.device[first], self.device[r]) for v in values]
        return self.own[first], max(comes, default=0.0)


def _keys(hop: Hop) -> list[tuple[str, int]]:
    """The queue and the wire that a hop waits for."""
    return [(kind, number) for kind, number in (("queue", hop.lane), ("wire", hop.wire)) if number >= 0]
