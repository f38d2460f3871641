"""Tuning: plans from the recorded seconds of tasks, repeated until they no longer improve."""

from __future__ import annotations

import dataclasses
import logging
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch

from ..costs import measure as measuring
from ..costs.detect import present
from ..costs.measure import Seconds, note
from ..costs.replay import FEWEST, preemptions, undisturbed
from ..errors import AutoparError, PlanError
from ..ir.plan import Plan
from ..ir.timeline import Timeline
from ..pipeline.stages import Prepared, bind, plan_captured, timed
from ..system.text import percent, seconds, table
from .backend import Backend
from .served import Served

log = logging.getLogger("autopar")

ROUNDS, CALLS = 4, 9
MOST = 5
"""Limit on recorded calls for each call that counts."""
WORTH = 0.01
"""Share by which a plan must be shorter to be tried, and its calls faster to be kept."""


@dataclass(frozen=True)
class _Round:
    """One recorded round: names of the plans, and predicted and measured seconds of a call, summed over its
    graphs."""

    plans: tuple[str, ...]
    predicted: float
    measured: float


@dataclass(frozen=True)
class Tuned:
    """The result of a tuning: its rounds, the number of the round whose plans are kept, and the reason it stopped."""

    rounds: tuple[_Round, ...]
    kept: int
    ended: str

    @property
    def before(self) -> float:
        """Seconds of a call before tuning."""
        return self.rounds[0].measured

    @property
    def after(self) -> float:
        """Seconds of a call with the kept plans."""
        return self.rounds[self.kept].measured

    def __str__(self) -> str:
        rows = [("round", "plan", "predicted", "measured", "against the first", "")]
        for number, each in enumerate(self.rounds):
            against = percent(each.measured / self.before - 1) if self.before else ""
            stays = "stays" if number == self.kept else ""
            times = seconds(each.predicted), seconds(each.measured)
            rows.append((str(number), "; ".join(each.plans), *times, against, stays))
        return f"{table(rows, right=(0, 2, 3, 4))}\n{self.ended}\n"


@dataclass(eq=False)
class _Regions:
    """The graphs of a model that a call runs, each with its current program."""

    backend: Backend
    call: Callable[[], Any]
    programs: dict[Served, Prepared] = field(default_factory=dict)
    wall: float = 0.0
    quiet: bool = False

    def run(self, calls: int) -> tuple[float, dict[Served, Seconds]]:
        """Return the median seconds of calls (lanes only), and of each task.

        Calls during which another process took a core do not count if enough others remain; `quiet` says
        whether enough do.
        """
        self.call()
        walls = [self._timed() for _ in range(calls)]
        self.wall = statistics.median(undisturbed(walls))
        recorded = self._recorded(calls)
        self.quiet = all(sum(not taken for taken, _ in each) >= FEWEST for each in (walls, recorded))
        by_title: dict[str, list[Timeline]] = {}
        for timeline in chain.from_iterable(undisturbed(recorded)):
            by_title.setdefault(timeline.title, []).append(timeline)
        self.programs = self._served(by_title)
        total, found = 0.0, dict[Served, Seconds]()
        for served, program in self.programs.items():
            lines = by_title[program.plan.costed.graph.name]
            total += statistics.median(line.makespan for line in lines) / program.plan.costed.machine.stretch
            found[served] = measuring.medians(program.plan, lines)
        return total, found

    def _recorded(self, calls: int) -> list[tuple[int, list[Timeline]]]:
        """Return the preemptions during each call, with its timelines. With a declared clock, only calls that
        kept it count, so more calls may be needed."""
        found: list[tuple[int, list[Timeline]]] = []
        with self.backend.record() as recording:
            for _ in range(MOST * calls):
                so_far = len(recording.calls)
                taken, _ = self._timed()
                found.append((taken, recording.calls[so_far:]))
                kept = {id(timeline) for timeline in recording.counted}
                counted = [each for each in found if all(id(timeline) in kept for timeline in each[1])]
                if len(counted) >= calls:
                    return counted
        if not counted:
            raise AutoparError(
                "no call kept the declared clock: this machine is too busy; give Machine.emulate a larger slow_down="
            )
        return counted

    def _timed(self) -> tuple[int, float]:
        """Return the preemptions during one call, and its seconds."""
        before, begin = preemptions(), time.perf_counter()
        self.call()
        return preemptions() - before, time.perf_counter() - begin

    def _served(self, titles: Mapping[str, Any]) -> dict[Served, Prepared]:
        found: dict[str, list[tuple[Served, Prepared]]] = {}
        for served in self.backend.served:
            for program in list(served.programs.values())[-1:]:
                if not isinstance(program, Prepared):
                    raise PlanError("calls in training cannot be tuned; call tune inside torch.no_grad()")
                found.setdefault(program.plan.costed.graph.name, []).append((served, program))
        # If graphs share a name, no recording tells which of them it is of.
        own = {name: each[0] for name, each in found.items() if len(each) == 1 and name in titles}
        if not own:
            raise AutoparError(
                "no program of this model can be told from the others; there is nothing to tune"
            )
        return dict(own.values())

    def install(self, programs: Mapping[Served, Prepared]) -> None:
        """Serve the next calls with these programs."""
        for served, program in programs.items():
            if self.programs[served] is not program:
                served.exchange(self.programs[served], program)
        self.programs = dict(programs)


