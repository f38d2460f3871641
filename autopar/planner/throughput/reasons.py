"""Why each cluster of a plan for throughput is where it is: how long the period would be were it elsewhere."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property

from ...ir.plan import Reason
from ...system.text import seconds
from ..model.lazy_sequence import Lazily
from .loads import Loads, Standing

NEGLIGIBLE = 1e-9
"""Share of the period that is no reason for anything."""
NAMED = 3
"""Devices of one outcome that are named."""


class Shares(Lazily):
    """A reason for each cluster: the load that would be the largest with the cluster, and its group, on each other
    device, all else where it is.

    `group` has the group of each cluster, in their order; `at` is the device of each group in the plan, and `called`
    names the resources of `loads`.
    """

    def __init__(
        self, group: Mapping[str, int], loads: Loads, at: Sequence[int], called: Sequence[str]
    ) -> None:
        super().__init__(group)
        self.group, self.loads, self.at, self.called = group, loads, tuple(at), called

    @cached_property
    def standing(self) -> Standing:
        """The loads of the plan."""
        return Standing(self.loads, self.at)

    def work_out(self, r: int) -> Reason:
        """The reason of cluster `r`."""
        cluster, standing = self.clusters[r], self.standing
        g = self.group[cluster]
        own = self.at[g]
        if self.loads.devices == 1:
            return Reason(cluster, f"{self.called[own]} is the only device there is.")
        if self.loads.allowed[g] == (own,):
            return Reason(cluster, f"It can only run on {self.called[own]}.")
        was = standing.period
        ends: dict[str, tuple[float, list[str]]] = {}
        for d in self.loads.allowed[g]:
            if d == own:
                continue
            standing.move(g, d)
            period, what = math.inf, "no room"
            if standing.lost:
                what = "no link joins it to its values"
            elif standing.over <= 0:
                period = standing.period
                load = standing.load
                busiest = max(range(len(load)), key=lambda n: load[n])
                which = "" if busiest == d else f" ({self.called[busiest]} busy)"
                longer = period > was * (1 + NEGLIGIBLE)
                what = f"{seconds(period)}{which}" if longer else "no longer"
            ends.setdefault(what, (period, []))[1].append(self.called[d])
            standing.move(g, own)
        return Reason(cluster, listed("period", ends).strip())


def listed(what: str, ends: Mapping[str, tuple[float, Sequence[str]]]) -> str:
    """Sentence on the alternatives of a placement, the shortest first: `The period would be 3.1 s on cpu. Not on gpu:0,
    gpu:1 and 3 more: no room.` Of each outcome `ends` has its seconds (inf: infeasible; its name says why) and the
    devices."""
    parts, text = [], ""
    for how, (time, names) in sorted(ends.items(), key=lambda end: end[1][0]):
        few = names if len(names) <= NAMED else [*names[: NAMED - 1], f"{len(names) - NAMED + 1} more"]
        joined = few[0] if len(few) == 1 else f"{', '.join(few[:-1])} and {few[-1]}"
        if time < math.inf:
            parts.append(f"{how} on {joined}")
        else:
            text += f" Not on {joined}: {how}."
    return (f"The {what} would be {'; '.join(parts)}." if parts else "") + text
