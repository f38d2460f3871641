"""Why each cluster of a plan is where it is, and when it would end on another device: from the plan, when asked for."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ..ir.costed import CostedGraph
from ..ir.plan import Choice, Reason
from ..ir.steps import Placed
from ..system.text import seconds, size
from .model.instance import Hop, Instance
from .model.lazy_sequence import Lazily
from .model.slots import Slots, together
from .model.timing import Timing

NEGLIGIBLE = 1e-9
"""Seconds that are no reason for anything."""
ROUNDING = 1e-12
"""Share of the makespan by which what is put into a gap may be longer than it."""


class Reasons(Lazily):
    """A reason for each cluster of a plan for one call.

    Each `Choice` holds the rest of the plan as it is: see `Elsewhere`. `shortest`: nothing that was tried is
    shorter. `others` says what the race found when all clusters are on one device.
    """

    def __init__(self, costed: CostedGraph, timing: Timing, policy: str, shortest: bool, others: str) -> None:
        super().__init__(cluster.name for cluster in costed.clusters)
        self.costed, self.timing = costed, timing
        self.policy, self.shortest, self.others = policy, shortest, others

    @cached_property
    def elsewhere(self) -> Elsewhere:
        """The alternatives of each cluster on other devices."""
        return Elsewhere(Instance(self.costed), self.timing)

    @cached_property
    def alone(self) -> bool:
        """True if all is on one device."""
        return len({step.device for step in self.timing.placed}) == 1

    def work_out(self, r: int) -> Reason:
        """The reason of cluster `r`."""
        own = self.elsewhere.own[r]
        arrivals = self.elsewhere.ways(r)
        choices = tuple(self._choice(r, arrival) for arrival in arrivals)
        return Reason(own.cluster, self._sentence(r, own, choices), choices)

    def _choice(self, r: int, way: _Arrival) -> Choice:
        instance, own = self.elsewhere.instance, self.elsewhere.own[r]
        device = instance.devices[way.device]
        if device == own.device:
            return Choice(device, way.arrives, own.start, own.end, "chosen")
        if way.device not in instance.allowed[r]:
            return Choice(device, way.arrives, 0.0, None, self._barred(r, way.device))
        if way.end is None:
            return Choice(device, 0.0, 0.0, None, f"no link brings its inputs to {device}")
        lacks = self._lacks(r, way)
        if lacks:
            return Choice(device, way.arrives, way.start, None, lacks)
        return Choice(device, way.arrives, way.start, way.end)

    def _barred(self, r: int, d: int) -> str:
        """Reason why cluster `r` cannot be on device number `d`."""
        instance = self.elsewhere.instance
        unable = self._unable(r, d)
        if unable is None:
            return f"no links bring all its values to and from {instance.devices[d]}"
        if unable == r:
            return f"it cannot run on {instance.devices[d]}"
        return f"{instance.names[unable]}, with which it shares a device, cannot run on {instance.devices[d]}"

    def _unable(self, r: int, d: int) -> int | None:
        """The cluster itself, or else one that must be where it is, that cannot run on device number `d`."""
        instance = self.elsewhere.instance
        together = instance.members[instance.group[r]] if instance.group[r] >= 0 else ()
        clusters = instance.costed.clusters
        return next((m for m in (r, *together) if clusters[m].seconds[d] is None), None)

    def _lacks(self, r: int, way: _Arrival) -> str:
        """Clause on the memory that a device lacks for a cluster, beside what it holds meanwhile in any case; empty if
        none."""
        instance, d = self.elsewhere.instance, way.device
        cap = instance.caps[d]
        if cap is None:
            return ""
        steps = self.timing.memory[d].steps
        times = [time for time, _ in steps]
        first = max(0, bisect_right(times, way.start) - 1)
        held = max((level for _, level in steps[first : bisect_left(times, way.end or 0.0)]), default=0)
        here = dict(instance.given[d])
        for other, kept in enumerate(instance.kept):
            if kept and self.elsewhere.device[other] == d:
                here.update(kept)
        state = sum(nbytes for storage, nbytes in instance.kept[r] if storage not in here)
        brought = [v for v in instance.reads[r] if d not in self.elsewhere.there[self.elsewhere.root[v]]]
        needs = state + instance.workspace[r] + sum(instance.bytes[v] for v in (*brought, *instance.makes[r]))
        if held + needs <= cap:
            return ""
        return (
            f"no room on {instance.devices[d]}: {size(held)} of {size(cap)} are held, it takes {size(needs)}"
        )

    def _sentence(self, r: int, own: Placed, choices: Sequence[Choice]) -> str:
        instance = self.elsewhere.instance
        if len(instance.devices) == 1:
            return f"{own.device} is the only device there is."
        if own.cluster in self.elsewhere.original:
            return self._copied(own)
        if len(instance.allowed[r]) == 1:
            return f"It can only run on {own.device}: {self._bound(r)}."
        if self.alone and self.others:
            return f"Everything is on {own.device}: {self.others}."
        if instance.group[r] >= 0 and len(instance.members[instance.group[r]]) > 1:
            together = f" It shares {own.device} with the rest of its group."
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
        rival = instance.devices[d]
        if end > own.end + NEGLIGIBLE:
            text = f"It ends first on {own.device}, {seconds(end - own.end)} before it would on {rival}."
        elif end >= own.end - NEGLIGIBLE:
            text = f"It would end no sooner on {rival}."
        else:
            sooner = f"on {rival} it would itself end {seconds(own.end - end)} sooner"
            text = self._despite(r, d, end, sooner, own.device)
        return text + together

    def _despite(self, r: int, d: int, end: float, sooner: str, device: str) -> str:
        """Why a cluster is not where it would end sooner: who reads its results would have them later, if so."""
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
        """Reason why a cluster can be on one device alone."""
        instance = self.elsewhere.instance
        costed = instance.costed
        task = costed.graph.task[costed.clusters[r].tasks[0]]
        if task.home:
            return "it must run where the call comes from"
        barred = [self._unable(r, d) for d in range(len(instance.devices)) if d != instance.allowed[r][0]]
        if None in barred:
            return "no links bring all its values to and from another device that can run it"
        other = next((m for m in barred if m != r), None)
        if other is not None:
            return f"it shares a device with {instance.names[other]}, which leaves no other"
        if all(
            s is None for d, s in enumerate(costed.cost[task.name].seconds) if d != instance.allowed[r][0]
        ):
            return "no other device can run it, or its pin says so"
        return "a pin, or what it shares a device with, says so"

    def _copied(self, own: Placed) -> str:
        first, comes = self.elsewhere.instead(own.cluster)
        text = f"It is {first.cluster} computed again, so that its result need not come from {first.device}"
        return text + (f", {seconds(comes - own.end)} later." if comes > own.end else ".")


@dataclass(frozen=True, slots=True)
class _Arrival:
    """Estimate for a cluster on device number `device`, in seconds: arrival of its inputs, its start and end (None: it
    cannot run there, or its inputs have no way)."""

    device: int
    arrives: float
    start: float
    end: float | None


class Elsewhere:
    """A plan in numbers, to ask what one cluster could do elsewhere.

    Values that are on a device in the plan are read when they came; others are brought by transfers of their own, one
    after the other, each in the first gap of its queue and wire that has room for it, where the transfers that the
    cluster alone needs where it is now have gone. The cluster takes the first gap of a lane, or of as many as it is
    quickest with, that has room for it. The host's dispatch and memory are not looked at.
    """

    def __init__(self, instance: Instance, timing: Timing) -> None:
        self.instance = instance
        index, value = instance.costed.index, instance.value
        self.original = dict(instance.costed.again)
        place = {step.cluster: step for step in timing.placed}
        self.own = [place[name] for name in instance.names]
        self.device = [index[step.device] for step in self.own]
        # A value and its copies are one: whoever reads one could read another.
        self.root = [value.get(self.original.get(name, name), v) for v, name in enumerate(instance.values)]
        self.there: list[dict[int, float]] = [{home: 0.0} if home >= 0 else {} for home in instance.home]
        for r, step in enumerate(self.own):
            for v in instance.makes[r]:
                self.there[self.root[v]][self.device[r]] = step.end
        hops = {(hop.src, hop.dst): hop for row in instance.route for way in row for hop in way or ()}
        self.busy: dict[tuple[str, int], list[tuple[float, float]]] = {}
        self.came: dict[tuple[int, int], tuple[Hop, tuple[float, float]]] = {}
        for t in timing.transfers:
            hop = hops[index[t.src], index[t.dst]]
            known = self.there[self.root[value[t.value]]]
            known[hop.dst] = min(t.end, known.get(hop.dst, math.inf))
            self.came[value[t.value], hop.dst] = hop, (t.start, t.end)
            for key in _keys(hop):
                self.busy.setdefault(key, []).append((t.start, t.end))
        self.rounding = ROUNDING * timing.makespan
        self.shared = {key: Slots(taken) for key, taken in self.busy.items()}
        lanes: dict[str, list[tuple[float, float]]] = {
            name: [] for names in instance.lane_names for name in names
        }
        for step in timing.placed:
            for lane in step.lanes:
                lanes[lane].append((step.start, step.end))
        self.lanes = [[Slots(lanes[name]) for name in names] for names in instance.lane_names]

    def ways(self, r: int) -> list[_Arrival]:
        """Estimates for cluster `r` on each device; on its own, the times of the plan."""
        shared = self._shared(r)
        return [self._on(r, d, shared) for d in range(len(self.instance.devices))]

    def _shared(self, r: int) -> dict[tuple[str, int], Slots]:
        """The queues and wires without the transfers that bring what this cluster alone reads where it is."""
        instance, d = self.instance, self.device[r]
        freed: dict[tuple[str, int], list[tuple[float, float]]] = {}
        for v in instance.reads[r]:
            others = any(other != r and self.device[other] == d for other in instance.readers[v])
            if (v, d) not in self.came or others or d in instance.deliver[v] or instance.carry[v]:
                continue
            hop, taken = self.came[v, d]
            for key in _keys(hop):
                freed.setdefault(key, []).append(taken)
        left = {
            key: Slots(span for span in self.busy[key] if span not in gone) for key, gone in freed.items()
        }
        return self.shared | left

    def _on(self, r: int, d: int, shared: dict[tuple[str, int], Slots]) -> _Arrival:
        instance, own = self.instance, self.own[r]
        makers = {instance.maker[v] for v in instance.reads[r]}
        arrives = max((self.own[p].end for p in instance.before[r] if p not in makers), default=0.0)
        if d == self.device[r]:
            read = (self.there[self.root[v]].get(d, 0.0) for v in instance.reads[r])
            return _Arrival(d, max([arrives, *read]), own.start, own.end)
        coming = []
        for v in instance.reads[r]:
            known = self.there[self.root[v]]
            if d in known:
                arrives = max(arrives, known[d])
            else:
                source = next(iter(known))
                coming.append((known[source], v, source))
        after: dict[tuple[str, int], float] = {}
        for _, v, source in sorted(coming):
            hops = instance.route[source][d]
            if hops is None:
                return _Arrival(d, 0.0, 0.0, None)
            known = self.there[self.root[v]]
            at = known[source]
            for hop in hops:
                if hop.dst in known:
                    at = known[hop.dst]
                    continue
                keys = _keys(hop)
                took = hop.seconds(instance.bytes[v])
                ready = max([at, *(after.get(key, 0.0) for key in keys)])
                queues = [shared[key] for key in keys if key in shared]
                at = together(queues, len(queues), took - self.rounding, ready)[0] + took
                after.update(dict.fromkeys(keys, at))
            arrives = max(arrives, at)
        if d not in instance.allowed[r]:
            return _Arrival(d, arrives, arrives, None)
        return self._best(r, d, arrives)

    def _best(self, r: int, d: int, arrives: float) -> _Arrival:
        found = []
        for count, took in self.instance.modes.get((r, d), ((1, self.instance.seconds[r][d]),)):
            start, _ = together(self.lanes[d], count, took - self.rounding, arrives)
            found.append((start + took, start))
        end, start = min(found)
        return _Arrival(d, arrives, start, end)

    def delayed(self, r: int, d: int, end: float) -> tuple[str, float]:
        """Who would have what cluster `r` makes later by most, were it to end at `end` on device `d`, and by how many
        seconds, on idle wires."""
        instance = self.instance
        worst = ("", 0.0)
        for v in instance.makes[r]:
            known = self.there[self.root[v]]
            wanted = [(instance.names[reader], self.device[reader]) for reader in instance.readers[v]]
            wanted += [(f"{instance.devices[e]}, where it must come,", e) for e in instance.deliver[v]]
            for reader, e in wanted:
                late = end + instance.travel(v, d, e) - known.get(e, math.inf)
                if late > worst[1]:
                    worst = reader, late
        return worst

    def instead(self, copy: str) -> tuple[Placed, float]:
        """The original of a cluster that is computed again, and when its results could come to where the copy is."""
        instance = self.instance
        r = instance.number[copy]
        first = instance.number[self.original[copy]]
        values = [self.root[v] for v in instance.makes[r]]
        comes = [self.own[first].end + instance.travel(v, self.device[first], self.device[r]) for v in values]
        return self.own[first], max(comes, default=0.0)


def _keys(hop: Hop) -> list[tuple[str, int]]:
    """The queue and the wire that a hop waits for."""
    return [(kind, number) for kind, number in (("queue", hop.lane), ("wire", hop.wire)) if number >= 0]
