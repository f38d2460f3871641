"""The ways a model of the zoo is executed: eager, and compiled with each placement and backend."""

from __future__ import annotations

import contextlib
import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import adversary
import torch
from torch.utils import _pytree as pytree

import autopar
from autopar.capture import Captured
from autopar.ir.device import Device, Link
from autopar.ir.graph import LOCAL
from autopar.ir.machine import Machine
from autopar.ir.open_size import OPENED
from autopar.ir.plan import Plan
from autopar.ir.program import Program
from autopar.session import own_loop as dropin
from autopar.session import stages
from autopar.session.compare import interpret
from autopar.session.compiled import Compiled
from autopar.session.session import Session

from .compare import snapshot
from .entry import Entry

CALLS = 2
"""Calls of each model on each route: state that a call leaves behind shows in the next."""

NAMES = ("cpu", "emulated:0", "emulated:1")


def machine(*names: str) -> Machine:
    """Devices with one thread each, so slow to launch that no two tasks are worth fusing into a run."""
    devices = tuple(Device(n, n.partition(":")[0], launch_s=1e-3, dispatch_s=1e-5) for n in names)
    links = tuple(Link(a, b, 1e-6, 1e10, None) for a in names for b in names if a != b)
    return Machine(devices, links).check()


class TaskByTask:
    """In the place of an `Executor`: the planned graph one task after the other, updates written at the end."""

    any_size, due, raced = False, False, True

    def __init__(self, captured: Captured, plan: Plan, program: Program, *_: Any) -> None:
        self.captured, self.graph, self.program = captured, plan.costed.graph, program

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        live = {name: owner[key] for name, (owner, key) in self.captured.state.items()}
        live.update(zip(self.graph.inputs, inputs))
        with torch.no_grad():
            outputs, updates = self.once(dict(live))
            for name, tensor in updates.items():
                live[name].copy_(tensor)
        return outputs

    def once(self, values: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """The outputs and, by name of what is updated, the updates of one call."""
        for _ in interpret(self.graph, self.captured.calls, values, torch.device("cpu")):
            pass
        outputs = [values[name] for name in self.graph.outputs]
        return outputs, {target: values[made] for made, target in self.graph.updates}

    def resized(self, sizes: tuple[float, ...]) -> TaskByTask:
        """See `Executor`."""
        made, sized = copy.copy(self), _with(sizes)
        tasks = (replace(task, args=sized(task.args), kwargs=sized(task.kwargs)) for task in self.graph.tasks)
        made.graph = replace(self.graph, tasks=tuple(tasks))
        return made

    def run(self, inputs: Sequence[Any], record: bool) -> tuple[list[Any], None]:
        """See `Executor`."""
        return self(inputs), None

    def current(self) -> bool:
        """See `Executor`: it reads weights where they are."""
        return True

    def close(self) -> None:
        """See `Executor`."""


def _with(sizes: tuple[float, ...]) -> Callable[[Any], Any]:
    """The arguments of a task with these numbers in place of those that vary."""
    return lambda given: pytree.tree_map_only(OPENED, lambda number: sizes[number.place], given)


class Adversarial(TaskByTask):
    """The program, its ready steps in the worst order the events permit, in each call another one."""

    seeds = itertools.count()

    def once(self, values: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        # The adversary works on copies of what it is given: what tasks write in place is to be handed out too.
        known = {target for _, target in self.program.updates}
        written = tuple(
            (buffer.name, buffer.value)
            for buffer in self.program.buffers
            if buffer.kind == "given" and buffer.value in self.graph.mutated - known
        )
        program = replace(self.program, updates=(*self.program.updates, *written))
        outputs, updates = adversary.run(program, self.graph, self.captured.calls, values, next(self.seeds))
        return outputs, dict(zip((target for _, target in program.updates), updates))


@dataclass(frozen=True)
class Route:
    """Devices, options of `compile`, and what runs the programs where the runtime does not."""

    devices: tuple[str, ...]
    options: dict[str, Any]
    executor: type[TaskByTask] | None = None

    @contextlib.contextmanager
    def compiled(self, model: Any) -> Iterator[Compiled]:
        """The model compiled so, anew: nothing that Dynamo knows of it is kept from before."""
        torch._dynamo.reset()
        with contextlib.ExitStack() as stack:
            if self.executor is not None:
                stack.enter_context(mock.patch.object(stages, "Executor", self.executor))
                stack.enter_context(mock.patch.object(dropin, "Executor", self.executor))
            fast = autopar.compile(model, machine(*self.devices), **self.options)
            stack.callback(fast.close)
            yield fast


def routes(devices: tuple[str, ...] = NAMES) -> dict[str, Route]:
    """All routes by name; `devices` are those of the last three."""
    spread = {"policy": "round_robin", "check": "never"}
    return {
        "task by task": Route(("cpu",), {"split": None, "check": "never"}, TaskByTask),
        "cpu": Route(("cpu",), {"split": None}),
        "round robin": Route(devices, {**spread, "split": None}),
        "adversarial": Route(devices, {**spread, "split": None}, Adversarial),
        "batch in two": Route(devices, {**spread, "split": 2}),
    }


@dataclass(frozen=True)
class Found:
    """What was captured of a model: graphs, the tasks of those that are placed, how many run as written, and why these
    do, or calls of which there is no graph; `drawn` where devices draw random numbers of their own."""

    graphs: int
    tasks: int
    written: int
    reasons: tuple[str, ...]
    drawn: bool = False

    @staticmethod
    def of(session: Session) -> Found:
        placed = [served for served in session.graphs if not served.written]
        counts = [len(next(iter(s.programs.values())).captured.graph.tasks) for s in placed if s.programs]
        written = [served.written for served in session.graphs if served.written]
        reasons = (*written, *session.unplaced)
        drawn = any(task.random == LOCAL for plan in session.plans() for task in plan.costed.graph.tasks)
        return Found(len(session.graphs), sum(counts), len(written), reasons, drawn)

    def __str__(self) -> str:
        if not self.graphs:
            return "no graph"
        count = f"{self.graphs} graph{'s' * (self.graphs > 1)}"
        return f"{self.written} of {count} as written" if self.written else count


def eager(entry: Entry) -> list[Any]:
    """What each call leaves behind, by the model itself."""
    model, args, kwargs = entry.build()
    return calls(model, model, args, kwargs)


def placed(entry: Entry, route: Route) -> tuple[list[Any], Found]:
    """What each call leaves behind on a route, and what was captured."""
    model, args, kwargs = entry.build()
    with route.compiled(model) as fast:
        answers = calls(fast, model, args, kwargs)
        return answers, Found.of(fast._placement.session)


def calls(call: Callable[..., Any], model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Snapshots after each of `CALLS` calls, the generator seeded before the first."""
    found = []
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(7)
        for _ in range(CALLS):
            found.append(snapshot(model, args, kwargs, call(*args, **kwargs)))
    return found
