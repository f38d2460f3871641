"""The declared clock: each lane sleeps until the modelled end of its work, on a chained clock.

A task starts at max(arrival of its inputs, end of the previous task) and lasts as long as on the declared chip × the
machine's slow-down; sleeping until that end, not for that duration, avoids accumulated errors. A computation that
takes longer makes its lane late; the largest lateness, as a share of the modelled makespan, bounds the error of all
figures of the call.

Work that made a lane late takes equally long on a clock k times slower, while the tolerance grows with k.
Work that took `real` instead of `modelled` seconds is therefore tolerable with k = real ÷ (modelled +
`TOLERANCE` × makespan), computed for all work since the lane was last on time, and for the last step alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

from ...ir.plan import Plan

TOLERANCE = 0.01
"""Share of the modelled makespan by which a lane may be late before figures are refused."""
MARGIN = 1.2
"""Safety factor on the slow-down: another call may be late by this factor more."""


class Clock:
    """The modelled time of one call. `makespan`: modelled seconds, slow-down included."""

    def __init__(self, makespan: float, slow_down: float) -> None:
        self.makespan, self.slow_down = makespan, slow_down
        self.events: dict[str, tuple[float, float, float]] = {}
        self.wires: dict[str, float] = {}
        self.host = 0.0
        self.lock = threading.Lock()
        self.behind = 0.0
        self.slower = 1.0
        self.origin = time.perf_counter()

    def lane(self) -> _LaneClock:
        """Return the clock of a lane."""
        return _LaneClock(self)

    @property
    def late(self) -> float:
        """The largest lateness as a share of the modelled makespan."""
        return self.behind / self.makespan if self.makespan > 0 else 0.0

    @property
    def enough(self) -> float:
        """A slow-down at which this call would probably have been on time; 0 if it was."""
        return self.slow_down * self.slower * MARGIN if self.late > TOLERANCE else 0.0

    def fell(self, behind: float, *lasted: tuple[float, float]) -> None:
        """Note that a lane is `behind` seconds late after work that `lasted` (real, modelled) seconds."""
        tolerated = TOLERANCE * self.makespan
        with self.lock:
            self.behind = max(self.behind, behind)
            if behind > tolerated:
                self.slower = max([self.slower, *(real / (model + tolerated) for real, model in lasted)])


class _LaneClock:
    """The clock of one lane. `now`: modelled seconds since the start of the call; `since`: modelled start of the work
    since it was last on time; `ended`: real time of its last activity."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.now = 0.0
        self.since = 0.0
        self.ended = clock.origin

    def wait(self, event: str) -> None:
        """Advance to the modelled time of `event`."""
        happened, since, ended = self.clock.events[event]
        self.now = max(self.now, happened)
        if ended > self.ended:
            # A lane that waits for a late lane is late for the same reason.
            self.since, self.ended = since, ended

    def record(self, event: str) -> None:
        """Record the event at the current modelled time."""
        self.clock.events[event] = self.now, self.since, self.ended

    def dispatch(self, seconds: float) -> None:
        """Wait until the one host is free, and occupy it for `seconds` to dispatch a cluster."""
        clock = self.clock
        with clock.lock:
            start = max(self.now, clock.host)
            clock.host = start + seconds
        if start > self.now:
            self._until(start)

    def work(self, seconds: float) -> None:
        """Sleep until the modelled end of a computation, or of a reserved copy, of `seconds`."""
        self._until(self.now + seconds)

    def reserve(self, wires: Iterable[str], seconds: float) -> None:
        """Start a copy of `seconds` when the lane and all buses (`wires`) are free; occupy them meanwhile."""
        clock = self.clock
        with clock.lock:
            start = max([self.now, *(clock.wires.get(wire, 0.0) for wire in wires)])
            for wire in wires:
                clock.wires[wire] = start + seconds
        if start > self.now:
            self._until(start)

    def _until(self, end: float) -> None:
        on_time, real = self.clock.origin + end, time.perf_counter()
        if real <= on_time:
            time.sleep(on_time - real)
            self.since = end
        else:
            chain = real - self.clock.origin - self.since, end - self.since
            self.clock.fell(real - on_time, chain, (real - self.ended, end - self.now))
        self.now, self.ended = end, max(on_time, real)


def task_seconds(plan: Plan) -> dict[str, float]:
    """Return the seconds of each task on its device, slow-down included.

    The planner prices clusters; a cluster's seconds are divided among its tasks in proportion to their own.
    """
    costed = plan.costed
    seconds: dict[str, float] = {}
    for cluster in costed.clusters:
        place = costed.index[plan.place[cluster.name].device]
        whole = (cluster.seconds[place] or 0.0) * costed.machine.slow_down
        shares = [costed.cost[task].seconds[place] or 0.0 for task in cluster.tasks]
        total = sum(shares)
        for position, (task, share) in enumerate(zip(cluster.tasks, shares)):
            alone = whole if position == len(cluster.tasks) - 1 else 0.0
            seconds[task] = whole * share / total if total > 0 else alone
    return seconds
