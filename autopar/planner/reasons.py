"""Reasons for the placement of each cluster, and its end on other devices, computed from the plan on demand."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cache, cached_property
from typing import Any

from ..ir.plan import Choice, Plan, Reason
from ..ir.timeline import Placed
from ..system.text import seconds, size
from .model.instance import Hop, Instance
from .model.slots import Slots, find_all

NEGLIGIBLE = 1e-9
"""Difference in seconds that is too small for a reason."""
ROUNDING = 1e-12
"""Share of the makespan by which an inserted step may exceed its gap."""


class LazyReasons(Sequence[Reason]):
    """Reasons of the `clusters`, in order, each computed on first access by the function that `begin`
    returns."""

    def __init__(self, clusters: Iterable[str], begin: Callable[[], Callable[[int], Reason]]) -> None:
        self.clusters, self._begin = tuple(clusters), begin

    @cached_property
    def _reason(self) -> Callable[[int], Reason]:
        return cache(self._begin())

    def __len__(self) -> int:
        return len(self.clusters)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple(self[r] for r in range(*index.indices(len(self))))
        return self._reason(range(len(self))[index])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


def reasons(timing: Plan, shortest: bool, others: str) -> LazyReasons:
    """Return a reason for each cluster of a plan for one call.

    Each `Choice` leaves the rest of the plan unchanged: see `_Elsewhere`. `shortest`: no tried plan is shorter.
    `others`: results of the race for single devices.
    """
    names = (cluster.name for cluster in timing.costed.clusters)
    return LazyReasons(names, lambda: _Elsewhere(timing, shortest, others).reason)


class _Elsewhere:
    """Arrays of a plan, to estimate one cluster on another device.

    Values that the plan has on a device are read at their arrival. Others are sent one after the other, each
    in the first sufficient gap of its queue and bus, from which the transfers needed only by the cluster's
    present place are removed. The cluster takes the first sufficient gap of a lane. Dispatch is ignored; a
    device that lacks memory gets no end.
    """

    def __init__(self, timing: Plan, shortest: bool, others: str) -> None:
        self.instance = instance = Instance(timing.costed)
        self.policy, self.memory = timing.policy, timing.memory
        self.shortest, self.others = shortest, others
        index, value = instance.costed.index, instance.value
        place = {step.cluster: step for step in timing.placed}
        self.own = [place[name] for name in instance.names]
        self.device = [index[step.device] for step in self.own]
        self.there: list[dict[int, float]] = [{home: 0.0} if home >= 0 else {} for home in instance.home]
        for r, step in enumerate(self.own):
            for v in instance.makes[r]:
                self.there[v][self.device[r]] = step.end
        self.busy: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
        self.came: dict[tuple[int, int], tuple[Hop, tuple[float, float]]] = {}
        for t in timing.transfers:
            hop = instance.hops[index[t.src], index[t.dst]]
            known = self.there[value[t.value]]
            known[hop.dst] = min(t.end, known.get(hop.dst, math.inf))
            self.came[value[t.value], hop.dst] = hop, (t.start, t.end)
            for key in _keys(hop):
                self.busy[key].append((t.start, t.end))
        self.rounding = ROUNDING * timing.makespan
        self.shared = {key: Slots(taken) for key, taken in self.busy.items()}
        lanes: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for step in timing.placed:
            lanes[step.lane].append((step.start, step.end))
        self.lanes = [[Slots(lanes[name]) for name in names] for names in instance.lane_names]

    def reason(self, r: int) -> Reason:
        """Return the reason of cluster `r`."""
        own, shared = self.own[r], self._shared(r)
        choices = tuple(self._choice(r, d, shared) for d in range(len(self.instance.devices)))
        return Reason(own.cluster, self._sentence(r, own, choices), choices)

    def _choice(self, r: int, d: int, shared: dict[tuple[str, int], Slots]) -> Choice:
        """Estimate cluster `r` on device number `d`; on its own device, the times of the plan."""
        instance, own, device = self.instance, self.own[r], self.instance.devices[d]
        makers = {instance.maker[v] for v in instance.reads[r]}
        arrives = max((self.own[p].end for p in instance.before[r] if p not in makers), default=0.0)
        if d == self.device[r]:
            read = (self.there[v].get(d, 0.0) for v in instance.reads[r])
            return Choice(device, max([arrives, *read]), own.start, own.end, "chosen")
        brought = self._brought(r, d, shared)
        arrives = 0.0 if brought is None else max(arrives, brought)
        if d not in instance.allowed[r]:
            return Choice(device, arrives, 0.0, None, self._barred(r, d))
        if brought is None:
            return Choice(device, arrives, 0.0, None, f"no link brings its inputs to {device}")
        took = instance.seconds[r][d]
        start = min(lane.find(arrives, took - self.rounding) for lane in self.lanes[d])
        end = start + took
        lacks = self._lacks(r, d, start, end)
        return Choice(device, arrives, start, None if lacks else end, lacks)

    def _barred(self, r: int, d: int) -> str:
        """Return the reason why cluster `r` cannot be on device number `d`."""
        instance = self.instance
        unable = self._unable(r, d)
        if unable is None:
            return f"no links bring all its values to and from {instance.devices[d]}"
        if unable == r:
            return f"it cannot run on {instance.devices[d]}"
        return f"{instance.names[unable]}, with which it shares a device, cannot run on {instance.devices[d]}"

    def _unable(self, r: int, d: int) -> int | None:
        """Return the cluster that cannot run on device number `d`: `r`, or one that must be with it; None if all
        can."""
        clusters = self.instance.costed.clusters
        return next((m for m in (r, *self.instance.together(r)) if clusters[m].seconds[d] is None), None)

    def _lacks(self, r: int, d: int, start: float, end: float) -> str:
        """Return a clause on the memory that a device lacks for a cluster, besides what it holds anyway; ""
        if none."""
        instance, cap = self.instance, self.instance.caps[d]
        if cap is None:
            return ""
        steps = self.memory[d].steps
        times = [time for time, _ in steps]
        first = max(0, bisect_right(times, start) - 1)
        held = max((level for _, level in steps[first : bisect_left(times, end)]), default=0)
        here = dict(instance.given[d])
        for other, kept in enumerate(instance.kept):
            if kept and self.device[other] == d:
                here.update(kept)
        state = sum(nbytes for storage, nbytes in instance.kept[r] if storage not in here)
        brought = [v for v in instance.reads[r] if d not in self.there[v]]
        needs = state + instance.workspace[r] + sum(instance.bytes[v] for v in (*brought, *instance.makes[r]))
        if held + needs <= cap:
            return ""
        return (
            f"no room on {instance.devices[d]}: {size(held)} of {size(cap)} are held, it takes {size(needs)}"
        )

    def _sentence(self, r: int, own: Placed, choices: Sequence[Choice]) -> str:
        instance = self.instance
        if len(instance.devices) == 1:
            return f"{own.device} is the only device there is."
        if len(instance.allowed[r]) == 1:
            return f"It can only run on {own.device}: {self._bound(r)}."
        if len({*self.device}) == 1 and self.others:
            return f"Everything is on {own.device}: {self.others}."
        grouped = len(instance.together(r)) > 1
        together = f" It shares {own.device} with the rest of its group." if grouped else ""
        rivals = [
            (choice.end, d)
            for d, choice in enumerate(choices)
            if choice.end is not None and choice.device != own.device
        ]
        if not rivals:
            lacks = (choice.why for choice in choices if choice.end is None)
            why = next((why for why in lacks if why.startswith("no ")), "")
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
        """Return the reason why a cluster is not where it would end sooner, such as a later arrival at its
        readers."""
        reader, late = self._delayed(r, d, end)
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
        """Return the reason why a cluster can be on only one device."""
        instance = self.instance
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

    def _shared(self, r: int) -> dict[tuple[str, int], Slots]:
        """Return the queues and buses without the transfers needed only by this cluster where it is."""
        instance, d = self.instance, self.device[r]
        freed: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
        for v in instance.reads[r]:
            others = any(other != r and self.device[other] == d for other in instance.readers[v])
            if (v, d) not in self.came or others or d in instance.deliver[v] or instance.carry[v]:
                continue
            hop, taken = self.came[v, d]
            for key in _keys(hop):
                freed[key].append(taken)
        left = {
            key: Slots(span for span in self.busy[key] if span not in gone) for key, gone in freed.items()
        }
        return self.shared | left

    def _brought(self, r: int, d: int, shared: dict[tuple[str, int], Slots]) -> float | None:
        """Return when all inputs of a cluster could be on a device; None without a route."""
        instance, arrives = self.instance, 0.0
        coming = []
        for v in instance.reads[r]:
            known = self.there[v]
            if d in known:
                arrives = max(arrives, known[d])
            else:
                source = next(iter(known))
                coming.append((known[source], v, source))
        after: dict[tuple[str, int], float] = {}
        for at, v, source in sorted(coming):
            hops = instance.route[source][d]
            if hops is None:
                return None
            known = self.there[v]
            for hop in hops:
                if hop.dst in known:
                    at = known[hop.dst]
                    continue
                keys = _keys(hop)
                took = hop.seconds(instance.bytes[v])
                ready = max([at, *(after.get(key, 0.0) for key in keys)])
                queues = [shared[key] for key in keys if key in shared]
                at = find_all(queues, took - self.rounding, ready) + took
                after.update(dict.fromkeys(keys, at))
            arrives = max(arrives, at)
        return arrives

    def _delayed(self, r: int, d: int, end: float) -> tuple[str, float]:
        """Return the reader that gets outputs of `r` latest, relative to the plan, if `r` ended at `end` on
        `d`; and its delay in seconds on idle buses."""
        instance = self.instance
        worst = ("", 0.0)
        for v in instance.makes[r]:
            known = self.there[v]
            wanted = [(instance.names[reader], self.device[reader]) for reader in instance.readers[v]]
            wanted += [(f"{instance.devices[e]}, where it must come,", e) for e in instance.deliver[v]]
            for reader, e in wanted:
                late = end + instance.travel(v, d, e) - known.get(e, math.inf)
                if late > worst[1]:
                    worst = reader, late
        return worst


def _keys(hop: Hop) -> list[tuple[str, int]]:
    """Return the queue and the bus that a hop waits for."""
    return [(kind, number) for kind, number in (("queue", hop.lane), ("wire", hop.wire)) if number >= 0]