def tuned(backend: Backend, call: Callable[[], Any], rounds: int, calls: int) -> Tuned:
    """Tune the programs that `call` runs; see `Compiled.tune`."""
    if backend.given is not None:
        raise PlanError("plan= says what the plan is; compile without it to have it tuned")
    regions, done, seen, calls = _Regions(backend, call), [], set(), max(1, calls)
    best: tuple[float, int, dict[Served, Prepared]] = (float("inf"), 0, {})
    ended = f"ended after {rounds} rounds"
    for number in range(max(1, rounds)):
        before = sum(program.plan.makespan for program in regions.programs.values())
        took, tasks = regions.run(calls)
        before = before or sum(program.plan.makespan for program in regions.programs.values())
        names = tuple(program.plan.candidate().name for program in regions.programs.values())
        done.append(_Round(names, before, took))
        log.info("tune, round %d: %s", number, seconds(took))
        seen.add(_placements(regions.programs))
        for served, program in regions.programs.items():
            program.reprice(measuring.recorded(program.plan, tasks[served]))
        if number == 0:
            _keep(backend, regions, tasks)
        if took < best[0] * (1 - WORTH):
            best = took, number, dict(regions.programs)
        elif number:
            ended = "the last plan was not quicker"
            break
        if number + 1 >= rounds:
            break
        planned = _planned(backend, regions, tasks)
        if _placements(planned) in seen:
            ended = "planned again, everything stays where it is"
            break
        regions.install(planned)
    regions.install(best[2])
    return Tuned(tuple(done), best[1], ended)


def _planned(backend: Backend, regions: _Regions, tasks: Mapping[Served, Seconds]) -> dict[Served, Prepared]:
    """Return, for each graph, a new program if its prediction is shorter, else the one that ran."""
    found = {}
    for served, program in regions.programs.items():
        plan, captured = program.plan, program.source
        assert captured is not None
        machine = backend.machine
        homes = plan.costed.home
        tensors = [
            torch.empty(0, device=machine.device[homes.get(name, machine.host)].torch_device)
            for name in captured.graph.inputs
        ]
        options = dataclasses.replace(backend.options.within(captured.graph), measure=False)
        known = measuring.recorded(plan, tasks[served])
        other: Plan = timed("plan", plan_captured, captured, machine, options, tensors, None, known)
        shorter = other.makespan < plan.makespan * (1 - WORTH)
        found[served] = bind(captured, other, backend.pool) if shorter else program
    return found


def _placements(programs: Mapping[Served, Prepared]) -> tuple[Any, ...]:
    """Return placement and order of all tasks of some programs, as a comparable key."""
    return tuple(str(program.program) for program in programs.values())


def _keep(backend: Backend, regions: _Regions, tasks: Mapping[Served, Seconds]) -> None:
    """Keep the seconds measured on a real and quiet machine; for one graph on one lane, also the seconds of a
    call beyond its tasks."""
    if not (present(backend.machine) and regions.quiet):
        return
    for served, program in regions.programs.items():
        graph, whole = program.plan.costed.graph, len(regions.programs) == 1 and backend.machine.serial
        beside = max(0.0, regions.wall - program.plan.makespan) if whole else 0.0
        note(graph, backend.machine, program.captured.calls, tasks[served], beside)
        if beside:
            program.plan = dataclasses.replace(
                program.plan, costed=dataclasses.replace(program.plan.costed, call_s=beside)
            )
