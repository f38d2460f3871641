"""Worst-case memory of a program on each device over all orders of its lanes, and the account of it during lowering.

The lane that allocated a byte frees it, so a lane's bytes depend only on its position. While a step runs,
another lane is between the last of its steps known to have ended and the first that must wait for this step.
It holds at most the maximum over that window. The sum over lanes bounds the device (`footprint`). With two
allocating lanes (an accelerator's compute and copy-in), all of the window is reachable: the bound is exact.

Lowering (`ledgers`) admits allocations in the order of appending. Of the buffers alive at any moment, the last
one was admitted with all others counted as alive, because none of them is certain to be freed before it. If
`_Ledger.short` was never positive at an allocation, no order of the lanes therefore exceeds the cap.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from ..errors import MemoryCapError
from ..ir.machine import Machine
from ..ir.program import Buffer, Compute, Copy, Free, Piece, Program, tasks_of
from ..system.text import size
from .vector_clocks import Clock, History


@dataclass(frozen=True, slots=True)
class Peak:
    """Upper bound on the `bytes` of a device, reached while step `at` (lane, number) runs; None: before any step.
    `cap` None: no limit."""

    device: str
    bytes: int
    cap: int | None
    at: tuple[str, int] | None


def footprint(program: Program, history: History | None = None) -> tuple[Peak, ...]:
    """Return an upper bound on the peak of each device with buffers of the program, in order of the buffers."""
    history = history or History(program)
    caps = dict(program.caps)
    profiles = _profiles(program)
    peaks = []
    for device, resting in _resting(program.buffers).items():
        peak, at = resting, None
        lanes = profiles.get(device, {})
        for lane, points in lanes.items():
            bounds = [resting + during for _, during, _, allocates in points if allocates]
            positions = [position for position, _, _, allocates in points if allocates]
            for other, theirs in lanes.items():
                if other != lane:
                    for index, most in enumerate(_windows(history, lane, positions, other, theirs)):
                        bounds[index] += most
            for position, bound in zip(positions, bounds):
                if bound > peak:
                    peak, at = bound, (program.lanes[lane].name, position)
        peaks.append(Peak(device, peak, caps.get(device), at))
    return tuple(peaks)


def fits(program: Program) -> bool:
    """Return True if no device may exceed its cap."""
    return all(peak.cap is None or peak.bytes <= peak.cap for peak in footprint(program))


def _resting(buffers: Iterable[Buffer]) -> dict[str, int]:
    """Return the bytes of buffers that exist before the call, by device."""
    resting: dict[str, int] = {}
    for buffer in buffers:
        exists = buffer.kind in ("given", "resident") and buffer.storage == buffer.name
        resting[buffer.device] = resting.get(buffer.device, 0) + (buffer.bytes if exists else 0)
    return resting


_Point = tuple[int, int, int, bool]
"""Position, bytes of the lane during the step and after it, whether it allocates."""


def _profiles(program: Program) -> dict[str, dict[int, list[_Point]]]:
    """Return the memory profile of each lane on each device: a point for each step that changes it."""
    scratch = dict(program.workspace)
    delivered = {buffer.storage for buffer in program.buffers if buffer.kind == "result"}
    levels: dict[tuple[str, int], int] = {}
    profiles: dict[str, dict[int, list[_Point]]] = {}
    for index, lane in enumerate(program.lanes):
        for position, step in enumerate(lane.steps):
            new = extra = 0
            device = lane.device
            if isinstance(step, Compute | Piece):
                buffers = (program.buffer[name] for name in step.writes)
                new = sum(buffer.bytes for buffer in buffers if buffer.storage == buffer.name)
                extra = scratch.get(tasks_of(step)[0], 0)
            elif isinstance(step, Copy):
                device, new = program.buffer[step.dst].device, program.buffer[step.dst].bytes
            elif isinstance(step, Free):
                buffer = program.buffer[step.buffer]
                if buffer.storage == buffer.name and buffer.name not in delivered:
                    device, new = buffer.device, -buffer.bytes
            if new or extra:
                before = levels.get((device, index), 0)
                during = before + max(new, 0) + extra
                levels[device, index] = before + new
                point = (position, during, before + new, new > 0 or extra > 0)
                profiles.setdefault(device, {}).setdefault(index, []).append(point)
    return profiles


def _windows(
    history: History, lane: int, positions: list[int], other: int, points: list[_Point]
) -> list[int]:
    """Return the maximum of `other` while each of `positions` of `lane` runs, by forward-moving windows."""
    mine, theirs = history.clocks[lane], history.clocks[other]
    first = last = level = 0
    window: deque[tuple[int, int]] = deque()
    windows = []
    for position in positions:
        known = mine[position][other]
        while last < len(points) and theirs[points[last][0]][lane] <= position:
            while window and window[-1][1] <= points[last][1]:
                window.pop()
            window.append((last, points[last][1]))
            last += 1
        while first < len(points) and points[first][0] < known:
            level = points[first][2]
            first += 1
        while window and window[0][0] < first:
            window.popleft()
        windows.append(max(level, window[0][1]) if window else level)
    return windows


@dataclass(slots=True)
class _Allocation:
    """An allocation: the bytes of its lane while the step runs, and the maximum of each other lane meanwhile."""

    position: int
    during: int
    others: list[int]


def ledgers(
    machine: Machine, buffers: Iterable[Buffer], lanes: int, strict: Collection[str]
) -> dict[str, _Ledger]:
    """Return the ledger of each device with a cap. `buffers`: those that exist before the call."""
    base = _resting(buffers)
    return {
        unit.name: _Ledger(unit.name, unit.memory_bytes, base.get(unit.name, 0), lanes, unit.name in strict)
        for unit in machine.devices
        if unit.memory_bytes is not None
    }


class _Ledger:
    """Bytes of one device under a cap: `base` always, the rest by lane and position.

    With `strict`, later steps update the bound of every allocation, so that `footprint`, which does not know
    the order of appending, finds the same bounds. Raises MemoryCapError if `base` is over the cap.
    """

    def __init__(self, device: str, cap: int, base: int, lanes: int, strict: bool):
        if base > cap:
            raise MemoryCapError(
                f"inputs and state on {device} take {size(base)}, over its cap of {size(cap)}, before anything runs",
                f"Raise it above memory={{{device!r}: {base}}} or pin some modules to another device",
                {device: base},
            )
        self.cap, self.base, self.strict = cap, base, strict
        self.levels: list[list[tuple[int, int]]] = [[] for _ in range(lanes)]
        # For each lane, the allocations that no later one exceeds. The first of them from a position on is
        # the most that the lane holds from there on.
        self.tops: list[list[tuple[int, int]]] = [[] for _ in range(lanes)]
        self.points: list[list[_Allocation]] = [[] for _ in range(lanes)]

    @property
    def allocators(self) -> int:
        """The number of lanes that allocate."""
        return sum(1 for levels in self.levels if levels)

    def level(self, lane: int) -> int:
        """Return the bytes of a lane after all its steps so far."""
        return self.levels[lane][-1][1] if self.levels[lane] else 0

    def alive(self) -> int:
        """Return the bytes in use after all steps of all lanes so far."""
        return self.base + sum(levels[-1][1] for levels in self.levels if levels)

    def allocate(self, lane: int, position: int, nbytes: int, scratch: int, clock: Clock) -> None:
        """Note that the step at `position` allocates `nbytes` to keep and `scratch` while it runs."""
        level = self.level(lane) + nbytes
        during = level + scratch
        if self.strict:
            for _, point in self._open(lane, clock):
                point.others[lane] = max(point.others[lane], during)
            others = [0 if other == lane else self._most(other, known) for other, known in enumerate(clock)]
            self.points[lane].append(_Allocation(position, during, others))
        tops = self.tops[lane]
        while tops and tops[-1][1] <= during:
            tops.pop()
        tops.append((position, during))
        self.levels[lane].append((position, level))

    def release(self, lane: int, position: int, nbytes: int) -> None:
        """Note that the step at `position` frees `nbytes`."""
        self.levels[lane].append((position, self.level(lane) - nbytes))

    def short(self, lane: int, clock: Clock, nbytes: int) -> int:
        """Return the possible excess over the cap of `nbytes` more in the next step of `lane`, whose clock is
        `clock`."""
        others = sum(self._most(other, known) for other, known in enumerate(clock) if other != lane)
        return self.base + self.level(lane) + others + nbytes - self.cap

    def behind(self, lane: int, clock: Clock, short: int) -> tuple[int, int]:
        """Return the (lane, position) to wait for that saves the most bytes, or the fewest that suffice if one
        does."""
        ranks = []
        for other, levels in enumerate(self.levels):
            if other != lane and levels:
                saved = self._most(other, clock[other]) - levels[-1][1]
                if saved > 0:
                    enough = saved >= short
                    ranks.append((enough, -saved if enough else saved, -other, levels[-1][0]))
        *_, other, position = max(ranks)
        return -other, position

    def crossed(self, lane: int, clock: Clock, nbytes: int) -> dict[int, int]:
        """Return the position of the last allocation of each other lane during which the cap has no room for `nbytes`
        more in `lane`."""
        during = self.level(lane) + nbytes
        return {
            other: point.position
            for other, point in self._open(lane, clock)
            if self.base + point.during + sum(point.others) + max(0, during - point.others[lane]) > self.cap
        }

    def _open(self, lane: int, clock: Clock) -> list[tuple[int, _Allocation]]:
        """Return allocations of other lanes not known to have ended, in order of lane and position."""
        still_open = []
        for other, points in enumerate(self.points):
            if other != lane:
                first = bisect_left(points, clock[other], key=lambda point: point.position)
                still_open += [(other, point) for point in points[first:]]
        return still_open

    def _most(self, lane: int, known: int) -> int:
        """Return the maximum bytes of a lane of which `known` steps are known to have ended."""
        levels, tops = self.levels[lane], self.tops[lane]
        index = bisect_left(levels, (known,)) - 1
        first = bisect_left(tops, (known,))
        return max(levels[index][1] if index >= 0 else 0, tops[first][1] if first < len(tops) else 0)
