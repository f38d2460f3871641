"""Transfers in the model, where each value reaches a device at most once, by the route from its producer; and memory
caps: bytes in use on each device over time, counted as in `liveness`.

Views and changes in place are ignored, so that the model never forbids what fits; `simulate` and `liveness` check its
solutions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from .model import Literal, Model

Hops = dict[tuple[int, int, int, int], list[tuple[int, int]]]
"""Hops that can bring a value to a device: (units, copy queue, wire, intermediate device or -1) → the (source, target)
pairs that use it."""


class Transfers:
    """Transfer variables: `start[v, d]` is the start of the last hop of value v to device d, if any; then one of
    `brings[v, d]` (literal, source of the hop or -1, queue, units) holds. For a part of the graph, only values between
    its clusters."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.start: dict[tuple[int, int], Any] = {}
        self.brings: dict[tuple[int, int], list[tuple[Literal, int, int, int]]] = {}
        instance = model.instance
        none: list[list[int]] = [[] for _ in instance.values]
        self.deliver = instance.deliver if model.whole else none
        self.carry = instance.carry if model.whole else none
        first = instance.clusters
        self.played = {(v, hop.dst): step for step, (v, hop) in enumerate(model.best.moves, first)}
        for v, maker in enumerate(instance.maker):
            if model.whole or (maker >= 0 and model.on[maker] and instance.values[v] not in instance.holders):
                self._value(v)

    def _value(self, v: int) -> None:
        model, instance = self.model, self.model.instance
        maker = instance.maker[v]
        sources: Mapping[int, Literal] = model.on[maker] if maker >= 0 else {instance.home[v]: True}
        wanted = self._wanted(v)
        hops: dict[int, Hops] = {}
        for source, there in sources.items():
            for target, wish in wanted.items():
                if target == source:
                    continue
                route = instance.route[source][target]
                if route is None:
                    model.cp.add_bool_or(model.literals.no(there), model.literals.no(wish))
                    continue
                for hop in route:
                    via = -1 if hop.src == source else hop.src
                    size = model.units.floor(hop.seconds(instance.bytes[v]))
                    ways = hops.setdefault(hop.dst, {})
                    ways.setdefault((size, hop.lane, hop.wire, via), []).append((source, target))
        for target, ways in hops.items():
            self._bring(v, target, ways, sources, wanted)
        for target in hops:
            for when, via, _, _ in self.brings[v, target]:
                for first, _, _, size in self.brings[v, via] if via >= 0 else ():
                    later = self.start[v, target] >= self.start[v, via] + size
                    self.enforce(later, when, first)

    def _wanted(self, v: int) -> dict[int, Literal]:
        """Return, for each device that may need a value, the literal that it does, without resident state."""
        model, instance = self.model, self.model.instance
        found: dict[int, list[Literal]] = {}
        for r in (*instance.readers[v], *self.carry[v]):
            for d, here in model.on[r].items():
                found.setdefault(d, []).append(here)
        for d in self.deliver[v]:
            found.setdefault(d, []).append(True)
        holders = [model.on[r] for r in instance.holders.get(instance.values[v], ())]
        wanted = {}
        for d, wishes in found.items():
            held = model.literals.any([row[d] for row in holders if d in row])
            wanted[d] = model.literals.all(
                [model.literals.any(wishes, f"want {v} {d}"), model.literals.no(held)]
            )
        return {d: wish for d, wish in wanted.items() if wish is not False}

    def _bring(
        self, v: int, target: int, ways: Hops, sources: Mapping[int, Literal], wanted: Mapping[int, Literal]
    ) -> None:
        model, instance, units = self.model, self.model.instance, self.model.units
        maker, step = instance.maker[v], self.played.get((v, target))
        start = model.cp.new_int_var(0, model.horizon, f"send {v} {target}")
        if step is not None:
            model.cp.add_hint(start, units.floor(model.best.start[step]))
        elif maker >= 0:
            model.cp.add_hint(start, units.floor(model.best.end[maker]))
        if maker >= 0:
            model.cp.add(start >= model.end[maker])
        self.start[v, target] = start
        self.brings[v, target] = found = []
        readers = [r for r in instance.readers[v] if target in model.on[r]]
        last = target in self.deliver[v] or bool(self.carry[v])
        head, tail = self._around(v, target, sources, readers, last)
        for (size, lane, wire, via), pairs in ways.items():
            when = self._when(pairs, sources, wanted)
            found.append((when, via, lane, size))
            for kind, number in (("queue", lane), ("wire", wire)):
                if number >= 0:
                    model.use((kind, number), start, size, when, 1, head, tail)
            for r in readers:
                self.enforce(model.start[r] >= start + size, when, model.on[r][target])
            if last or tail:
                self.enforce(model.makespan >= start + size + tail, when)

    def _around(
        self, v: int, target: int, sources: Mapping[int, Literal], readers: list[int], last: bool
    ) -> tuple[int, int]:
        """Return the least units before and after a transfer, over all its sources and readers."""
        model, ways, maker = self.model, self.model.ways, self.model.instance.maker[v]
        head = 0.0
        if maker >= 0:
            head = min(ways.head[maker][e] + model.instance.seconds[maker][e] for e in sources if e != target)
        tail = 0.0
        if readers and not last:
            tail = min(model.instance.seconds[r][target] + ways.tail[r][target] for r in readers)
        passes = any(hop.src == target for row in model.instance.route for hops in row for hop in hops or ())
        indirect = any(len(hops or ()) > 1 for row in model.instance.route for hops in row)
        return model.units.floor(head), 0 if passes and indirect else model.units.floor(tail)

    def _when(
        self, pairs: list[tuple[int, int]], sources: Mapping[int, Literal], wanted: Mapping[int, Literal]
    ) -> Literal:
        """Return a literal that is true if the value is on a source and wanted on the paired device."""
        literals = self.model.literals
        wishes: dict[int, list[int]] = {}
        for source, target in pairs:
            wishes.setdefault(source, []).append(target)
        alike: dict[tuple[int, ...], list[int]] = {}
        for source, targets in wishes.items():
            alike.setdefault(tuple(targets), []).append(source)
        found = []
        for paired, some in alike.items():
            rest = [there for e, there in sources.items() if e not in some]
            # The negation of the other sources makes no new variable where there is one other.
            here = literals.no(rest[0]) if len(rest) == 1 else literals.any([sources[e] for e in some])
            if not rest:
                here = True
            found.append(literals.all([here, literals.any([wanted[d] for d in paired])]))
        return literals.any(found)

    def enforce(self, constraint: Any, *literals: Literal) -> None:
        """Enforce a constraint if all literals hold."""
        if False not in [literal for literal in literals if isinstance(literal, bool)]:
            self.model.cp.add(constraint).only_enforce_if(
                [literal for literal in literals if not isinstance(literal, bool)]
            )


