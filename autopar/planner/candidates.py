"""The race between schedules: each is simulated, and the shortest that fits wins, the first of equals."""

from __future__ import annotations

import heapq
import math
import time
from bisect import bisect_left
from dataclasses import dataclass, replace

from ..errors import MemoryCapError, PlanError
from ..ir.graph import Graph
from ..ir.plan import Candidate
from ..system.text import size
from .model.instance import Instance
from .model.simulator import Schedule, Simulation
from .model.timing import memory

SHORTER = 1e-9
"""Share by which a later schedule must be shorter than an earlier one to win."""


@dataclass(frozen=True)
class Entry:
    """A simulated schedule, and (device, peak bytes, cap) of each device that it exceeds."""

    simulation: Simulation
    over: tuple[tuple[str, int, int], ...]

    @property
    def makespan(self) -> float:
        """Its makespan in seconds."""
        return self.simulation.makespan

    @property
    def excess(self) -> int:
        """Bytes above the caps, summed over the devices."""
        return sum(peak - cap for _, peak, cap in self.over)


class Race:
    """All schedules tried for one problem, in order.

    bound: lower bound in seconds on all schedules.
    until: time of the monotonic clock after which no other schedule is sought.
    """

    def __init__(self, instance: Instance, bound: float = 0.0, until: float = math.inf) -> None:
        self.instance, self.bound, self.until = instance, bound, until
        self.entries: list[Entry] = []
        self.candidates: list[Candidate] = []
        self.errors: list[PlanError] = []

    @property
    def late(self) -> bool:
        """True if there is no time left."""
        return time.monotonic() > self.until

    @property
    def done(self) -> bool:
        """True if nothing can be shorter than the best entry."""
        return any(not entry.over and entry.makespan <= self.bound * (1 + SHORTER) for entry in self.entries)

    def trial(self, schedule: Schedule) -> Entry | None:
        """Simulate a schedule without entering it; None if it is infeasible.

        If it exceeds a cap, transfers of streamed state are delayed as little as makes it fit.
        """
        entry = self._simulated(schedule)
        if entry is None or not entry.over or not self.instance.costed.graph.streamed:
            return entry
        held: dict[int, Entry] = {}

        def fits(ahead: int) -> bool:
            tried = self._simulated(replace(schedule, ahead=ahead))
            if tried is not None and not tried.over:
                held[ahead] = tried
            return ahead in held

        # The more clusters ahead, the more streamed state is there at once.
        bisect_left(range(max(map(len, entry.simulation.orders), default=0))[::-1], True, key=fits)
        return held[max(held)] if held else entry

    def _simulated(self, schedule: Schedule) -> Entry | None:
        try:
            simulation = Simulation(self.instance, schedule)
        except PlanError as error:
            self.errors.append(error)
            return None
        used = memory(simulation) if self.instance.tight else ()
        over = tuple((m.device, m.peak, m.cap) for m in used if m.cap is not None and m.peak > m.cap)
        return Entry(simulation, over)

    def enter(self, schedule: Schedule) -> Entry | None:
        """Simulate a schedule and enter it if it is feasible."""
        entry = self.trial(schedule)
        if entry:
            self.admit(entry)
        else:
            self._note(schedule, None, str(self.errors[-1]))
        return entry

    def admit(self, entry: Entry) -> None:
        """Enter a simulated schedule."""
        self.entries.append(entry)
        note = ", ".join(
            f"{device} would need {size(peak)} of its {size(cap)}" for device, peak, cap in entry.over
        )
        self._note(entry.simulation.schedule, None if entry.over else entry.makespan, note)

    def _note(self, schedule: Schedule, makespan: float | None, note: str) -> None:
        split = self.instance.costed.graph.split
        self.candidates.append(Candidate(schedule.policy, split, makespan, note))

    def leader(self, entries: list[Entry] | None = None) -> Entry:
        """Return the shortest entry that fits, the first of equals, or else the one with the least excess. Raises the
        first error if there is none."""
        entries = self.entries if entries is None else entries
        if not entries:
            raise self.errors[0]
        fitting = [entry for entry in entries if not entry.over]
        if not fitting:
            return min(entries, key=lambda entry: entry.excess)
        least = min(entry.makespan for entry in fitting) * (1 + SHORTER)
        return next(entry for entry in fitting if entry.makespan <= least)

    def best(self, entries: list[Entry] | None = None) -> Entry:
        """Return the leader. Raises MemoryCapError if it does not fit."""
        leader = self.leader(entries)
        if leader.over:
            raise _too_small(self.instance, leader)
        return leader


def _too_small(instance: Instance, entry: Entry) -> MemoryCapError:
    graph = instance.costed.graph
    parts = []
    for device, peak, cap in entry.over:
        d = instance.devices.index(device)
        held = dict(instance.initial[d])
        for r, storages in enumerate(instance.resident):
            if entry.simulation.device[r] == d:
                held.update((storage, nbytes) for storage, nbytes in storages if storage not in held)
        sizes = {
            name: graph.value[name].bytes
            for r, cluster in enumerate(instance.costed.clusters)
            if entry.simulation.device[r] == d
            for task in cluster.tasks
            for name in graph.task[task].outputs
        }
        largest = heapq.nlargest(3, (held | sizes).items(), key=lambda pair: pair[1])
        names = ", ".join(f"{_named(graph, name, nbytes)} {size(nbytes)}" for name, nbytes in largest)
        parts.append(
            f"{device} would need {size(peak)} but is capped at {size(cap)} "
            f"({size(sum(held.values()))} of it inputs and state; largest: {names})"
        )
    if instance.costed.machine.queued:
        caps = ", ".join(f"{device!r}: {peak}" for device, peak, _ in entry.over)
        advice = f"memory={{{caps}}} would fit; a split of the batch or another device may too"
    else:
        caps = " and ".join(f"{peak} for {device!r}" for device, peak, _ in entry.over)
        advice = f"set memory_bytes to {caps}, or let more devices run these tasks"
    wrong = f"nothing that was tried fits in memory: in the nearest plan {', and '.join(parts)}"
    return MemoryCapError(wrong, advice, {device: peak for device, peak, _ in entry.over})


def _named(graph: Graph, name: str, nbytes: int) -> str:
    """Return the name of a storage of this many bytes: the path of a weight, or how many weights it holds (`flat`)."""
    updates, held = {target: updates for updates, target in graph.updates}, graph.value[name].path or name
    flat = name if name in graph.flat else updates.get(name, "")
    # Replicas of all weights of a bucket share one storage, named after the first.
    if flat not in graph.flat or (flat != name and nbytes <= graph.value[name].bytes):
        return held
    first, *others = (target for target in updates if updates[target] == flat)
    what = "the new values of " if flat == name else ""
    return f"{what}{graph.value[first].path or first} and {len(others)} more in one buffer"
