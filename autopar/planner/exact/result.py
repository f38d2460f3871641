"""What a proof has found, and the constants of the solver."""

from __future__ import annotations

from dataclasses import dataclass

from ..model.simulator import Schedule

EFFORT = 6.0
"""What the solver may spend, in its own deterministic time: a minute of a core at most."""
FIRST = 0.05
"""Effort spent first on the whole graph, which proves most small ones."""
NARROWING = 0.4
"""Effort spent at most on heads and tails (`windows`) where that does not."""
NEXT = 0.3
"""Effort spent then on the whole graph; what follows is as many times longer as `LONGER` says."""
LONGER = 3
STAGES = ((10_000, 0.7), (100_000, 1.0))
"""Units that the best known schedule is long, and the share of what is left of a step to be spent with them: few make
the solver quick, and what it then finds leaves little to prove with many. A million made it count for half a minute
unseen."""
TOLERANCE = 2e-4
"""Share of the makespan below which two schedules are taken to be as long: the solver counts in whole units."""
HELD_UNITS = 100_000
"""Units of a schedule whose wires serve first come, first served: one pass, as nothing is proven by it."""
HELD_CLOSE = 2e-3
"""Share above what was promised at which such a schedule is taken to keep it."""
HELD_ROUNDS = 4
"""Placements tried for such a schedule at most."""


@dataclass(frozen=True)
class Exact:
    """The best schedule found, its makespan in `simulate`, and a bound below which there is none, in seconds.

    `optimal`: the makespan is that of the bound, to within `TOLERANCE`. `effort` is what was spent of it. `stopped`:
    the ceiling in seconds cut it short, so that another run may find something else.
    """

    schedule: Schedule
    makespan: float
    lower_bound: float
    optimal: bool
    effort: float
    stopped: bool = False
