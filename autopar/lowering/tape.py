"""A lane that is being written by `lower`."""

from __future__ import annotations

from ..ir.program import Step
from .vector_clocks import Clock, joined, needed


class Tape:
    """A lane being written: its steps, the clock before each, and buffers it will free. A wait is (lane,
    position).
    """

    def __init__(self, index: int, name: str, device: str, lanes: int):
        self.index, self.name, self.device = index, name, device
        self.steps: list[Step | tuple[int, int]] = []
        self.clock: Clock = (0,) * lanes
        self.clocks: list[Clock] = []
        # Buffers to free here, by the lane and position of a reader not known to be over, first position
        # first.
        self.pending: dict[int, list[tuple[int, str]]] = {}

    def append(self, step: Step | tuple[int, int]) -> int:
        """Add a step; its index."""
        self.steps.append(step)
        self.clocks.append(self.clock)
        return len(self.steps) - 1

    def wait(self, waits: list[tuple[int, int]], clocks: list[list[Clock]]) -> None:
        """Wait for the last of some steps; waits right before this that it makes needless are taken back."""
        before: list[tuple[int, int]] = []
        while self.steps and isinstance(last := self.steps[-1], tuple):
            before.append(last)
            self.steps.pop()
            self.clock = self.clocks.pop()
        both = dict(reversed(before))
        for lane, position in waits:
            both[lane] = max(position, both.get(lane, 0))
        for lane, position in needed(both, self.clock, clocks):
            self.append((lane, position))
            self.clock = joined(self.clock, clocks[lane][position], lane, position)
