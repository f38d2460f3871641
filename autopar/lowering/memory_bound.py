"""Worst-case memory of a program on each device, over all orders of its lanes.

Every byte is given back by the lane that allocated it, so what a lane holds is a function of its position
alone. While a step runs, another lane is somewhere between the last of its steps known to be over and the
first that must wait for this step; it holds at most the most of that window. The sum over lanes bounds the
device. With two allocating lanes (an accelerator's compute and copy-in) every position in the window can be
met, so the bound is exact.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ..ir.program import Compute, Copy, Free, Piece, Program, tasks_of
from .vector_clocks import History


@dataclass(frozen=True, slots=True)
class Peak:
    """The most `bytes` a device may hold, met while step `at` (lane, number) runs; None is before any step.

    `cap` None is no limit.
    """

    device: str
    bytes: int
    cap: int | None
    at: tuple[str, int] | None


def footprint(program: Program, history: History | None = None) -> tuple[Peak, ...]:
    """A bound on the peak of each device the program has buffers on, in order of the buffers."""
    history = history or History(program)
    caps = dict(program.caps)
    profiles = _profiles(program)
    base: dict[str, int] = {}
    for buffer in program.buffers:
        there = buffer.kind in ("given", "resident") and buffer.storage == buffer.name
        base[buffer.device] = base.get(buffer.device, 0) + (buffer.bytes if there else 0)
    peaks = []
    for device, resting in base.items():
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


_Point = tuple[int, int, int, bool]
"""Position, bytes the lane holds while the step runs and after it, whether it allocates."""


def _profiles(program: Program) -> dict[str, dict[int, list[_Point]]]:
    """Memory profile of each lane on each device: a point for each step at which it changes."""
    scratch = dict(program.workspace)
    delivered = {buffer.storage for buffer in program.buffers if buffer.kind == "result"}
    held: dict[tuple[str, int], int] = {}
    found: dict[str, dict[int, list[_Point]]] = {}
    for index, lane in enumerate(program.lanes):
        for position, step in enumerate(lane.steps):
            new = extra = 0
            device = lane.device
            if isinstance(step, Compute | Piece):
                own = (program.buffer[name] for name in step.writes)
                new = sum(buffer.bytes for buffer in own if buffer.storage == buffer.name)
                extra = scratch.get(tasks_of(step)[0], 0)
            elif isinstance(step, Copy):
                device, new = program.buffer[step.dst].device, program.buffer[step.dst].bytes
            elif isinstance(step, Free):
                freed = program.buffer[step.buffer]
                if freed.storage == freed.name and freed.name not in delivered:
                    device, new = freed.device, -freed.bytes
            if new or extra:
                before = held.get((device, index), 0)
                during = before + max(new, 0) + extra
                held[device, index] = before + new
                point = (position, during, before + new, new > 0 or extra > 0)
                found.setdefault(device, {}).setdefault(index, []).append(point)
    return found


def _windows(
    history: History, lane: int, positions: list[int], other: int, points: list[_Point]
) -> list[int]:
    """The most `other` may hold while each of `positions` of `lane` runs; windows only move forward."""
    mine, theirs = history.clocks[lane], history.clocks[other]
    first = last = level = 0
    window: deque[tuple[int, int]] = deque()
    found = []
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
        found.append(max(level, window[0][1]) if window else level)
    return found
