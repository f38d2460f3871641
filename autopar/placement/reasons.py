"""Why each run of a plan is where it is, worked out from the plan itself."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from ..cost import CostedGraph
from ..plans import Choice, Placed, Reason
from ..problem import Problem
from ..simulate import Timing
from ..tables import seconds

NEGLIGIBLE = 1e-9
"""Seconds that are no reason for anything."""


class Reasons(Sequence[Reason]):
    """A reason for each run, in graph order, worked out when one is first asked for: most plans are never asked.

    Each `Choice` holds the rest of the plan as it is: when the run's inputs would be on that device (those
    already brought there when they arrive, others by their own transfer on an idle wire), when a queue of it
    is idle from then on, and the end that follows. `shortest`: nothing that was tried is shorter. `others`
    says what the race found when all runs are on one device.
    """

    def __init__(self, costed: CostedGraph, timing: Timing, policy: str, shortest: bool, others: str) -> None:
        self.costed = costed
        self.placed, self.transfers = timing.placed, timing.transfers
        self.policy, self.shortest, self.others = policy, shortest, others

    def __len__(self) -> int:
        return len(self.costed.runs)

    def __getitem__(self, index: Any) -> Any:
        return self.all[index]

    def __iter__(self) -> Iterator[Reason]:
        return iter(self.all)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self.all == tuple(other)

    def __hash__(self) -> int:
        return hash(self.all)

    def __repr__(self) -> str:
        return repr(self.all)

    @cached_property
    def all(self) -> tuple[Reason, ...]:
        """The reasons themselves."""
        problem = Problem(self.costed)
        placed = {step.run: step for step in self.placed}
        there: list[dict[int, float]] = [{home: 0.0} if home >= 0 else {} for home in problem.home]
        for r, name in enumerate(problem.names):
            for v in problem.makes[r]:
                there[v][problem.costed.index[placed[name].device]] = placed[name].end
        for step in self.transfers:
            there[problem.value[step.value]][problem.costed.index[step.dst]] = step.end
        idle = _Idle(problem, self.placed)
        used = {step.device for step in self.placed}
        found = []
        for r, name in enumerate(problem.names):
            choices = tuple(_choice(problem, r, d, placed, there, idle) for d in range(len(problem.devices)))
            text = _sentence(
                problem, r, placed[name], choices, self.policy, self.shortest, self.others, len(used) == 1
            )
            found.append(Reason(name, text, choices))
        return tuple(found)


class _Idle:
    """When each queue is busy, back-to-back runs as one stretch."""

    def __init__(self, problem: Problem, placed: Sequence[Placed]) -> None:
        self.stretches: dict[str, tuple[list[float], list[float]]] = {
            lane: ([], []) for lanes in problem.lane_names for lane in lanes
        }
        for step in placed:
            starts, ends = self.stretches[step.lane]
            if ends and step.start <= ends[-1]:
                ends[-1] = max(ends[-1], step.end)
            elif step.end > step.start:
                starts.append(step.start)
                ends.append(step.end)

    def after(self, lane: str, time: float) -> float:
        """The first moment from `time` on at which nothing runs on a queue."""
        starts, ends = self.stretches[lane]
        at = bisect_right(starts, time) - 1
        return max(time, ends[at]) if at >= 0 else time


def _choice(
    problem: Problem,
    r: int,
    d: int,
    placed: dict[str, Placed],
    there: list[dict[int, float]],
    idle: _Idle,
) -> Choice:
    device = problem.devices[d]
    arrives = max((placed[problem.names[p]].end for p in problem.before[r]), default=0.0)
    for v in problem.reads[r]:
        source, time = next(iter(there[v].items()))
        arrives = max(arrives, there[v].get(d, time + problem.travel(v, source, d)))
    own = placed[problem.names[r]]
    if d not in problem.allowed[r]:
        return Choice(device, arrives if arrives < math.inf else 0.0, 0.0, None, f"it cannot run on {device}")
    if arrives == math.inf:
        return Choice(device, 0.0, 0.0, None, f"no link brings its inputs to {device}")
    if own.device == device:
        return Choice(device, arrives, own.start, own.end, "chosen")
    free = min(idle.after(lane, arrives) for lane in problem.lane_names[d])
    return Choice(device, arrives, free, free + problem.seconds[r][d])


def _sentence(
    problem: Problem,
    r: int,
    own: Placed,
    choices: Sequence[Choice],
    policy: str,
    shortest: bool,
    others: str,
    alone: bool,
) -> str:
    if len(problem.devices) == 1:
        return f"{own.device} is the only device there is."
    if len(problem.allowed[r]) == 1:
        task = problem.costed.graph.task[problem.costed.runs[r].tasks[0]]
        why = (
            "it must run where the call comes from"
            if task.home
            else "a pin, or what it shares a device with, says so"
        )
        return f"It can only run on {own.device}: {why}."
    if alone and others:
        return f"Everything is on {own.device}: {others}."
    if problem.group[r] >= 0 and len(problem.members[problem.group[r]]) > 1:
        tied = "the runs it changes values in place with" if problem.changes else "the rest of its group"
        together = f" It shares {own.device} with {tied}."
    else:
        together = ""
    ends = {choice.device: choice.end for choice in choices if choice.end is not None}
    rivals = [(device, end) for device, end in ends.items() if device != own.device]
    if not rivals:
        return (
            f"It can only be on {own.device}: no link brings its inputs to another device that could run it."
        )
    rival, end = min(rivals, key=lambda pair: pair[1])
    if end > own.end + NEGLIGIBLE:
        text = f"It ends first on {own.device}, {seconds(end - own.end)} before it would on {rival}."
    elif end >= own.end - NEGLIGIBLE:
        text = f"It would end no sooner on {rival}."
    elif not shortest:
        sooner = seconds(own.end - end)
        text = f"The policy {policy} put it on {own.device}; on {rival} it would itself end {sooner} sooner."
    else:
        text = (
            f"On {rival} it would itself end {seconds(own.end - end)} sooner, but no plan that was tried is "
            f"shorter than this one, which has it on {own.device}."
        )
    return text + together