MOST = 2**52
"""Limit on the sum of sizes given to the solver, which must stay exact integers."""


def cap(model: Model, transfers: Transfers) -> None:
    """Constrain every device that could exceed its cap."""
    instance = model.instance
    for d, limit in enumerate(instance.caps):
        if limit is None:
            continue
        held = _Held(model, transfers, d)
        held.state()
        held.scratch()
        for v in range(len(instance.values)):
            held.value(v)
        free = limit - (0 if instance.costed.consumed else sum(instance.given[d].values()))
        if sum(held.sizes) > free:
            # The solver counts in 64 bits. Sizes rounded down and room rounded up rule nothing out.
            unit = max(1.0, sum(held.sizes) / MOST)
            sizes = [math.floor(size / unit) for size in held.sizes]
            model.cp.add_cumulative(held.intervals, sizes, max(0, math.ceil(free / unit)))


class _Held:
    """Memory demand on one device: `intervals` and their `sizes` in bytes."""

    def __init__(self, model: Model, transfers: Transfers, device: int) -> None:
        self.model, self.transfers, self.device = model, transfers, device
        self.intervals: list[Any] = []
        self.sizes: list[int] = []

    def state(self) -> None:
        """Add resident state, for the whole schedule, if it is read."""
        instance, d = self.model.instance, self.device
        keepers: dict[str, list[tuple[int, Literal]]] = {}
        for r, kept in enumerate(instance.kept):
            for storage, nbytes in kept:
                if storage not in instance.given[d] and d in self.model.on[r]:
                    keepers.setdefault(storage, []).append((nbytes, self.model.on[r][d]))
        for storage, some in keepers.items():
            here = self.model.literals.any([literal for _, literal in some], f"{storage} on {d}")
            self._add(0, self.model.horizon, self.model.horizon, here, min(nbytes for nbytes, _ in some))

    def scratch(self) -> None:
        """Add the workspace of each cluster while it runs."""
        model = self.model
        for r, nbytes in enumerate(model.instance.workspace):
            if nbytes and self.device in model.on[r]:
                for _, size, when in model.modes[r, self.device]:
                    self._add(model.start[r], size, model.start[r] + size, when, nbytes)

    def value(self, v: int) -> None:
        """Add a value, from its creation or transfer to its last use on this device."""
        model, instance, d = self.model, self.model.instance, self.device
        name, nbytes, maker = instance.values[v], instance.bytes[v], instance.maker[v]
        deliver = () if instance.costed.consumed else instance.deliver[v]
        if not nbytes or instance.costed.graph.value[name].storage != name:
            return
        delivered = any(value == name and not device for value, device in instance.costed.deliver)
        if maker >= 0 and d in model.on[maker]:
            start, first, here = model.start[maker], model.end[maker], model.on[maker][d]
            self._alive(v, start, here, [(first, here)], d in deliver or delivered)
        if maker < 0 and instance.home[v] == d and instance.costed.consumed:
            self._alive(v, 0, True, [], d in deliver or delivered)
        for when, _, _, size in self.transfers.brings.get((v, d), ()):
            start = self.transfers.start[v, d]
            forever = d in deliver or instance.stays[v]
            self._alive(v, start, when, [(start + size, when)], forever)

    def _alive(
        self, v: int, start: Any, here: Literal, ends: Iterable[tuple[Any, Literal]], forever: bool
    ) -> None:
        """Hold a value on this device, if it is `here`, from `start` to the last of `ends` and of its uses.

        Every end depends on its step: an absent transfer is bounded only by its producer, and an end within the
        horizon would force that to end too early.
        """
        model, instance, d = self.model, self.model.instance, self.device
        if here is False:
            return
        end = model.cp.new_int_var(0, model.horizon, f"last use of {v} on {d}")
        size = model.cp.new_int_var(0, model.horizon, f"{v} in use on {d}")
        uses = [*ends, *((model.end[r], model.on[r][d]) for r in instance.readers[v] if d in model.on[r])]
        for (value, target), brings in self.transfers.brings.items():
            if value == v and target != d:
                sent = self.transfers.start[v, target]
                maker = instance.maker[v]
                for when, via, _, taken in brings:
                    # Straight from its source, or by way of this device.
                    if via == d or (via < 0 and (maker < 0 or d in model.on[maker])):
                        origin = True if via == d or maker < 0 else model.on[maker][d]
                        uses.append((sent + taken, model.literals.all([when, origin])))
        for use, when in uses:
            if when is True:
                model.cp.add(end >= use)
            elif when is not False:
                model.cp.add(end >= use).only_enforce_if(when)
        if forever:
            model.cp.add(end == model.horizon)
        self._add(start, size, end, here, instance.bytes[v])

    def _add(self, start: Any, size: Any, end: Any, here: Literal, nbytes: int) -> None:
        if here is not False:
            cp = self.model.cp
            self.intervals.append(cp.new_optional_interval_var(start, size, end, here, ""))
            # Graph files may have fractions of bytes and the solver has not.
            self.sizes.append(math.floor(nbytes))
