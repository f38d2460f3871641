"""Reasons for the placement of each cluster, and its end on other devices, computed from a plan on demand."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import TypeAlias

from ..ir.plan import Choice, Plan, Reason
from ..system.text import seconds, size
from .model.instance import Hop, Instance
from .model.slots import Slots, find_all

NEGLIGIBLE = 1e-9
"""Difference in seconds that is too small for a reason."""
ROUNDING = 1e-12
"""Share of the makespan by which an inserted step may exceed its gap."""


_Span: TypeAlias = tuple[float, float]


class Reasons(Mapping[str, Reason]):
    """The reason for the placement of each cluster of a plan, by the cluster's name, computed on first access.

    Each `Choice` leaves the rest of the plan as it is. Inputs that the plan has on a device arrive as planned; others
    are sent one after the other, each in the first sufficient gap of its queue and bus, without the transfers that
    only the present place needs. The cluster takes the first sufficient gap of a lane. Dispatch is ignored. A device
    that lacks memory gets no end.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.instance = instance = Instance(plan.costed)
        index, value = instance.costed.index, instance.value
        self.number = {name: r for r, name in enumerate(instance.names)}
        self.steps = [plan.place[name] for name in instance.names]
        self.device = [index[step.device] for step in self.steps]
        self.there: list[dict[int, float]] = [{home: 0.0} if home >= 0 else {} for home in instance.home]
        for r, step in enumerate(self.steps):
            for v in instance.makes[r]:
                self.there[v][self.device[r]] = step.end
        self.sent: list[tuple[int, Hop, _Span]] = []
        for t in plan.transfers:
            v, hop = value[t.value], instance.hops[index[t.src], index[t.dst]]
            self.there[v][hop.dst] = min(t.end, self.there[v].get(hop.dst, math.inf))
            self.sent.append((v, hop, (t.start, t.end)))
        self.rounding = ROUNDING * plan.makespan
        busy: dict[str, list[_Span]] = defaultdict(list)
        for step in plan.placed:
            busy[step.lane].append((step.start, step.end))
        self.lanes = [[Slots(busy[name]) for name in names] for names in instance.lane_names]
        self.known: dict[str, Reason] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self.number)

    def __len__(self) -> int:
        return len(self.number)

    def __getitem__(self, cluster: str) -> Reason:
        if cluster not in self.known:
            r = self.number[cluster]
            choices = tuple(self._choice(r, d) for d in range(len(self.instance.devices)))
            self.known[cluster] = Reason(cluster, self._text(r, choices), choices)
        return self.known[cluster]

    def _choice(self, r: int, d: int) -> Choice:
        """Estimate cluster `r` on device number `d`; on its own device, the times of the plan."""
        instance, step, device = self.instance, self.steps[r], self.instance.devices[d]
        makers = {instance.maker[v] for v in instance.reads[r]}
        order = (self.steps[p].end for p in instance.before[r] if p not in makers)
        arrives = max([self._brought(r, d), *order])
        if d == self.device[r]:
            return Choice(device, arrives, step.start, step.end, "chosen")
        if d not in instance.allowed[r] or arrives == math.inf:
            return Choice(device, 0.0, 0.0, None, self._barred(r, d))
        took = instance.seconds[r][d]
        start = min(lane.find(arrives, took - self.rounding) for lane in self.lanes[d])
        lacks = self._lacks(r, d, start, start + took)
        return Choice(device, arrives, start, None if lacks else start + took, lacks)

    def _brought(self, r: int, d: int) -> float:
        """Return when all inputs of a cluster could be on a device; inf without a route."""
        instance, reads = self.instance, self.instance.reads[r]
        arrives = max((self.there[v].get(d, 0.0) for v in reads), default=0.0)
        missing = [v for v in reads if d not in self.there[v]]
        buses, sent = self._buses(r) if missing else {}, 0.0
        for end, v, source in sorted(
            next((end, v, src) for src, end in self.there[v].items()) for v in missing
        ):
            hops, sent = instance.route[source][d], max(sent, end)
            if hops is None:
                return math.inf
            for hop in hops:
                took = hop.seconds(instance.bytes[v])
                queues = [(buses[key], took - self.rounding) for key in _keys(hop) if key in buses]
                sent = find_all(queues, sent) + took
        return max(arrives, sent)

    def _buses(self, r: int) -> dict[tuple[str, int], Slots]:
        """Return the queues and buses without the transfers that only cluster `r` needs where it is."""
        instance, d = self.instance, self.device[r]
        others = {
            v for v in instance.reads[r] if any(o != r and self.device[o] == d for o in instance.readers[v])
        }
        others |= {v for v in instance.reads[r] if d in instance.deliver[v] or instance.carry[v]}
        busy: dict[tuple[str, int], list[_Span]] = defaultdict(list)
        for v, hop, span in self.sent:
            if hop.dst != d or v in others or v not in instance.reads[r]:
                for key in _keys(hop):
                    busy[key].append(span)
        return {key: Slots(spans) for key, spans in busy.items()}

    def _barred(self, r: int, d: int) -> str:
        """Return the reason why cluster `r` cannot be on device number `d`."""
        instance, device = self.instance, self.instance.devices[d]
        clusters = instance.costed.clusters
        unable = [m for m in (r, *instance.together(r)) if clusters[m].seconds[d] is None]
        if instance.costed.graph.task[clusters[r].tasks[0]].home:
            return "it must run where the call comes from"
        if not unable:
            return f"no links bring all its values to and from {device}"
        if unable[0] == r:
            return f"it cannot run on {device}, or a pin keeps it off"
        return f"{self._called(unable[0])}, with which it shares a device, cannot run on {device}"

    def _called(self, r: int) -> str:
        return self.plan.words.cluster(self.instance.names[r])

    def _lacks(self, r: int, d: int, start: float, end: float) -> str:
        """Return a clause on the memory that a device lacks for a cluster, besides what it holds anyway; "" if none."""
        instance, cap = self.instance, self.instance.caps[d]
        if cap is None:
            return ""
        steps = self.plan.memory[d].steps
        times = [time for time, _ in steps]
        first = max(0, bisect_right(times, start) - 1)
        held = max((level for _, level in steps[first : bisect_left(times, end)]), default=0)
        here = dict(instance.initial[d])
        for other, storages in enumerate(instance.resident):
            if self.device[other] == d:
                here.update(storages)
        needs = instance.workspace[r] + sum(n for storage, n in instance.resident[r] if storage not in here)
        needs += sum(instance.bytes[v] for v in instance.makes[r])
        needs += sum(instance.bytes[v] for v in instance.reads[r] if d not in self.there[v])
        if held + needs <= cap:
            return ""
        device = instance.devices[d]
        return f"no room on {device}: {size(held)} of {size(cap)} are held, it takes {size(needs)}"

    def _text(self, r: int, choices: tuple[Choice, ...]) -> str:
        """Return the cause of the placement of cluster `r` as a sentence, against the best other device."""
        here = choices[self.device[r]]
        others = [choice for choice in choices if choice is not here]
        if not others:
            return f"{here.device} is the only device there is."
        rivals = [
            (choice.end, d)
            for d, choice in enumerate(choices)
            if choice is not here and choice.end is not None
        ]
        if not rivals:
            why = min((choice.why for choice in others), key=lambda why: not why.startswith("no room"))
            return f"It can only run on {here.device}: {why}."
        d = min(rivals)[1]
        text = self._cause(here, choices[d]) or self._despite(r, d, choices[d])
        grouped = len(self.instance.together(r)) > 1
        return f"{text} It shares {here.device} with the rest of its group." if grouped else text

    def _cause(self, here: Choice, rival: Choice) -> str:
        """Return the main cause why a cluster would end no sooner on a rival device; "" if it would."""
        assert here.end is not None and rival.end is not None
        if rival.end < here.end - NEGLIGIBLE:
            return ""
        causes = (
            (rival.end - rival.free - (here.end - here.free), "It runs {} faster here than on {}."),
            (rival.arrives - here.arrives, "Its inputs are here {} before they could be on {}."),
            (
                rival.free - rival.arrives - (here.free - here.arrives),
                "It starts {} sooner here: {} is busy then.",
            ),
        )
        gain, text = max(causes, key=lambda cause: cause[0])
        if gain <= NEGLIGIBLE:
            return f"It would end no sooner on {rival.device}."
        return text.format(seconds(gain), rival.device)

    def _despite(self, r: int, d: int, rival: Choice) -> str:
        """Return the reason why a cluster is not where it would end sooner: a reader that gets its outputs later, on
        idle links, or nothing waits for it, or the policy."""
        assert rival.end is not None
        instance, step, gain = self.instance, self.steps[r], self.steps[r].end - rival.end
        readers: list[tuple[float, str]] = []
        for v in instance.makes[r]:
            wanted = [(self._called(reader), self.device[reader]) for reader in instance.readers[v]]
            wanted += [(f"{instance.devices[e]}, where it must come,", e) for e in instance.deliver[v]]
            for reader, e in wanted:
                late = rival.end + instance.travel(v, d, e) - self.there[v].get(e, math.inf)
                readers.append((late, reader))
        late, reader = max(readers, key=lambda each: each[0], default=(0.0, ""))
        sooner = f"On {rival.device} it would itself end {seconds(gain)} sooner"
        if late > NEGLIGIBLE:
            return f"{sooner}, but {reader} would have its result {seconds(late)} later."
        if self.plan.critical.slack[self.plan.critical.number[step.cluster]] >= gain:
            return f"{sooner}, but nothing waits for it."
        return f"{sooner}; the policy {self.plan.policy} has it on {step.device}."


def _keys(hop: Hop) -> list[tuple[str, int]]:
    """Return the queue and the bus that a hop waits for."""
    return [(kind, number) for kind, number in (("queue", hop.lane), ("wire", hop.wire)) if number >= 0]
