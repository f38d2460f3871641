"""The ways a model of the zoo is executed: eager, task by task, and by each placement and backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

import autopar
from autopar.capture import Captured, capture
from autopar.lowering.lower import lower
from autopar.machine import Device, Link, Machine
from autopar.options import Options
from autopar.plans import Plan
from autopar.programs import Program
from autopar.runtime import Executor, adversary
from autopar.runtime.interpret import interpret
from autopar.stages import plan_captured

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


def eager(entry: Entry) -> list[Any]:
    """What each call leaves behind, by the model itself."""
    model, args, kwargs = entry.build()
    return calls(lambda: model(*args, **kwargs), model, args, kwargs)


def calls(once: Callable[[], Any], model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Snapshots after each of `CALLS` calls of `once`, the generator seeded before the first."""
    found = []
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(7)
        for _ in range(CALLS):
            found.append(snapshot(model, args, kwargs, once()))
    return found


@dataclass
class Subject:
    """A captured model and how to put its state and arguments back between routes."""

    model: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    captured: Captured
    saved: list[tuple[dict[str, Any], str, torch.Tensor, torch.Tensor]] = field(default_factory=list)
    given: list[torch.Tensor] = field(default_factory=list)
    attributes: list[tuple[torch.nn.Module, dict[str, Any]]] = field(default_factory=list)

    @staticmethod
    def of(entry: Entry) -> Subject:
        """Capture an entry; raises what capture raises."""
        model, args, kwargs = entry.build()
        with torch.no_grad():
            subject = Subject(model, args, kwargs, capture(model, args, kwargs))
        subject.saved = [(*slot, slot[0][slot[1]].detach().clone()) for slot in subject.slots()]
        if isinstance(model, torch.nn.Module):
            subject.attributes = [(module, dict(vars(module))) for module in model.modules()]
        subject.given = [tensor.detach().clone() for tensor in subject.inputs()]
        return subject

    def slots(self) -> Iterator[tuple[dict[str, Any], str, torch.Tensor]]:
        """Where each parameter and buffer is held, whether the graph knows of it or not."""
        owners = [(owner, key) for owner, key in self.captured.state.values()]
        for module in self.model.modules() if isinstance(self.model, torch.nn.Module) else ():
            owners += [(owner, key) for owner in (module._parameters, module._buffers) for key in owner]
        return ((owner, key, owner[key]) for owner, key in owners if owner[key] is not None)

    def restore(self) -> None:
        """Put back state, arguments and attributes as they were at capture: the same objects and numbers."""
        for module, attributes in self.attributes:
            vars(module).clear()
            vars(module).update(attributes)
        with torch.no_grad():
            for owner, key, tensor, numbers in self.saved:
                owner[key] = tensor
                tensor.copy_(numbers)
            for tensor, numbers in zip(self.inputs(), self.given):
                tensor.copy_(numbers)

    def inputs(self) -> list[torch.Tensor]:
        """The call's tensors in the order of the graph's inputs."""
        return self.captured.flatten(self.args, self.kwargs)

    def live(self) -> dict[str, torch.Tensor]:
        """The model's own state and the call's own inputs, by value name."""
        found = {name: owner[key] for name, (owner, key) in self.captured.state.items()}
        return {**found, **dict(zip(self.captured.graph.inputs, self.inputs()))}

    def write(self, updates: dict[str, torch.Tensor]) -> None:
        """Copy each made value into the input or state it updates."""
        live = self.live()
        with torch.no_grad():
            for name, tensor in updates.items():
                live[name].copy_(tensor)

    def calls(self, once: Callable[[], list[Any]]) -> list[Any]:
        """Snapshots of calls of `once`, which gives the graph's outputs, from the state at capture."""
        self.restore()
        return calls(lambda: self.captured.rebuild(once()), self.model, self.args, self.kwargs)

    def program(self, policy: str, *names: str, parts: int | None = None) -> tuple[Plan, Program]:
        """The model planned on the devices `names`, its batch in `parts` or whole, lowered and checked."""
        options = Options(policy=policy, split=parts, check="never")
        plan = plan_captured(self.captured, machine(*names), options, self.inputs())
        program = lower(plan)
        program.check(plan.costed.graph)
        return plan, program


def interpreted(subject: Subject) -> list[Any]:
    """The graph task by task, updates written at the end."""
    captured = subject.captured

    def once() -> list[Any]:
        values: dict[str, Any] = subject.live()
        for _ in interpret(captured.graph, captured.calls, values, torch.device("cpu")):
            pass
        outputs = [values[name] for name in captured.graph.outputs]
        subject.write({target: values[made] for made, target in captured.graph.updates})
        return outputs

    return subject.calls(once)


def compiled(subject: Subject) -> list[Any]:
    """By the face, captured anew and checked against eager at the first call, on one CPU lane."""
    fast = autopar.compile(subject.model, machine("cpu"), split=None)
    try:
        subject.restore()
        return calls(
            lambda: fast(*subject.args, **subject.kwargs), subject.model, subject.args, subject.kwargs
        )
    finally:
        fast.close()


def executed(subject: Subject, names: Sequence[str] = NAMES, parts: int | None = None) -> list[Any]:
    """By the runtime on real lanes, round robin over the devices `names`."""
    executor = Executor(subject.captured, *subject.program("round_robin", *names, parts=parts))
    try:
        return subject.calls(lambda: executor(subject.inputs()))
    finally:
        executor.close()


def adversarial(subject: Subject, seed: int) -> list[Any]:
    """Round robin on three devices, ready steps in the worst order the events permit."""
    plan, program = subject.program("round_robin", *NAMES)
    graph = plan.costed.graph
    # The adversary works on copies of what it is given: what tasks write in place is to be handed out too.
    known = {target for _, target in program.updates}
    written = tuple(
        (buffer.name, buffer.value)
        for buffer in program.buffers
        if buffer.kind == "given" and buffer.value in graph.mutated - known
    )
    program = replace(program, updates=(*program.updates, *written))

    def once() -> list[Any]:
        outputs, updates = adversary.run(program, graph, subject.captured.calls, subject.live(), seed)
        subject.write({target: made for (_, target), made in zip(program.updates, updates)})
        return outputs

    return subject.calls(once)
