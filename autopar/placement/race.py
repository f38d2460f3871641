"""Schedules in a race: each simulated, the shortest that fits wins, the first of equals."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import MemoryCapError, PlanError
from ..plans import Candidate
from ..problem import Problem
from ..simulate import Schedule, Timing, simulate
from ..tables import size

SHORTER = 1e-9
"""Share by which a later schedule must be shorter than an earlier one to be preferred."""


@dataclass(frozen=True)
class Entry:
    """A schedule with its times; `over` holds (device, peak bytes, cap) of each device it does not fit."""

    schedule: Schedule
    timing: Timing
    over: tuple[tuple[str, int, int], ...]

    @property
    def excess(self) -> int:
        """Bytes above the caps, all devices together."""
        return sum(peak - cap for _, peak, cap in self.over)


class Race:
    """All schedules tried for one problem, in order."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.entries: list[Entry] = []
        self.candidates: list[Candidate] = []
        self.errors: list[PlanError] = []

    def trial(self, schedule: Schedule) -> Entry | None:
        """Simulate a schedule without entering it; None when it cannot be carried out at all."""
        try:
            timing = simulate(self.problem.costed, schedule, self.problem)
        except PlanError as error:
            self.errors.append(error)
            return None
        over = tuple((m.device, m.peak, m.cap) for m in timing.memory if m.cap is not None and m.peak > m.cap)
        return Entry(schedule, timing, over)

    def enter(self, schedule: Schedule) -> Entry | None:
        """Simulate a schedule and let it take part if it can be carried out."""
        entry = self.trial(schedule)
        if entry:
            self.admit(entry)
        else:
            split = self.problem.costed.graph.split
            self.candidates.append(Candidate(schedule.policy, split, None, str(self.errors[-1])))
        return entry

    def admit(self, entry: Entry) -> None:
        """Let a simulated schedule take part."""
        self.entries.append(entry)
        note = ", ".join(
            f"{device} would need {size(peak)} of its {size(cap)}" for device, peak, cap in entry.over
        )
        makespan = None if entry.over else entry.timing.makespan
        split = self.problem.costed.graph.split
        self.candidates.append(Candidate(entry.schedule.policy, split, makespan, note))

    def best(self, entries: list[Entry] | None = None) -> Entry:
        """The shortest that fits. Raises MemoryCapError, or why none could be carried out."""
        tried = self.entries if entries is None else entries
        chosen: Entry | None = None
        for entry in tried:
            if not entry.over and (
                chosen is None or entry.timing.makespan < chosen.timing.makespan * (1 - SHORTER)
            ):
                chosen = entry
        if chosen:
            return chosen
        if not tried:
            raise self.errors[0]
        raise _too_small(self.problem, min(tried, key=lambda entry: entry.excess))


def _too_small(problem: Problem, entry: Entry) -> MemoryCapError:
    graph = problem.costed.graph
    parts = []
    for device, peak, cap in entry.over:
        d = problem.devices.index(device)
        held = dict(problem.given[d])
        for name, where in entry.timing.resident:
            if where == device:
                held[graph.value[name].storage] = graph.value[graph.value[name].storage].bytes
        state = sum(held.values())
        made = [v for v in graph.values if v.kind == "made" and problem.costed.run_of[graph.producer[v.name]]
                in {p.run for p in entry.timing.placed if p.device == device}]  # fmt: skip
        largest = sorted(
            [(graph.value[name].bytes, name) for name in held] + [(v.bytes, v.name) for v in made],
            reverse=True,
        )[:3]
        names = ", ".join(f"{name} {size(nbytes)}" for nbytes, name in largest)
        parts.append(
            f"{device} would need {size(peak)} but is capped at {size(cap)} "
            f"({size(state)} of it inputs and state; largest: {names})"
        )
    caps = ", ".join(f'"{device}": {peak}' for device, peak, _ in entry.over)
    return MemoryCapError(
        f"nothing that was tried fits in memory. The nearest, {entry.schedule.policy}: {'; '.join(parts)}. "
        f"memory={{{caps}}} would fit; a split of the batch, another device or a smaller model may too"
    )
