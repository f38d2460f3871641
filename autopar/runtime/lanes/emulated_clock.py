"""The declared clock: each lane sleeps to the modelled end of what it does, on a chained clock.

A task starts at max(arrival of its inputs, end of the task before) and lasts what the declared chip would
take × the machine's slow-down; sleeping to that end instead of "for that long" keeps errors from adding up. A
computation that really lasts longer makes its lane late; how late at worst, as a share of the modelled
makespan, bounds the error of every figure taken from the call.

What made a lane late really lasts as long on a clock k times slower, and what is tolerated grows with k. What lasted
`real` instead of `modelled` seconds is therefore tolerable with k = real ÷ (modelled + `TOLERANCE` × makespan). This is
asked of all that was done since the lane was last on time, and of the last step alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

from ...ir.plan import Plan

TOLERANCE = 0.01
"""Share of the modelled makespan by which a lane may be behind its clock before figures are refused."""
MARGIN = 1.2
"""Factor of safety on the slow-down: what made this call late may last so many times longer in another."""


class Clock:
    """The modelled time of one call. `makespan` is the modelled one in seconds, slow-down included."""

    def __init__(self, makespan: float, slow_down: float) -> None:
        self.makespan, self.slow_down = makespan, slow_down
        self.events: dict[str, tuple[float, float, float]] = {}
        self.wires: dict[str, float] = {}
        self.host = 0.0
        self.lock = threading.Lock()
        self.behind = 0.0
        self.slower = 1.0
        self.origin = time.perf_counter()

    @property
    def late(self) -> float:
        """Worst time behind the model as a share of the modelled makespan."""
        return self.behind / self.makespan if self.makespan > 0 else 0.0

    @property
    def enough(self) -> float:
        """A slow-down at which this call would hardly have been late."""
        return self.slow_down * self.slower * MARGIN

    def fell(self, behind: float, *lasted: tuple[float, float]) -> None:
        """A lane is `behind` seconds late after what `lasted` so many real instead of modelled seconds."""
        tolerated = TOLERANCE * self.makespan
        with self.lock:
            self.behind = max(self.behind, behind)
            if behind > tolerated:
                self.slower = max([self.slower, *(real / (model + tolerated) for real, model in lasted)])


class LaneClock:
    """The clock of one lane: `now` is modelled seconds since the start of the call, `since` when what it does now
    was last on time, `ended` the real time at which it last did something."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.now = 0.0
        self.since = 0.0
        self.ended = clock.origin
        self.copying = 0.0

    def wait(self, event: str) -> None:
        """Not before `event` has happened in modelled time."""
        happened, since, ended = self.clock.events[event]
        self.now = max(self.now, happened)
        if ended > self.ended:
            # Who waits for one that is late is late for the same reason.
            self.since, self.ended = since, ended

    def record(self, event: str) -> None:
        """The event happens now."""
        self.clock.events[event] = self.now, self.since, self.ended

    def dispatch(self, seconds: float) -> None:
        """A run is started by the one host, which starts no other for `seconds`; it waits for its turn."""
        clock = self.clock
        with clock.lock:
            start = max(self.now, clock.host)
            clock.host = start + seconds
        if start > self.now:
            self._until(start)

    def compute(self, seconds: float) -> None:
        """Sleep to the modelled end of what was computed since the last call and lasts `seconds`."""
        self._until(self.now + seconds)

    def reserve(self, wires: Iterable[str], seconds: float) -> None:
        """A copy of `seconds` starts when the lane and all `wires` are free; they carry nothing else until it
        ends.
        """
        clock = self.clock
        with clock.lock:
            start = max([self.now, *(clock.wires.get(wire, 0.0) for wire in wires)])
            for wire in wires:
                clock.wires[wire] = start + seconds
        if start > self.now:
            self._until(start)
        self.copying = seconds

    def copied(self) -> None:
        """The reserved copy has been made."""
        self._until(self.now + self.copying)

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
    """Seconds each task lasts on the device it is placed on, slow-down included.

    The planner prices runs; the seconds of a run are shared out over its tasks in proportion to their own.
    """
    costed = plan.costed
    found: dict[str, float] = {}
    for run in costed.clusters:
        place = costed.index[plan.place[run.name].device]
        whole = (run.seconds[place] or 0.0) * costed.machine.slow_down
        shares = [costed.cost[task].seconds[place] or 0.0 for task in run.tasks]
        total = sum(shares)
        for position, (task, share) in enumerate(zip(run.tasks, shares)):
            alone = whole if position == len(run.tasks) - 1 else 0.0
            found[task] = whole * share / total if total > 0 else alone
    return found
