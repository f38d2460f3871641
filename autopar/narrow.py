"""The devices from which results can reach all that read them, on machines where links are missing."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from .errors import PlanError

if TYPE_CHECKING:
    from .problem import Problem


def narrow(problem: Problem) -> list[tuple[int, ...]]:
    """Of the devices that each run may go to, those that may be part of a placement of every run once.

    Arc consistency (Mackworth, "Consistency in networks of relations", Artificial Intelligence 8(1), 1977): what a run
    makes must come from each of its devices to some device of each reader, and to each device of a reader from some
    of the maker's. A run computed again may be on others. PlanError where nothing is left. O(E) for E reads, a few
    times over.
    """
    every = range(len(problem.devices))
    leads = [sum(1 << d for d in every if row[d] is not None) for row in problem.route]
    leader = [problem.members[g][0] if g >= 0 else r for r, g in enumerate(problem.group)]
    left = [sum(1 << d for d in allowed) for allowed in problem.allowed]

    @cache
    def reached(devices: int) -> int:
        found = 0
        for d in every:
            if devices >> d & 1:
                found |= leads[d]
        return found

    @cache
    def reaching(devices: int) -> int:
        return sum(1 << d for d in every if leads[d] & devices)

    def keep(v: int, r: int, devices: int) -> bool:
        """Leave run r of the ends of value v on none but these devices; whether it lost any."""
        own = leader[r]
        if not left[own] & ~devices:
            return False
        if not left[own] & devices:
            raise PlanError(
                f"no placement brings {problem.values[v]!r} to all that read it: over the links that there are, it "
                f"comes from or to {problem.names[r]!r} on none of {problem.where(r)}; add a link"
            )
        left[own] &= devices
        return True

    found = True
    values = range(len(problem.values))
    while found:
        found = False
        for v in values:
            m = problem.maker[v]
            for r in problem.readers[v]:
                sources = 1 << problem.home[v] if m < 0 else left[leader[m]]
                found |= keep(v, r, reached(sources))
        for v in reversed(values):
            m = problem.maker[v]
            for target in (
                *(left[leader[r]] for r in problem.readers[v]),
                *(1 << d for d in problem.deliver[v]),
            ):
                found |= m >= 0 and keep(v, m, reaching(target))
    known: dict[int, tuple[int, ...]] = {}
    for devices in left:
        known.setdefault(devices, tuple(d for d in every if devices >> d & 1))
    return [known[left[own]] for own in leader]
