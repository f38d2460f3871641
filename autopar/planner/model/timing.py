"""The times of a schedule: `simulate`."""

from __future__ import annotations

from dataclasses import dataclass

from ...ir.costed import CostedGraph
from ...ir.steps import Placed, Transfer
from ...ir.timeline import Memory
from .memory import memory
from .problem import Problem
from .simulator import Play, Schedule


@dataclass(frozen=True)
class Timing:
    """A schedule with times, in seconds from the start of the call. Sorted by start, as in `Plan`, and what takes no
    time at one moment by turn."""

    placed: tuple[Placed, ...]
    transfers: tuple[Transfer, ...]
    resident: tuple[tuple[str, str], ...]
    memory: tuple[Memory, ...]
    makespan: float


def simulate(costed: CostedGraph, schedule: Schedule, problem: Problem | None = None) -> Timing:
    """Start everything as early as the orders allow.

    `problem` spares building it again. Raises PlanError for a run that is missing, named twice, unknown or on
    a device where it cannot run, for a transfer without a way, and for orders that wait for each other.
    """
    play = Play(problem or Problem(costed), schedule)
    return timing(play)


def timing(play: Play) -> Timing:
    """What a simulation found, in names."""
    problem, first = play.problem, play.problem.runs
    placed = [
        Placed(
            problem.names[r],
            problem.devices[play.device[r]],
            play.lane[r],
            play.start[r],
            play.end[r],
            tuple(play.more.get(r, ())),
        )
        for r in sorted(range(first), key=play.when)
    ]
    transfers = []
    lanes = {
        ends: problem.costed.machine.copy_lane(problem.devices[ends[0]], problem.devices[ends[1]])
        for ends in {(hop.src, hop.dst) for _, hop in play.moves}
    }
    for number in sorted(range(first, len(play.start)), key=play.when):
        v, hop = play.moves[number - first]
        ends = problem.devices[hop.src], problem.devices[hop.dst]
        times = play.start[number], play.end[number], play.ready[number]
        transfers.append(
            Transfer(problem.values[v], *ends, lanes[hop.src, hop.dst], *times, problem.bytes[v])
        )
    resident = residency(problem, play.device)
    return Timing(tuple(placed), tuple(transfers), resident, memory(problem, play), play.makespan)


def residency(problem: Problem, device: list[int]) -> tuple[tuple[str, str], ...]:
    """(state, device) for each device that reads resident state, its home included, in the order of the
    graph."""
    costed = problem.costed
    found: dict[str, dict[int, None]] = {name: {} for name in costed.graph.state if name in costed.resident}
    for r, run in enumerate(costed.runs):
        for name in run.reads:
            if name in found:
                found[name][device[r]] = None
    return tuple((name, problem.devices[d]) for name, devices in found.items() for d in sorted(devices))
