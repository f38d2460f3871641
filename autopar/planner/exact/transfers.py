"""Transfers in the model: each value reaches a device at most once, by the route from its producer."""

from __future__ import annotations

from collections.abc import Mapping
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
