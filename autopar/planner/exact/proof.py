"""What is proven of a problem so far, and the two ways to prove more: the whole model, and parts of it."""

from __future__ import annotations

import math
import time
from dataclasses import replace

from ...ir.sound import sound
from ..bounds import lower_bound
from ..bounds.critical_path import ways
from ..bounds.load import load
from ..model.memory import memory
from ..model.problem import Problem
from ..model.simulator import Play, Schedule
from .joins import joined
from .result import STAGES, TOLERANCE, Exact
from .solve import Known, solve
from .units import Units
from .windows import narrowed


class Proof:
    """The best schedule known, a bound for schedules that do every run once, and what is left of the effort."""

    def __init__(
        self, problem: Problem, start: Schedule, bound: float, effort: float, budget_s: float | None
    ) -> None:
        began = time.monotonic()
        self.problem, self.schedule, self.best = problem, start, Play(problem, start)
        self.ways = joined(problem, ways(problem, once=True))
        self.load = load(problem, self.ways)
        self.bound = 0.0
        self._raise(max(bound, lower_bound(problem), self.ways.length, self.load.seconds))
        self.effort, self.spent = effort, 0.0
        self._until = math.inf if budget_s is None else began + budget_s
        # What a model takes to be made is not cut short, and takes less than all this.
        self._last = self._until - (time.monotonic() - began)
        self._stage = 0

    @property
    def optimal(self) -> bool:
        """Whether no schedule is shorter by more than `TOLERANCE`."""
        return self.best.makespan <= self.bound * (1 + TOLERANCE)

    @property
    def late(self) -> bool:
        """Whether what is left until the ceiling in seconds is too little to prove anything more in."""
        return not self.optimal and time.monotonic() >= self._last

    @property
    def going(self) -> bool:
        """Whether there is something left to prove, and to spend on it."""
        return not self.optimal and not self.late and self.spent < self.effort and self._stage < len(STAGES)

    def known(self) -> Exact:
        """What is known now."""
        return Exact(self.schedule, self.best.makespan, self.bound, self.optimal, self.spent, self.late)

    def solve(self, effort: float) -> None:
        """Look for a shorter schedule, or a proof that there is none, for so much effort at most."""
        until = min(self.effort, self.spent + effort)
        for stage, (count, share) in enumerate(STAGES):
            if not self.going or self.spent >= until:
                return
            if stage < self._stage:
                continue
            found = solve(
                self.problem,
                Known(self.best, replace(self.ways, length=self.bound), self.load),
                self._below,
                Units(self.best.makespan, count),
                (until - self.spent) * share,
                self._until,
            )
            self.spent += found.effort
            self._stage = stage + 1 if found.done else self._stage
            self._raise(found.bound)
            if found.schedule:
                play = Play(self.problem, found.schedule)
                if play.makespan < self.best.makespan and _fits(self.problem, play):
                    self.schedule, self.best = found.schedule, play
                    self._raise(self.bound)

    def narrow(self, effort: float) -> None:
        """Look for longer heads and tails, for so much effort at most."""
        effort = min(effort, self.effort - self.spent)
        found = narrowed(self.problem, self.best, self.ways, self._below, effort, self._last)
        self.spent += found.effort
        self.ways = found.ways
        self._raise(found.ways.length)

    @property
    def _below(self) -> float:
        """Seconds of the longest schedule that is still sought."""
        return self.best.makespan / (1 + TOLERANCE)

    def _raise(self, bound: float) -> None:
        self.bound = sound(max(self.bound, bound), self.best.makespan)


def _fits(problem: Problem, play: Play) -> bool:
    used = memory(problem, play) if problem.tight else ()
    return all(one.cap is None or one.peak <= one.cap for one in used)
