"""The bounds that need no search: work shared out evenly over all lanes that could do it."""

from __future__ import annotations

from ..model.problem import Problem


def evenly(problem: Problem) -> float:
    """Seconds of the lanes of some devices, at the least, for the runs that can be on no others, each at its cheapest.

    Of all devices together, and of every set of devices that some run is bound to. Whatever prices `load` ends with,
    it need not reach these: prices of wires take away from those of lanes. O(R D) for each set.
    """
    lanes = [len(names) for names in problem.lane_names]
    sets = {tuple(range(len(lanes))), *problem.able}
    work: dict[tuple[int, ...], float] = {}
    for r, able in enumerate(problem.able):
        least = min(
            min((taken * s for taken, s in problem.modes.get((r, d), ())), default=problem.seconds[r][d])
            for d in able
        )
        work[able] = work.get(able, 0.0) + least
    return max(
        sum(own for able, own in work.items() if {*able} <= {*some}) / sum(lanes[d] for d in some)
        for some in sets
    )
