"""Steps of a program that nothing needs: `lower` writes none."""

from __future__ import annotations

from dataclasses import replace

from autopar.ir.graph import Graph
from autopar.ir.program import Copy, Program, Record, Wait, reads
from autopar.lowering.check import check, required
from autopar.lowering.memory_bound import footprint
from autopar.lowering.requirements import At
from autopar.lowering.vector_clocks import joined


def redundant(program: Program, graph: Graph | None = None) -> tuple[tuple[str, int], ...]:
    """By (lane, step number) each wait, record and copy whose single removal breaks nothing that was asked for, lane by
    lane. Without a graph nothing is known of `Task.after`, so waits that are there for it are among them."""
    lanes = program.lanes
    waited = {step.event for lane in lanes for step in lane.steps if isinstance(step, Wait)}
    used = {name for lane in lanes for step in lane.steps for name in reads(step)}
    used.update(program.results)
    search = _Search(program, graph)
    return tuple(
        (lane.name, position)
        for index, lane in enumerate(lanes)
        for position, step in enumerate(lane.steps)
        if (isinstance(step, Record) and step.event not in waited)
        or (isinstance(step, Copy) and step.dst not in used)
        or (isinstance(step, Wait) and search.spare(index, position))
    )


def _without(program: Program, lane: int, position: int) -> Program:
    """The program without one step."""
    lanes = list(program.lanes)
    steps = lanes[lane].steps
    lanes[lane] = replace(lanes[lane], steps=(*steps[:position], *steps[position + 1 :]))
    return replace(program, lanes=tuple(lanes))


class _Search:
    """Finds waits whose deletion breaks nothing."""

    NEAR = 64
    """Steps of the wait's own lane in which a demand that needs it is looked for first."""

    def __init__(self, program: Program, graph: Graph | None):
        self.program = program
        self.capped = any(peak.cap is not None for peak in check(program, graph))
        demands, self.history = required(program, graph)
        self.caps = dict(self.program.caps)
        self.wanted: dict[At, list[At]] = {}
        for earlier, later, _ in demands:
            if earlier[0] != later[0]:
                self.wanted.setdefault(later, []).append(earlier)
        self.recorded = {
            step.event: (index, position)
            for index, lane in enumerate(self.program.lanes)
            for position, step in enumerate(lane.steps)
            if isinstance(step, Record)
        }
        self.turn = {at: turn for turn, at in enumerate(self.history.order)}

    def spare(self, lane: int, position: int) -> bool:
        """Whether the program stays right without this wait."""
        if self.missed_near(lane, position) or self.missed(lane, position):
            return False
        if not self.capped:
            return True
        peaks = footprint(_without(self.program, lane, position))
        return all(peak.cap is None or peak.bytes <= peak.cap for peak in peaks)

    def missed_near(self, lane: int, position: int) -> bool:
        """Whether a step soon after it in its lane would miss it, were all other lanes to know what they do
        now.
        """
        clocks, steps = self.history.clocks, self.program.lanes[lane].steps
        clock = clocks[lane][position]
        for later in range(position + 1, min(position + self.NEAR, len(steps))):
            if any(clock[other] <= last for other, last in self.wanted.get((lane, later), ())):
                return True
            step = steps[later]
            if isinstance(step, Wait):
                other, last = self.recorded[step.event]
                clock = joined(clock, clocks[other][last], other, last)
        return False

    def missed(self, lane: int, position: int) -> bool:
        """Whether any step at all would miss it: clocks as they would be, wherever they differ."""
        clocks, order = self.history.clocks, self.history.order
        differs = {lane: clocks[lane][position]}
        events: dict[str, tuple[int, ...]] = {}
        for turn in range(self.turn[lane, position] + 1, len(order)):
            here, at = order[turn]
            clock = differs.get(here)
            if clock is not None and any(
                clock[other] <= last for other, last in self.wanted.get((here, at), ())
            ):
                return True
            step = self.program.lanes[here].steps[at]
            if isinstance(step, Record) and clock is not None:
                events[step.event] = clock
            elif isinstance(step, Wait) and (clock is not None or step.event in events):
                other, last = self.recorded[step.event]
                known = events.get(step.event, clocks[other][last])
                after = joined(clock or clocks[here][at], known, other, last)
                if at + 1 == len(clocks[here]) or after == clocks[here][at + 1]:
                    differs.pop(here, None)
                else:
                    differs[here] = after
            if not differs and not events:
                return False
        return False
