"""How many bytes are in use on each device over time."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import accumulate

from ...ir.timeline import Memory
from .problem import Problem
from .simulator import Play


def memory(problem: Problem, play: Play) -> tuple[Memory, ...]:
    """Bytes over time on each device of a simulated schedule.

    Counted once a storage: inputs and state at home and state on each device that reads it, always; a made
    value, and an input that is consumed, from the start of its run, or of its transfer, to the end of its last
    local reader or outgoing transfer, or to the end when it is kept for the next call or delivered there, unless
    inputs are consumed: then what is delivered may go as soon as it has come; scratch of a run while it lasts. Views
    share the storage they are views of, a transferred value has its own.
    """
    changes: list[dict[float, int]] = [{0.0: 0} for _ in problem.devices]
    values = problem.costed.graph.values
    simple = not problem.holders and all(value.storage == value.name for value in values)
    for d, start, end, nbytes in _apart(problem, play) if simple else _shared(problem, play):
        at = changes[d]
        at[start] = at.get(start, 0) + nbytes
        if end < math.inf:
            at[end] = at.get(end, 0) - nbytes
    for r, nbytes in enumerate(problem.workspace):
        if nbytes:
            at = changes[play.device[r]]
            at[play.start[r]] = at.get(play.start[r], 0) + nbytes
            at[play.end[r]] = at.get(play.end[r], 0) - nbytes
    found = []
    for place, at in zip(problem.costed.machine.devices, changes):
        times = sorted(at)
        levels = accumulate(map(at.__getitem__, times))
        found.append(Memory(place.name, tuple(zip(times, levels)), place.memory_bytes))
    return tuple(found)


Spans = Iterable[tuple[int, float, float, int]]
"""Of each storage the device, from when to when in seconds, and the bytes."""


def _apart(problem: Problem, play: Play) -> Spans:
    """What `_shared` finds where each value has memory of its own and none is resident: quicker on large graphs."""
    devices, device, start, end = len(problem.devices), play.device, play.start, play.end
    born: dict[int, float] = {}
    gone: dict[int, float] = {}
    given = 0.0 if problem.costed.consumed else math.inf
    for d, storages in enumerate(problem.given):
        for name, nbytes in storages.items():
            if name in problem.value:
                born[problem.value[name] * devices + d], gone[problem.value[name] * devices + d] = 0.0, given
            else:
                yield d, 0.0, given, nbytes
    for r, d in enumerate(device):
        for v in problem.makes[r]:
            born[v * devices + d], gone[v * devices + d] = start[r], end[r]
    for step, (v, hop) in enumerate(play.moves, problem.runs):
        born[v * devices + hop.dst] = start[step]
        gone[v * devices + hop.dst] = math.inf if problem.stays[v] else end[step]
    for r, d in enumerate(device):
        for v in problem.reads[r]:
            if end[r] > gone[v * devices + d]:
                gone[v * devices + d] = end[r]
    for step, (v, hop) in enumerate(play.moves, problem.runs):
        if end[step] > gone[v * devices + hop.src]:
            gone[v * devices + hop.src] = end[step]
    for name, where in () if problem.costed.consumed else problem.costed.deliver:
        v = problem.value[name]
        maker = problem.maker[v]
        source = device[maker] if maker >= 0 else problem.home[v]
        gone[v * devices + (problem.costed.index[where] if where else source)] = math.inf
    for key, since in born.items():
        v, d = divmod(key, devices)
        yield d, since, gone[key], problem.bytes[v]


def _shared(problem: Problem, play: Play) -> Spans:
    """Storages, with views in that of what they are views of, and state where it is kept."""
    costed, graph = problem.costed, problem.costed.graph
    index, machine = costed.index, costed.machine
    alive: dict[tuple[str, int], list[float]] = {}
    size: dict[tuple[str, int], int] = {}
    roots: dict[tuple[str, int], tuple[str, int]] = {}

    def root(name: str, device: int) -> tuple[str, int]:
        """The storage a value is in on a device: the first allocation up its chain of views."""
        chain = []
        while (name, device) not in roots:
            chain.append(name)
            value = graph.value[name]
            maker = graph.task.get(graph.producer.get(name, ""))
            up = None
            if maker and value.storage != name:
                up = next((n for n in maker.inputs if graph.value[n].storage == value.storage), None)
            if up is None:
                roots[name, device] = (name, device)
                size[name, device] = max(
                    value.bytes, graph.value[value.storage].bytes if maker is None else 0
                )
                break
            name = up
        found = roots[name, device]
        for passed in chain:
            roots[passed, device] = found
        return found

    def hold(name: str, device: int, start: float, end: float) -> None:
        key = root(name, device)
        span = alive.setdefault(key, [start, end])
        span[0], span[1] = min(span[0], start), max(span[1], end)

    given = 0.0 if costed.consumed else math.inf
    for home, storages in enumerate(problem.given):
        for storage, nbytes in storages.items():
            size[storage, home] = nbytes
            alive[storage, home] = [0.0, given]
    for name in (*graph.inputs, *graph.state):
        where = costed.home.get(name, machine.host)
        if where:
            home = index.get(where, 0)
            roots[name, home] = (graph.value[name].storage, home)
    for r, kept in enumerate(problem.kept):
        for storage, nbytes in kept:
            key = storage, play.device[r]
            if storage not in problem.given[play.device[r]]:
                size[key] = max(size.get(key, 0), nbytes)
            alive[key] = [0.0, math.inf]
        for name in costed.runs[r].reads:
            if name in costed.resident:
                roots.setdefault((name, play.device[r]), (graph.copies[name][0], play.device[r]))
    for number, (v, hop) in enumerate(play.moves, problem.runs):
        name = problem.values[v]
        roots[name, hop.dst] = (name, hop.dst)
        size[name, hop.dst] = problem.bytes[v]
        alive[name, hop.dst] = [play.start[number], play.end[number]]
    for r in range(problem.runs):
        for v in problem.makes[r]:
            hold(problem.values[v], play.device[r], play.start[r], play.end[r])
        for v in problem.reads[r]:
            hold(problem.values[v], play.device[r], play.end[r], play.end[r])
    for number, (v, hop) in enumerate(play.moves, problem.runs):
        hold(problem.values[v], hop.src, play.end[number], play.end[number])
        if problem.stays[v]:
            hold(problem.values[v], hop.dst, play.makespan, math.inf)
    for v, readers in enumerate(problem.carry):
        for d in {play.device[r] for r in readers}:
            hold(problem.values[v], d, play.makespan, math.inf)
    for name, device in () if costed.consumed else costed.deliver:
        v = problem.value[name]
        maker = problem.maker[v]
        source = play.device[maker] if maker >= 0 else problem.home[v]
        hold(name, index[device] if device else source, play.makespan, math.inf)

    for key, (since, until) in alive.items():
        yield key[1], since, until, size[key]
