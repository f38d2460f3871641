"""Why each run of a plan for throughput is where it is: how long the period would be were it elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from ..plans import Plan, Reason
from ..problem import Problem
from ..tables import seconds
from .lazily import Lazily
from .period.loads import Loads, Standing

NEGLIGIBLE = 1e-9
"""Share of the period that is no reason for anything."""


class Shares(Lazily):
    """A reason for each run: the load that would be the largest with the run, and its group, on each other device, all
    else where it is. `loads` are those of the plan's costed graph, `groups` the runs of each."""

    def __init__(self, plan: Plan, problem: Problem, loads: Loads, groups: Sequence[Sequence[int]]) -> None:
        super().__init__(problem.names)
        self.plan, self.problem, self.loads = plan, problem, loads
        self.group = {r: g for g, members in enumerate(groups) for r in members}
        self.at = [problem.costed.index[plan.place[problem.names[members[0]]].device] for members in groups]

    @cached_property
    def standing(self) -> Standing:
        """The loads of the plan."""
        return Standing(self.loads, self.at)

    def work_out(self, r: int) -> Reason:
        """The reason of run `r`."""
        problem, standing, g = self.problem, self.standing, self.group[r]
        own = self.at[g]
        device = problem.devices[own]
        if len(problem.devices) == 1:
            return Reason(problem.names[r], f"{device} is the only device there is.")
        if self.loads.allowed[g] == (own,):
            return Reason(problem.names[r], f"It can only run on {device}.")
        was = standing.period
        parts = []
        for d in self.loads.allowed[g]:
            if d == own:
                continue
            standing.move(g, d)
            if standing.lost:
                parts.append(f"no link joins it to {problem.devices[d]}")
            elif standing.over > 0:
                parts.append(f"{problem.devices[d]} has no room for it")
            elif standing.period > was * (1 + NEGLIGIBLE):
                parts.append(f"{seconds(standing.period)} on {problem.devices[d]} ({self._busiest()})")
            else:
                parts.append(f"no longer on {problem.devices[d]}")
            standing.move(g, own)
        return Reason(problem.names[r], f"The period would be {', '.join(parts)}.")

    def _busiest(self) -> str:
        """What the largest load is of."""
        load, problem = self.standing.load, self.problem
        resource = max(range(len(load)), key=lambda n: load[n])
        devices = len(problem.devices)
        if resource < devices:
            return f"{problem.devices[resource]} busy"
        if resource < devices + problem.wires:
            return "a wire busy"
        if resource < devices + problem.wires + len(problem.copy_lanes):
            queue = problem.copy_lanes[resource - devices - problem.wires]
            return f"{queue} busy" if " → " in queue else f"wire {queue} busy"
        return "the host busy with dispatch"
