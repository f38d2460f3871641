"""Transfers in the model, where each value reaches a device at most once, by the route from its producer; and memory
caps: bytes in use on each device over time, counted as in `model/timing`.

Views and in-place changes are ignored, so the model never forbids a plan that fits; the simulation checks its
solutions.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from .model import Literal, Model

Hops = dict[tuple[int, int, int, int], list[tuple[int, int]]]
"""Hops that can bring a value to a device: (units, copy queue, bus, intermediate device or -1) → the (source,
target) pairs that use it."""
Held = tuple[Any, Any, Any, Literal, float]
"""Memory demand: start, size and end of an interval, whether there is one, and its bytes."""


def transfer(model: Model) -> None:
    """Add the transfers of all values; for a part of the graph, only of values between its clusters."""
    instance = model.instance
    played = {(v, hop.dst): step for step, (v, hop) in enumerate(model.best.moves, instance.clusters)}
    for v, maker in enumerate(instance.maker):
        if model.whole or (maker >= 0 and model.on[maker] and instance.values[v] not in instance.holders):
            _value(model, v, played)


def _value(model: Model, v: int, played: Mapping[tuple[int, int], int]) -> None:
    instance, maker = model.instance, model.instance.maker[v]
    deliver, carry = (instance.deliver[v], instance.carry[v]) if model.whole else ([], [])
    sources: Mapping[int, Literal] = model.on[maker] if maker >= 0 else {instance.home[v]: True}
    wanted = _wanted(model, v, deliver, carry)
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
                options = hops.setdefault(hop.dst, {})
                options.setdefault((size, hop.lane, hop.wire, via), []).append((source, target))
    for target, options in hops.items():
        _start(model, v, target, played)
        readers = [r for r in instance.readers[v] if target in model.on[r]]
        last = target in deliver or bool(carry)
        head, tail = _around(model, v, target, sources, readers, last)
        for (size, lane, wire, via), pairs in options.items():
            when = _when(model, pairs, sources, wanted)
            model.brings[v, target].append((when, via, lane, size))
            start = model.sent[v, target]
            for kind, number in (("queue", lane), ("wire", wire)):
                if number >= 0:
                    model.use((kind, number), start, size, when, 1, head, tail)
            for r in readers:
                model.enforce(model.start[r] >= start + size, when, model.on[r][target])
            if last or tail:
                model.enforce(model.makespan >= start + size + tail, when)
    for target in hops:
        for when, via, _, _ in model.brings[v, target]:
            for first, _, _, size in model.brings[v, via] if via >= 0 else ():
                model.enforce(model.sent[v, target] >= model.sent[v, via] + size, when, first)


def _wanted(model: Model, v: int, deliver: Sequence[int], carry: Sequence[int]) -> dict[int, Literal]:
    """Return a literal for each device that may need a value: it does, and holds no replica of it."""
    instance, literals = model.instance, model.literals
    found: dict[int, list[Literal]] = {}
    for r in (*instance.readers[v], *carry):
        for d, here in model.on[r].items():
            found.setdefault(d, []).append(here)
    for d in deliver:
        found.setdefault(d, []).append(True)
    holders = [model.on[r] for r in instance.holders.get(instance.values[v], ())]
    wanted = {}
    for d, wishes in found.items():
        held = literals.any([row[d] for row in holders if d in row])
        wanted[d] = literals.all([literals.any(wishes, f"want {v} {d}"), literals.no(held)])
    return {d: wish for d, wish in wanted.items() if wish is not False}


def _start(model: Model, v: int, target: int, played: Mapping[tuple[int, int], int]) -> None:
    """Add the start of the last hop of a value to a device."""
    maker, step = model.instance.maker[v], played.get((v, target))
    start = model.cp.new_int_var(0, model.horizon, f"send {v} {target}")
    if step is not None:
        model.cp.add_hint(start, model.units.floor(model.best.start[step]))
    elif maker >= 0:
        model.cp.add_hint(start, model.units.floor(model.best.end[maker]))
    if maker >= 0:
        model.cp.add(start >= model.end[maker])
    model.sent[v, target], model.brings[v, target] = start, []


def _around(
    model: Model, v: int, target: int, sources: Collection[int], readers: Sequence[int], last: bool
) -> tuple[int, int]:
    """Return the least units before and after a transfer, over all its sources and readers."""
    instance, paths, maker = model.instance, model.paths, model.instance.maker[v]
    head = 0.0
    if maker >= 0:
        head = min(paths.head[maker][e] + instance.seconds[maker][e] for e in sources if e != target)
    tail = 0.0
    if readers and not last:
        tail = min(instance.seconds[r][target] + paths.tail[r][target] for r in readers)
    passes = any(hop.src == target for hop in instance.hops.values())
    indirect = any(len(hops or ()) > 1 for row in instance.route for hops in row)
    return model.units.floor(head), 0 if passes and indirect else model.units.floor(tail)


def _when(
    model: Model,
    pairs: Sequence[tuple[int, int]],
    sources: Mapping[int, Literal],
    wanted: Mapping[int, Literal],
) -> Literal:
    """Return a literal that is true if the value is on a source and wanted on the paired device."""
    literals = model.literals
    wishes: dict[int, list[int]] = {}
    for source, target in pairs:
        wishes.setdefault(source, []).append(target)
    alike: dict[tuple[int, ...], list[int]] = {}
    for source, targets in wishes.items():
        alike.setdefault(tuple(targets), []).append(source)
    found = []
    for paired, some in alike.items():
        rest = [there for e, there in sources.items() if e not in some]
        # If there is one other source, its negation needs no new variable.
        here = literals.no(rest[0]) if len(rest) == 1 else literals.any([sources[e] for e in some])
        if not rest:
            here = True
        found.append(literals.all([here, literals.any([wanted[d] for d in paired])]))
    return literals.any(found)


MOST = 2**52
"""Limit on the sum of sizes given to the solver, which must stay exact integers."""


def cap(model: Model) -> None:
    """Constrain every device that could exceed its cap; after `transfer`."""
    for d, room in enumerate(model.instance.room):
        if room == math.inf:
            continue
        intervals, sizes = [], []
        for start, size, end, here, nbytes in _held(model, d):
            if here is not False:
                intervals.append(model.cp.new_optional_interval_var(start, size, end, here, ""))
                # Graph files may have fractions of bytes; the solver needs integers.
                sizes.append(math.floor(nbytes))
        if sum(sizes) > room:
            # The solver counts in 64 bits. Rounding sizes down and room up forbids nothing that fits.
            unit = max(1.0, sum(sizes) / MOST)
            less = [math.floor(size / unit) for size in sizes]
            model.cp.add_cumulative(intervals, less, max(0, math.ceil(room / unit)))


def _held(model: Model, d: int) -> Iterator[Held]:
    """Yield the memory demand on a device: resident state that is read, for the whole schedule; the workspace of each
    cluster while it runs; and values, from their creation or transfer to their last use there."""
    instance = model.instance
    keepers: dict[str, list[tuple[int, Literal]]] = {}
    for r, kept in enumerate(instance.kept):
        for storage, nbytes in kept:
            if storage not in instance.given[d] and d in model.on[r]:
                keepers.setdefault(storage, []).append((nbytes, model.on[r][d]))
    for storage, some in keepers.items():
        here = model.literals.any([literal for _, literal in some], f"{storage} on {d}")
        yield 0, model.horizon, model.horizon, here, min(nbytes for nbytes, _ in some)
    for r, nbytes in enumerate(instance.workspace):
        if nbytes and d in model.on[r]:
            for _, size, when in model.modes[r, d]:
                yield model.start[r], size, model.start[r] + size, when, nbytes
    for v, name in enumerate(instance.values):
        if instance.bytes[v] and instance.costed.graph.value[name].storage == name:
            yield from _alive(model, v, d)


def _alive(model: Model, v: int, d: int) -> Iterator[Held]:
    """Yield the demand of a value: made on this device, there before the call, and brought."""
    instance, maker = model.instance, model.instance.maker[v]
    consumed = instance.costed.consumed
    deliver = () if consumed else instance.deliver[v]
    returned = any(value == instance.values[v] and not device for value, device in instance.costed.deliver)
    if maker >= 0 and d in model.on[maker]:
        start, first, here = model.start[maker], model.end[maker], model.on[maker][d]
        yield from _span(model, v, d, start, here, [(first, here)], d in deliver or returned)
    if maker < 0 and instance.home[v] == d and consumed:
        yield from _span(model, v, d, 0, True, [], d in deliver or returned)
    for when, _, _, size in model.brings.get((v, d), ()):
        start = model.sent[v, d]
        forever = d in deliver or instance.stays[v]
        yield from _span(model, v, d, start, when, [(start + size, when)], forever)


def _span(
    model: Model,
    v: int,
    d: int,
    start: Any,
    here: Literal,
    ends: Sequence[tuple[Any, Literal]],
    forever: bool,
) -> Iterator[Held]:
    """Yield the demand of a value on a device, if it is `here`, from `start` to the last of `ends` and of its uses.

    Each end holds only if its step takes place: only its producer bounds an absent transfer, and an end
    within the horizon would force the producer to end too early.
    """
    instance, maker = model.instance, model.instance.maker[v]
    if here is False:
        return
    end = model.cp.new_int_var(0, model.horizon, f"last use of {v} on {d}")
    size = model.cp.new_int_var(0, model.horizon, f"{v} in use on {d}")
    uses = [*ends, *((model.end[r], model.on[r][d]) for r in instance.readers[v] if d in model.on[r])]
    for (value, target), brings in model.brings.items():
        if value == v and target != d:
            for when, via, _, taken in brings:
                # Sent from its source, or relayed by this device.
                if via == d or (via < 0 and (maker < 0 or d in model.on[maker])):
                    origin = True if via == d or maker < 0 else model.on[maker][d]
                    uses.append((model.sent[v, target] + taken, model.literals.all([when, origin])))
    for use, when in uses:
        model.enforce(end >= use, when)
    if forever:
        model.cp.add(end == model.horizon)
    yield start, size, end, here, instance.bytes[v]
