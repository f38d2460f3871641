"""Why each run of a plan is where it is, and when it would end on another device: from the plan, when asked for."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ..ir.costed import CostedGraph
from ..ir.plan import Choice, Reason
from ..ir.steps import Placed
from ..text.tables import seconds, size
from .model.intervals import Gaps, Interval, find_all
from .model.lazy_sequence import Lazily
from .model.problem import Hop, Problem
from .model.timing import Timing

NEGLIGIBLE = 1e-9
"""Seconds that are no reason for anything."""


class Reasons(Lazily):
    """A reason for each run of a plan for one call.

    Each `Choice` holds the rest of the plan as it is: see `Elsewhere`. `shortest`: nothing that was tried is
    shorter. `others` says what the race found when all runs are on one device.
    """

    def __init__(self, costed: CostedGraph, timing: Timing, policy: str, shortest: bool, others: str) -> None:
        super().__init__(run.name for run in costed.runs)
        self.costed, self.timing = costed, timing
        self.policy, self.shortest, self.others = policy, shortest, others

    @cached_property
    def elsewhere(self) -> Elsewhere:
        """What each run could do on other devices."""
        return Elsewhere(Problem(self.costed), self.timing)

    @cached_property
    def alone(self) -> bool:
        """Whether all is on one device."""
        return len({step.device for step in self.timing.placed}) == 1

    def work_out(self, r: int) -> Reason:
        """The reason of run `r`."""
        own = self.elsewhere.own[r]
        arrivals = self.elsewhere.ways(r)
        choices = tuple(self._choice(r, arrival) for arrival in arrivals)
        return Reason(own.run, self._sentence(r, own, choices), choices)

    def _choice(self, r: int, way: Arrival) -> Choice:
        problem, own = self.elsewhere.problem, self.elsewhere.own[r]
        device = problem.devices[way.device]
        if device == own.device:
            return Choice(device, way.arrives, own.start, own.end, "chosen")
        if way.device not in problem.allowed[r]:
            return Choice(device, way.arrives, 0.0, None, self._barred(r, way.device))
        if way.end is None:
            return Choice(device, 0.0, 0.0, None, f"no link brings its inputs to {device}")
        lacks = self._lacks(r, way)
        if lacks:
            return Choice(device, way.arrives, way.start, None, lacks)
        return Choice(device, way.arrives, way.start, way.end)

    def _barred(self, r: int, d: int) -> str:
        """What keeps run `r` from device number `d`."""
        problem = self.elsewhere.problem
        unable = self._unable(r, d)
        if unable is None:
            return f"no links bring all its values to and from {problem.devices[d]}"
        if unable == r:
            return f"it cannot run on {problem.devices[d]}"
        return f"{problem.names[unable]}, with which it shares a device, cannot run on {problem.devices[d]}"

    def _unable(self, r: int, d: int) -> int | None:
        """The run itself, or else one that must be where it is, that cannot run on device number `d`."""
        problem = self.elsewhere.problem
        together = problem.members[problem.group[r]] if problem.group[r] >= 0 else ()
        runs = problem.costed.runs
        return next((m for m in (r, *together) if runs[m].seconds[d] is None), None)

    def _lacks(self, r: int, way: Arrival) -> str:
        """What of its memory a device lacks for a run: what it holds meanwhile in any case is already too much."""
        problem, d = self.elsewhere.problem, way.device
        cap = problem.caps[d]
        if cap is None:
            return ""
        steps = self.timing.memory[d].steps
        times = [time for time, _ in steps]
        first = max(0, bisect_right(times, way.start) - 1)
        held = max((level for _, level in steps[first : bisect_left(times, way.end or 0.0)]), default=0)
        here = dict(problem.given[d])
        for other, kept in enumerate(problem.kept):
            if kept and self.elsewhere.device[other] == d:
                here.update(kept)
        state = sum(nbytes for storage, nbytes in problem.kept[r] if storage not in here)
        brought = [v for v in problem.reads[r] if d not in self.elsewhere.there[self.elsewhere.root[v]]]
        needs = state + problem.workspace[r] + sum(problem.bytes[v] for v in (*brought, *problem.makes[r]))
        if held + needs <= cap:
            return ""
        return (
            f"no room on {problem.devices[d]}: {size(held)} of {size(cap)} are held, it takes {size(needs)}"
        )

    def _sentence(self, r: int, own: Placed, choices: Sequence[Choice]) -> str:
        problem = self.elsewhere.problem
        if len(problem.devices) == 1:
            return f"{own.device} is the only device there is."
        if own.run in self.elsewhere.original:
            return self._copied(own)
        if len(problem.allowed[r]) == 1:
            return f"It can only run on {own.device}: {self._bound(r)}."
        if self.alone and self.others:
            return f"Everything is on {own.device}: {self.others}."
        if problem.group[r] >= 0 and len(problem.members[problem.group[r]]) > 1:
            tied = "the runs it changes values in place with" if problem.changes else "the rest of its group"
            together = f" It shares {own.device} with {tied}."
        else:
            together = ""
        rivals = [
            (choice.end, d)
            for d, choice in enumerate(choices)
            if choice.end is not None and choice.device != own.device
        ]
        if not rivals:
            why = next(
                (choice.why for choice in choices if choice.end is None and choice.why.startswith("no ")), ""
            )
            return f"It can only be on {own.device}: {why}.{together}"
        end, d = min(rivals)
        rival = problem.devices[d]
        if end > own.end + NEGLIGIBLE:
            text = f"It ends first on {own.device}, {seconds(end - own.end)} before it would on {rival}."
        elif end >= own.end - NEGLIGIBLE:
            text = f"It would end no sooner on {rival}."
        else:
            sooner = f"on {rival} it would itself end {seconds(own.end - end)} sooner"
            text = self._despite(r, d, end, sooner, own.device)
        return text + together

    def _despite(self, r: int, d: int, end: float, sooner: str, device: str) -> str:
        """Why a run is not where it would end sooner: who reads its results would have them later, if so."""
        reader, late = self.elsewhere.delayed(r, d, end)
        if late > NEGLIGIBLE:
            return (
                f"{sooner[0].upper()}{sooner[1:]}, but {reader} would have its result {seconds(late)} later."
            )
        if not self.shortest:
            return f"The policy {self.policy} put it on {device}; {sooner}."
        return (
            f"{sooner[0].upper()}{sooner[1:]}, but no plan that was tried is shorter than this one, which has it on "
            f"{device}."
        )

    def _bound(self, r: int) -> str:
        """What keeps a run from all devices but one."""
        problem = self.elsewhere.problem
        costed = problem.costed
        task = costed.graph.task[costed.runs[r].tasks[0]]
        if task.home:
            return "it must run where the call comes from"
        barred = [self._unable(r, d) for d in range(len(problem.devices)) if d != problem.allowed[r][0]]
        if None in barred:
            return "no links bring all its values to and from another device that can run it"
        other = next((m for m in barred if m != r), None)
        if other is not None:
            return f"it shares a device with {problem.names[other]}, which leaves no other"
        if all(s is None for d, s in enumerate(costed.cost[task.name].seconds) if d != problem.allowed[r][0]):
            return "no other device can run it, or its pin says so"
        return "a pin, or what it shares a device with, says so"

    def _copied(self, own: Placed) -> str:
        first, comes = self.elsewhere.instead(own.run)
        text = f"It is {first.run} computed again, so that its result need not come from {first.device}"
        return text + (f", {seconds(comes - own.end)} later." if comes > own.end else ".")


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
