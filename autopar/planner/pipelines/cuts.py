"""Chain partitioning: cuts with the least seconds of the slowest stage or link, balanced among equals.

The least feasible limit is found by bisection (Iqbal, "Approximate algorithms for partitioning problems", IJPP 1991;
Pınar and Aykanat, "Fast optimal load balancing algorithms for 1D partitioning", JPDC 2004). A limit is tested by a
greedy pass that takes as many units as possible and, if that fails, by dynamic programming over all positions, since a
shorter stage may help.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .chain import Numbers

PRECISION = 1e-6
"""Relative precision of the least bottleneck."""


@dataclass(frozen=True)
class Cutting:
    """A chain to cut, with figures of stage s.

    spent[s]: seconds of all units before each position.
    link[s]: seconds on the outgoing link for a cut at each position.
    held[s]: bytes of all units before each position, limited by `caps[s]` (None: unlimited).
    ties: (bytes, uses before each position) of tensors that `held` counts per use but a stage holds once.
    """

    spent: Sequence[Numbers]
    link: Sequence[Numbers]
    held: Sequence[Numbers]
    caps: Sequence[float | None]
    ties: Sequence[tuple[float, NDArray[np.int64]]] = ()

    @property
    def uncapped(self) -> Cutting:
        """The problem without caps."""
        return replace(self, caps=[None] * len(self.caps))

    def less(self, nbytes: Sequence[float]) -> Cutting:
        """Return the problem with caps reduced by `nbytes` for each stage."""
        caps = [None if cap is None else cap - own for cap, own in zip(self.caps, nbytes)]
        return replace(self, caps=caps)

    def even(self) -> list[int] | None:
        """Return cuts, from 0 to the number of units, with the least bottleneck within `PRECISION`; None if
        infeasible."""
        units = len(self.spent[0]) - 1
        low = min(float(times[-1]) for times in self.spent) / len(self.spent)
        high = max(float(times[-1]) for times in (*self.spent, *map(np.maximum.accumulate, self.link)))
        best = self._under(high)
        if units < len(self.spent) or best is None:
            return None
        high = self.bottleneck(best)
        while high - low > PRECISION * high:
            limit = (low + high) / 2
            cuts = self._under(limit)
            if cuts is None:
                low = limit
            else:
                best, high = cuts, min(limit, self.bottleneck(cuts))
        return self._balanced(best, high)

    def bottleneck(self, cuts: Sequence[int]) -> float:
        """Return the seconds of the slowest stage or link."""
        stages = max(float(t[b] - t[a]) for t, a, b in zip(self.spent, cuts, cuts[1:]))
        return max(stages, max((float(w[b]) for w, b in zip(self.link, cuts[1:-1])), default=0.0))

    def fits(self, cuts: Sequence[int]) -> bool:
        """Return True if no stage exceeds its cap."""
        return all(
            cap is None
            or held[b] - held[a] - sum(n * max(0, uses[b] - uses[a] - 1) for n, uses in self.ties) <= cap
            for held, cap, a, b in zip(self.held, self.caps, cuts, cuts[1:])
        )

    def _under(self, limit: float) -> list[int] | None:
        """Return cuts under a limit, or None."""
        return self._furthest(limit) or self._any(limit)

    def _any(self, limit: float) -> list[int] | None:
        """Find cuts under a limit by dynamic programming over the ends of each stage; None if infeasible. A stage that
        ends at a position is shortest from the last position at which the previous stage can end."""
        stages, units, slack = len(self.spent), len(self.spent[0]) - 1, limit * (1 + 1e-12)
        places = np.arange(units + 1)
        ends, before = places == 0, []
        for s, (spent, held, cap) in enumerate(zip(self.spent, self.held, self.caps)):
            start = np.concatenate(([-1], np.maximum.accumulate(np.where(ends, places, -1))[:-1]))
            ends = (start >= 0) & (spent - spent[start] <= slack)
            if cap is not None:
                again = sum(
                    (nbytes * np.maximum(uses - uses[start] - 1, 0) for nbytes, uses in self.ties),
                    np.zeros(1),
                )
                ends &= held - held[start] - again <= cap
            if s + 1 < stages:
                ends &= self.link[s] <= slack
            if not ends.any():
                return None
            before.append(start)
        if not ends[units]:
            return None
        cuts = [units]
        for start in reversed(before):
            cuts.append(int(start[cuts[-1]]))
        return cuts[::-1]

    def _furthest(self, limit: float) -> list[int] | None:
        """Return the cuts of a greedy pass under a limit, or None."""
        stages, units = len(self.spent), len(self.spent[0]) - 1
        cuts, slack = [0], limit * (1 + 1e-12)
        for s in range(stages - 1):
            stop = min(self._reach(s, cuts[-1], slack), units - (stages - 1 - s))
            while stop > cuts[-1] and self.link[s][stop] > slack:
                stop -= 1
            if stop <= cuts[-1]:
                return None
            cuts.append(stop)
        return [*cuts, units] if self._reach(stages - 1, cuts[-1], slack) >= units else None

    def _reach(self, s: int, start: int, limit: float) -> int:
        """Return the last position that a stage can reach."""
        spent, held, cap = self.spent[s], self.held[s], self.caps[s]
        stop = int(spent.searchsorted(spent[start] + limit, "right")) - 1
        if cap is None:
            return stop
        return min(stop, int(held.searchsorted(held[start] + cap, "right")) - 1)

    def _balanced(self, latest: list[int], limit: float) -> list[int]:
        """Return cuts under the same limit with stages as equal as possible, so that the pipeline fills quickly."""
        stages, units, slack = len(self.spent), len(self.spent[0]) - 1, limit * (1 + 1e-12)
        earliest = [units] * (stages + 1)
        for s in range(stages - 1, 0, -1):
            spent, held, cap = self.spent[s], self.held[s], self.caps[s]
            stop = earliest[s + 1]
            start = int(spent.searchsorted(spent[stop] - slack, "left"))
            if cap is not None:
                start = max(start, int(held.searchsorted(held[stop] - cap, "left")))
            start = max(start, s)
            while start < latest[s] and self.link[s - 1][start] > slack:
                start += 1
            earliest[s] = min(start, latest[s])
        cuts = [0]
        for s in range(stages - 1):
            stop = min(self._reach(s, cuts[-1], slack), latest[s + 1], units - (stages - 1 - s))
            places = np.arange(max(earliest[s + 1], cuts[-1] + 1), stop + 1)
            places = places[self.link[s][places] <= slack]
            spent = self.spent[s]
            target = spent[cuts[-1]] + (spent[-1] - spent[cuts[-1]]) / (stages - s)
            if not len(places):
                return latest
            off = np.abs(spent[places] - target) + self.link[s][places]
            cuts.append(int(places[int(np.argmin(off))]))
        cuts.append(units)
        return cuts if self.bottleneck(cuts) <= slack and self.fits(cuts) else latest
