"""How many bytes are in use on each device over time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .problem import Problem
from .timeline import Memory

if TYPE_CHECKING:
    from .simulate import Play


def memory(problem: Problem, play: Play) -> tuple[Memory, ...]:
    """Bytes over time on each device of a simulated schedule.

    Counted once a storage: inputs and state at home and state on each device that reads it, always; a made
    value, and an input that is consumed, from the start of its run, or of its transfer, to the end of its last
    local reader or outgoing transfer, or to the end when it is delivered there or kept for the next call;
    scratch of a run while it lasts. Views share the storage they are views of, a transferred value has its own.
    """
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
    for name, device in costed.deliver:
        v = problem.value[name]
        maker = problem.maker[v]
        source = play.device[maker] if maker >= 0 else problem.home[v]
        hold(name, index[device] if device else source, play.makespan, math.inf)

    changes: list[dict[float, int]] = [{0.0: 0} for _ in problem.devices]
    for key, (start, end) in alive.items():
        at = changes[key[1]]
        at[start] = at.get(start, 0) + size[key]
        if end < math.inf:
            at[end] = at.get(end, 0) - size[key]
    for r, nbytes in enumerate(problem.workspace):
        if nbytes:
            at = changes[play.device[r]]
            at[play.start[r]] = at.get(play.start[r], 0) + nbytes
            at[play.end[r]] = at.get(play.end[r], 0) - nbytes
    found = []
    for place, at in zip(machine.devices, changes):
        level, steps = 0, []
        for time in sorted(at):
            level += at[time]
            steps.append((time, level))
        found.append(Memory(place.name, tuple(steps), place.memory_bytes))
    return tuple(found)
