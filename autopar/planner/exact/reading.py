"""What the solver found, as a schedule."""

from __future__ import annotations

from ortools.sat.python import cp_model

from ..model.simulator import Move, Schedule
from .model import Model
from .transfers import Transfers


def read(model: Model, transfers: Transfers, solver: cp_model.CpSolver) -> Schedule:
    """The orders of all queues; of things at one moment those that take no time come first, then by graph order."""
    problem = model.problem
    lanes: dict[str, list[str]] = {lane: [] for names in problem.lane_names for lane in names}
    free = dict.fromkeys(lanes, 0)
    device = [next(d for d, here in row.items() if solver.boolean_value(here)) for row in model.on]
    start = [solver.value(start) for start in model.start]
    end = [solver.value(end) for end in model.end]
    for r in sorted(range(problem.runs), key=lambda r: (start[r], end[r], r)):
        d = device[r]
        wide = next(n for n, _, when in model.modes[r, d] if solver.boolean_value(when))
        # The lane that has been free for the shortest time; one that is taken is so for a rounding error.
        own = sorted(problem.lane_names[d], key=lambda lane: (free[lane] > start[r], -free[lane]))
        for lane in own[:wide]:
            lanes[lane].append(problem.names[r])
            free[lane] = end[r]
    moves: dict[str, list[tuple[int, int, int, Move]]] = {}
    for (v, target), brings in transfers.brings.items():
        for when, via, queue, size in brings:
            if queue >= 0 and solver.boolean_value(when):
                maker = problem.maker[v]
                source = via if via >= 0 else device[maker] if maker >= 0 else problem.home[v]
                begin = solver.value(transfers.start[v, target])
                move = problem.values[v], problem.devices[source], problem.devices[target]
                moves.setdefault(problem.copy_lanes[queue], []).append((begin, begin + size, maker, move))
    return Schedule(
        "exact",
        {lane: tuple(names) for lane, names in lanes.items()},
        {
            queue: tuple(move for *_, move in sorted(entries, key=lambda entry: entry[:3]))
            for queue, entries in moves.items()
        },
    )
