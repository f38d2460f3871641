"""Proof that a program is correct in every order of its lanes, without torch and without running it.

Vector clocks (`vector_clocks`) say which step happens before which, and `requirements` which must. The proof
covers: every read follows its write; a buffer is freed once, in the lane that made it, after its last reader
on every lane and after its views; nothing leaks; there is no deadlock; each step's buffers are on its device;
the results are made; each device's memory cap holds (`footprint`).
"""

from __future__ import annotations

from ..errors import ProgramError
from ..ir.graph import Graph
from ..ir.program import Compute, Copy, Piece, Program, makes, reads
from ..system.text import size
from .memory_bound import Peak, footprint
from .requirements import At, Demand, demands, describe, matches, turns, wrong
from .vector_clocks import History


def check(program: Program, graph: Graph | None = None) -> tuple[Peak, ...]:
    """Prove a program and return an upper bound on the bytes of each device over all orders of the lanes.

    Raises ProgramError with lane, step number, task, buffer and what is missing.

    With `graph`, also prove that it computes that graph: each task once, on its own inputs, and in the order required
    by `Task.after` and random generators. Linear in steps times lanes.
    """
    wanted, history = required(program, graph)
    for demand in wanted:
        if not history.follows(demand[1], demand[0]):
            raise ProgramError(_race(program, demand, history))
    peaks = footprint(program, history)
    for peak in peaks:
        if peak.cap is not None and peak.bytes > peak.cap:
            when = (
                f"when {program.lane[peak.at[0]].describe(peak.at[1])} runs"
                if peak.at
                else "before anything runs"
            )
            raise ProgramError(
                f"{peak.device} may hold {size(peak.bytes)} {when}, {size(peak.bytes - peak.cap)} over its "
                f"cap of {size(peak.cap)}; something there must wait for a free, or the cap be {peak.bytes}"
            )
    return peaks


def required(program: Program, graph: Graph | None) -> tuple[list[Demand], History]:
    """Return the happens-before requirements of a program, with `graph` also those for computing it, and the
    history of its steps."""
    wanted = demands(program)
    if graph is not None:
        wanted += matches(program, graph) + _overwrites(program, graph)
    history = History(program)
    if graph is not None:
        wanted += turns(program, graph, history.order)
    return wanted, history


def _overwrites(program: Program, graph: Graph) -> list[Demand]:
    """Return the requirements of new values in the memory of old ones (`overwriting`): all readers of the old
    value come first, and so do all other steps, since they may fail. Raises ProgramError if an old value is
    returned, or if anything but its own update overwrites memory."""
    target = {new: f"{state}@{program.buffer[new].device}" for new, state in program.updates}
    storage = {value.name: value.storage for value in graph.values}
    over: dict[str, At] = {}
    for at, step in program.steps():
        for name in makes(step):
            buffer = program.buffer[name]
            old = program.buffer[buffer.storage]
            if old.kind in ("made", "result") or storage[buffer.value] == storage[old.value]:
                continue
            # Copies of several states may be one flat buffer, of which this is a view.
            home = program.buffer.get(f"{storage[buffer.value]}@{buffer.device}")
            if home is not None and home.kind == "resident" and home.storage == old.name:
                continue
            if target.get(name) != old.name or old.kind != "given":
                raise wrong(
                    program, at, f"it writes {name} into {old.name}, which is not the value that it updates"
                )
            over[old.name] = at
    for memory in (program.buffer[name].storage for name in program.outputs):
        if memory in over:
            raise wrong(program, over[memory], f"it overwrites {memory}, which is returned")
    last = set(over.values())
    first = {lane: min(at for at in last if at[0] == lane) for lane, _ in last}
    demands: list[Demand] = []
    for at, step in program.steps():
        if at not in last and isinstance(step, Compute | Copy | Piece):
            demands += [(at, later, "overwrites what was there before the call") for later in first.values()]
        for name in reads(step) if last else ():
            memory = program.buffer[name].storage
            if over.get(memory, at) != at:
                demands.append((at, over[memory], f"overwrites {memory}"))
    return demands


def _race(program: Program, demand: Demand, history: History) -> str:
    first, second, why = demand
    later, earlier = describe(program, second), describe(program, first)
    if history.follows(first, second):
        return f"{later} {why}, but runs before {earlier}"
    source, target = program.lanes[first[0]].name, program.lanes[second[0]].name
    return (
        f"{later} {why}, but nothing makes it follow {earlier}; record an event in lane {source} "
        f"after that step and wait for it in lane {target} before this one"
    )
