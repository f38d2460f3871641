"""Captured graphs that are written by hand, each task with its lane, for the tests of the runtime."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from naive import plan

from autopar.ir.device import Device, Link
from autopar.ir.graph import Graph, Ref, Task, Value
from autopar.ir.machine import Machine
from autopar.ir.plan import Plan
from autopar.ir.program import Program
from autopar.lowering.lower import lower
from autopar.runtime.executor import Executor

THREADS = torch.get_num_threads()


@dataclass
class Case:
    """A graph built call by call; each task says on which lane it is."""

    state: dict[str, torch.Tensor] = field(default_factory=dict)
    inputs: tuple[str, ...] = ("x",)
    values: dict[str, torch.Tensor] = field(default_factory=dict)
    tasks: list[Task] = field(default_factory=list)
    lanes: dict[str, str] = field(default_factory=dict)
    calls: dict[str, Any] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    updates: tuple[tuple[str, str], ...] = ()
    clock: str = "real"
    slow_down: float = 1.0
    seconds: float = 1e-3

    def task(self, lane: str, name: str, target: str, *args: Any, **fields: Any) -> Case:
        fields.setdefault("outputs", (name,))
        self.tasks.append(Task(name, target, args, module=f"net.{name}", source="net.py:7", **fields))
        self.lanes[name] = lane
        return self

    def machine(self) -> Machine:
        names = dict.fromkeys(lane.rsplit("/", 1)[0] for lane in ("cpu/0", *self.lanes.values()))
        devices = []
        for name in names:
            count = 1 + max(
                int(lane.rsplit("/", 1)[1])
                for lane in ("cpu/0", *self.lanes.values())
                if lane.startswith(name + "/")
            )
            kind = "cpu" if name == "cpu" else "emulated" if name.startswith("emulated") else "cuda"
            devices.append(Device(name, kind, count, THREADS))
        links = tuple(Link(a.name, b.name, 1e-4, 1e9, "bus") for a in devices for b in devices if a is not b)
        return Machine(tuple(devices), links, self.clock, self.slow_down)  # type: ignore[arg-type]

    def graph(self) -> Graph:
        values = [_value(name, self.values.get(name), "input") for name in self.inputs]
        values += [_value(name, tensor, "state") for name, tensor in self.state.items()]
        values += [_value(name, None, "made") for task in self.tasks for name in task.outputs]
        graph = Graph(
            "net",
            tuple(values),
            tuple(self.tasks),
            self.inputs,
            tuple(self.state),
            self.outputs,
            self.updates,
        )
        return graph.check()

    def build(self) -> tuple[Any, Plan, Program]:
        """Return the graph as captured, its plan, in which copies take no time, and the program of that plan."""
        graph, machine = self.graph(), self.machine()
        took = dict.fromkeys(graph.task, self.seconds) | {f"copy {name}": 0.0 for name in graph.value}
        made = plan(graph, machine, self.lanes, seconds=took)
        captured = SimpleNamespace(
            graph=graph,
            state={name: (self.state, name) for name in self.state},
            calls=self.calls,
            home=torch.device("cpu"),
            sizes=(),
        )
        return captured, made, lower(made)

    def executor(self) -> Executor:
        return Executor(*self.build())


def _value(name: str, tensor: torch.Tensor | None, kind: str) -> Value:
    shape = tuple(tensor.shape) if tensor is not None else (4, 4)
    return Value(name, shape, "float32", 4 * shape[0] * (shape[1] if len(shape) > 1 else 1), name, kind, name)  # type: ignore[arg-type]


def mlp(
    first: str = "cpu/0", second: str = "cpu/0", third: str = "cpu/0", **fields: Any
) -> tuple[Case, torch.Tensor, Any]:
    """linear, relu, linear on three lanes; the case, an input and eager."""
    torch.manual_seed(0)
    state = {"w1": torch.randn(16, 8), "b1": torch.randn(16), "w2": torch.randn(4, 16), "b2": torch.randn(4)}
    case = Case(state=state, outputs=("y",), **fields)
    case.task(first, "h", "aten.linear.default", Ref("x"), Ref("w1"), Ref("b1"))
    case.task(second, "a", "aten.relu.default", Ref("h"))
    case.task(third, "y", "aten.linear.default", Ref("a"), Ref("w2"), Ref("b2"))

    def eager(x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(torch.nn.functional.linear(x, state["w1"], state["b1"]))
        return torch.nn.functional.linear(hidden, state["w2"], state["b2"])

    return case, torch.randn(5, 8), eager
