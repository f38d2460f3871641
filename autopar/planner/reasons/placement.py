"""Why each run of a plan is where it is, worked out from the plan itself."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import cached_property

from ...ir.costed import CostedGraph
from ...ir.plan import Choice, Reason
from ...ir.steps import Placed
from ...text.tables import seconds, size
from ..model.lazy_sequence import Lazily
from ..model.problem import Problem
from ..model.timing import Timing
from .alternatives import Arrival, Elsewhere

NEGLIGIBLE = 1e-9
"""Seconds that are no reason for anything."""


class Reasons(Lazily):
    """A reason for each run of a plan for one call.

    Each `Choice` holds the rest of the plan as it is: see `Elsewhere`. `shortest`: nothing that was tried is
    shorter. `others` says what the race found when all runs are on one device.
    """

    def __init__(self, costed: CostedGraph, timing: Timing, policy: str, shortest: bool, others: str) -> None:
        super().__init__(run.name for run in costed.runs)
        self.costed, self.timing = costed, timing
        self.policy, self.shortest, self.others = policy, shortest, others

    @cached_property
    def elsewhere(self) -> Elsewhere:
        """What each run could do on other devices."""
        return Elsewhere(Problem(self.costed), self.timing)

    @cached_property
    def alone(self) -> bool:
        """Whether all is on one device."""
        return len({step.device for step in self.timing.placed}) == 1

    def work_out(self, r: int) -> Reason:
        """The reason of run `r`."""
        own = self.elsewhere.own[r]
        arrivals = self.elsewhere.ways(r)
        choices = tuple(self._choice(r, arrival) for arrival in arrivals)
        return Reason(own.run, self._sentence(r, own, choices), choices)

    def _choice(self, r: int, way: Arrival) -> Choice:
        problem, own = self.elsewhere.problem, self.elsewhere.own[r]
        device = problem.devices[way.device]
        if device == own.device:
            return Choice(device, way.arrives, own.start, own.end, "chosen")
        if way.device not in problem.allowed[r]:
            return Choice(device, way.arrives, 0.0, None, self._barred(r, way.device))
        if way.end is None:
            return Choice(device, 0.0, 0.0, None, f"no link brings its inputs to {device}")
        lacks = self._lacks(r, way)
        if lacks:
            return Choice(device, way.arrives, way.start, None, lacks)
        return Choice(device, way.arrives, way.start, way.end)

    def _barred(self, r: int, d: int) -> str:
        """What keeps run `r` from device number `d`."""
        problem = self.elsewhere.problem
        unable = self._unable(r, d)
        if unable is None:
            return f"no links bring all its values to and from {problem.devices[d]}"
        if unable == r:
            return f"it cannot run on {problem.devices[d]}"
        return f"{problem.names[unable]}, with which it shares a device, cannot run on {problem.devices[d]}"

    def _unable(self, r: int, d: int) -> int | None:
        """The run itself, or else one that must be where it is, that cannot run on device number `d`."""
        problem = self.elsewhere.problem
        together = problem.members[problem.group[r]] if problem.group[r] >= 0 else ()
        runs = problem.costed.runs
        return next((m for m in (r, *together) if runs[m].seconds[d] is None), None)

    def _lacks(self, r: int, way: Arrival) -> str:
        """What of its memory a device lacks for a run: what it holds meanwhile in any case is already too much."""
        problem, d = self.elsewhere.problem, way.device
        cap = problem.caps[d]
        if cap is None:
            return ""
        steps = self.timing.memory[d].steps
        times = [time for time, _ in steps]
        first = max(0, bisect_right(times, way.start) - 1)
        held = max((level for _, level in steps[first : bisect_left(times, way.end or 0.0)]), default=0)
        here = dict(problem.given[d])
        for other, kept in enumerate(problem.kept):
            if kept and self.elsewhere.device[other] == d:
                here.update(kept)
        state = sum(nbytes for storage, nbytes in problem.kept[r] if storage not in here)
        brought = [v for v in problem.reads[r] if d not in self.elsewhere.there[self.elsewhere.root[v]]]
        needs = state + problem.workspace[r] + sum(problem.bytes[v] for v in (*brought, *problem.makes[r]))
        if held + needs <= cap:
            return ""
        return (
            f"no room on {problem.devices[d]}: {size(held)} of {size(cap)} are held, it takes {size(needs)}"
        )

    def _sentence(self, r: int, own: Placed, choices: Sequence[Choice]) -> str:
        problem = self.elsewhere.problem
        if len(problem.devices) == 1:
            return f"{own.device} is the only device there is."
        if own.run in self.elsewhere.original:
            return self._copied(own)
        if len(problem.allowed[r]) == 1:
            return f"It can only run on {own.device}: {self._bound(r)}."
        if self.alone and self.others:
            return f"Everything is on {own.device}: {self.others}."
        if problem.group[r] >= 0 and len(problem.members[problem.group[r]]) > 1:
            together = f" It shares {own.device} with the rest of its group."
        else:
            together = ""
        rivals = [
            (choice.end, d)
            for d, choice in enumerate(choices)
            if choice.end is not None and choice.device != own.device
        ]
        if not rivals:
            why = next(
                (choice.why for choice in choices if choice.end is None and choice.why.startswith("no ")), ""
            )
            return f"It can only be on {own.device}: {why}.{together}"
        end, d = min(rivals)
        rival = problem.devices[d]
        if end > own.end + NEGLIGIBLE:
            text = f"It ends first on {own.device}, {seconds(end - own.end)} before it would on {rival}."
        elif end >= own.end - NEGLIGIBLE:
            text = f"It would end no sooner on {rival}."
        else:
            sooner = f"on {rival} it would itself end {seconds(own.end - end)} sooner"
            text = self._despite(r, d, end, sooner, own.device)
        return text + together

    def _despite(self, r: int, d: int, end: float, sooner: str, device: str) -> str:
        """Why a run is not where it would end sooner: who reads its results would have them later, if so."""
        reader, late = self.elsewhere.delayed(r, d, end)
        if late > NEGLIGIBLE:
            return (
                f"{sooner[0].upper()}{sooner[1:]}, but {reader} would have its result {seconds(late)} later."
            )
        if not self.shortest:
            return f"The policy {self.policy} put it on {device}; {sooner}."
        return (
            f"{sooner[0].upper()}{sooner[1:]}, but no plan that was tried is shorter than this one, which has it on "
            f"{device}."
        )

    def _bound(self, r: int) -> str:
        """What keeps a run from all devices but one."""
        problem = self.elsewhere.problem
        costed = problem.costed
        task = costed.graph.task[costed.runs[r].tasks[0]]
        if task.home:
            return "it must run where the call comes from"
        barred = [self._unable(r, d) for d in range(len(problem.devices)) if d != problem.allowed[r][0]]
        if None in barred:
            return "no links bring all its values to and from another device that can run it"
        other = next((m for m in barred if m != r), None)
        if other is not None:
            return f"it shares a device with {problem.names[other]}, which leaves no other"
        if all(s is None for d, s in enumerate(costed.cost[task.name].seconds) if d != problem.allowed[r][0]):
            return "no other device can run it, or its pin says so"
        return "a pin, or what it shares a device with, says so"

    def _copied(self, own: Placed) -> str:
        first, comes = self.elsewhere.instead(own.run)
        text = f"It is {first.run} computed again, so that its result need not come from {first.device}"
        return text + (f", {seconds(comes - own.end)} later." if comes > own.end else ".")
