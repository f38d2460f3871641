"""Vector clocks over the lanes of a program.

A step is (lane, position). The clock of a lane has, for every lane, the number of steps known to have ended before the
lane's next step starts; a wait merges the clock of the step it waits for (Fidge 1988, Mattern 1989). Step b happens
after step a = (r, q) exactly if the clock of b exceeds q at r.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from ..errors import ProgramError
from ..ir.program import Program, Record, Wait

Clock: TypeAlias = tuple[int, ...]


def joined(clock: Clock, other: Clock, lane: int, position: int) -> Clock:
    """Return `clock` after waiting for step `position` of `lane`, whose clock is `other`."""
    merged = [mine if mine >= theirs else theirs for mine, theirs in zip(clock, other)]
    merged[lane] = max(merged[lane], position + 1)
    return tuple(merged)


def needed(
    wanted: Mapping[int, int], clock: Clock, clocks: Sequence[Sequence[Clock]]
) -> list[tuple[int, int]]:
    """Return the fewest (lane, position) to wait for so that all of `wanted` (lane → position) have happened.

    `clock`: what is already known. `clocks[lane][position]`: clock of each step. Happens-before is a partial order, so
    its maximal elements suffice and are all needed.
    """
    missing = [(lane, position) for lane, position in wanted.items() if clock[lane] <= position]
    if len(missing) < 2:
        return missing
    return sorted(
        (lane, position)
        for lane, position in missing
        if not any(clocks[other][last][lane] > position for other, last in missing if other != lane)
    )


class History:
    """Clocks of a program's steps, `clocks[lane][position]`, and one valid `order`.

    Raises ProgramError if an event is recorded twice or by no lane, or the lanes deadlock.
    """

    def __init__(self, program: Program):
        lanes = [lane.steps for lane in program.lanes]
        self.clocks: list[list[Clock]] = [[] for _ in lanes]
        self.order: list[tuple[int, int]] = []
        recorded: dict[str, tuple[int, int]] = {}
        blocked: dict[str, list[int]] = {}
        clock: list[Clock] = [(0,) * len(lanes) for _ in lanes]
        runnable = deque(range(len(lanes)))
        while runnable:
            lane = runnable.popleft()
            steps, clocks = lanes[lane], self.clocks[lane]
            for position in range(len(clocks), len(steps)):
                step = steps[position]
                if isinstance(step, Wait):
                    if step.event not in recorded:
                        blocked.setdefault(step.event, []).append(lane)
                        break
                    clocks.append(clock[lane])
                    other, last = recorded[step.event]
                    clock[lane] = joined(clock[lane], self.clocks[other][last], other, last)
                else:
                    clocks.append(clock[lane])
                    if isinstance(step, Record):
                        if step.event in recorded:
                            other, last = recorded[step.event]
                            first = program.lanes[other].describe(last)
                            second = program.lanes[lane].describe(position)
                            raise ProgramError(
                                f"event {step.event!r} is recorded twice, by {first} and {second}; name each apart"
                            )
                        recorded[step.event] = (lane, position)
                        runnable.extend(blocked.pop(step.event, ()))
                self.order.append((lane, position))
        ended = [len(clocks) for clocks in self.clocks]
        if any(count < len(steps) for count, steps in zip(ended, lanes)):
            raise ProgramError(_deadlock(program, ended))

    def follows(self, later: tuple[int, int], earlier: tuple[int, int]) -> bool:
        """Return True if step `later` can only start after step `earlier` has ended."""
        if later[0] == earlier[0]:
            return later[1] > earlier[1]
        return self.clocks[later[0]][later[1]][earlier[0]] > earlier[1]


def _deadlock(program: Program, ended: Sequence[int]) -> str:
    """Return the reason why the lanes, each after as many steps as have `ended`, go no further: an event that no lane
    records, or the cycle of lanes that wait for each other."""
    recorder = {step.event: lane for (lane, _), step in program.steps() if isinstance(step, Record)}
    waits = [lane.describe(at) if at < len(lane.steps) else "" for lane, at in zip(program.lanes, ended)]
    lane, chain = next(index for index, text in enumerate(waits) if text), []
    while lane not in chain:
        chain.append(lane)
        step = program.lanes[lane].steps[ended[lane]]
        assert isinstance(step, Wait)
        if step.event not in recorder:
            return f"{waits[lane]} waits for an event that no lane records"
        lane = recorder[step.event]
    steps = ", then ".join(waits[index] for index in chain[chain.index(lane) :])
    return (
        f"the program can never end, its lanes wait for each other: {steps}, whose event comes after the "
        "first of them; record one of these events earlier or take the wait away"
    )
