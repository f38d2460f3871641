"""The steps of a graph whose runs are placed: runs, and the transfers that follow from where they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...errors import PlanError
from .problem import Hop, Problem


class Steps:
    """Steps are numbers: runs first, then `moves`, the (value, hop) pairs that bring values to all who want them.

    Of each step, `waiting` has those that wait for it and `missing` how many it waits for itself. `device` is where
    each run is. Raises PlanError where no link leads. Linear in runs and reads.
    """

    def __init__(self, problem: Problem, device: Sequence[int]) -> None:
        self.problem, self.device = problem, device
        self.moves: list[tuple[int, Hop]] = []
        self.missing = [*map(len, problem.before)]
        # Lists of their own only where something is added.
        self.waiting: list[Any] = [*problem.after]
        alone = len(set(device)) == 1
        for v, readers in enumerate(problem.readers):
            maker = problem.maker[v]
            if maker >= 0:
                if alone and not problem.deliver[v]:
                    continue
                source = device[maker]
            else:
                source = problem.home[v]
            wanted = {device[r] for r in readers}
            if problem.deliver[v] or problem.carry[v]:
                wanted.update(problem.deliver[v], (device[r] for r in problem.carry[v]))
            wanted.discard(source)
            if wanted:
                self._bring(v, maker, source, wanted)

    def _bring(self, v: int, maker: int, source: int, wanted: set[int]) -> None:
        """Add the hops that bring a value to all devices that want it, and make its readers there wait for them."""
        problem, device, waiting, missing = self.problem, self.device, self.waiting, self.missing
        arrival = {source: maker}
        if problem.holders and problem.values[v] in problem.holders:
            arrival |= dict.fromkeys((device[r] for r in problem.holders[problem.values[v]]), -1)
            wanted -= arrival.keys()
        route = problem.route[source]
        targets = sorted(wanted, key=lambda d: (len(route[d] or ()), d)) if len(wanted) > 1 else wanted
        for target in targets:
            hops = route[target]
            if hops is None:
                raise PlanError(
                    f"no link leads from {problem.devices[source]} to {problem.devices[target]}, where "
                    f"{problem.values[v]!r} is needed; add Link({problem.devices[source]!r}, "
                    f"{problem.devices[target]!r}, …) to the machine"
                )
            for hop in hops:
                if hop.dst not in arrival:
                    step = arrival[hop.dst] = len(waiting)
                    made = [arrival[hop.src]] if arrival[hop.src] >= 0 else []
                    for p in made:
                        later = waiting[p]
                        if isinstance(later, tuple):
                            waiting[p] = later = [*later]
                        later.append(step)
                    self.moves.append((v, hop))
                    waiting.append([])
                    missing.append(len(made))
        first = problem.runs
        for r in problem.readers[v]:
            step = arrival[device[r]]
            if step >= first:
                waiting[step].append(r)
                missing[r] += 1
