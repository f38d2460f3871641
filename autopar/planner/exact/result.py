"""Parameters of a proof, and its result."""

from __future__ import annotations

from dataclasses import dataclass

from ..model.simulator import Schedule


@dataclass(frozen=True)
class Params:
    """What is spent on a proof: efforts are in the solver's own deterministic time, about ten seconds of a core each.

    `effort` in all at most; `first` on the whole graph, which proves most small ones; then at most `narrowing` on
    heads and tails; then `following` on the whole graph again, and each time `growth` times as much. `stages` are the
    units that the best known schedule is long, and the share of what is left of a step to be spent with them: few
    make the solver quick, and what it then finds leaves little to prove with many (a million made it count for half a
    minute unseen). Two schedules are as long if their makespans differ by less than the share `tolerance`, as the
    solver counts in whole units.
    """

    effort: float = 6.0
    first: float = 0.05
    narrowing: float = 0.4
    following: float = 0.3
    growth: float = 3.0
    stages: tuple[tuple[int, float], ...] = ((10_000, 0.7), (100_000, 1.0))
    tolerance: float = 2e-4


PARAMS = Params()
"""The default: about a minute of a core in all."""


@dataclass(frozen=True)
class Exact:
    """The best schedule found, its makespan in `simulate`, and a bound below which there is none, in seconds.

    `optimal`: the makespan is that of the bound, to within `Params.tolerance`. `effort` is what was spent of it.
    `stopped`: the ceiling in seconds cut it short, so that another run may find something else.
    """

    schedule: Schedule
    makespan: float
    lower_bound: float
    optimal: bool
    effort: float
    stopped: bool = False
