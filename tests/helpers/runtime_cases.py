"""Hand-made captured graphs, plans and programs for the tests of the runtime."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

from autopar.ir.costed import Cluster, CostedGraph, TaskCost
from autopar.ir.device import Device, Link
from autopar.ir.graph import Graph, Ref, Task, Value
from autopar.ir.machine import Machine
from autopar.ir.plan import Plan
from autopar.ir.program import Buffer, Compute, Copy, Free, Lane, Program, Record, Step, Wait
from autopar.ir.timeline import Placed, Transfer
from autopar.runtime.executor import Executor

THREADS = torch.get_num_threads()


@dataclass
class Case:
    """A graph built call by call; each task says where it is, copies and hand-offs follow from that."""

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
        """Lower by hand: every value goes straight to each device that reads it, every hand-off is an
        event.
        """
        graph, machine = self.graph(), self.machine()
        steps: dict[str, list[Step]] = {lane: [] for lane in machine.lanes}
        buffers: dict[str, Buffer] = {}
        maker: dict[str, str] = {}
        events = 0
        waited: set[tuple[str, str]] = set()
        uses: dict[str, list[str]] = {}
        transfers, at = [], 0.0

        def kind_of(name: str, device: str) -> str:
            if name in graph.producer:
                return (
                    "result"
                    if device == "cpu" and (name in self.outputs or name in dict(self.updates))
                    else "made"
                )
            return "given" if device == "cpu" else "resident" if name in self.state else "made"

        def add(name: str, device: str) -> str:
            buffer = f"{name}@{device}"
            buffers.setdefault(
                buffer, Buffer(buffer, name, device, graph.value[name].bytes, buffer, kind_of(name, device))
            )  # type: ignore[arg-type]
            return buffer

        def handoff(source: str, lane: str) -> None:
            nonlocal events
            steps[source].append(Record(f"e{events}"))
            steps[lane].append(Wait(f"e{events}"))
            events += 1

        def need(name: str, device: str, lane: str) -> str:
            buffer = f"{name}@{device}"
            home = self.lanes[graph.producer[name]].rsplit("/", 1)[0] if name in graph.producer else "cpu"
            if buffer not in buffers:
                add(name, device)
                if home != device and buffers[buffer].kind != "resident":
                    if home != "cpu" and device != "cpu":
                        pass
                    queue = machine.copy_lane(home, device)
                    source = need(name, home, queue)
                    steps[queue].append(Copy(source, buffer))
                    maker[buffer] = queue
                    transfers.append(Transfer(name, home, device, queue, at, at, at, graph.value[name].bytes))
            if buffer in maker and maker[buffer] != lane and (buffer, lane) not in waited:
                waited.add((buffer, lane))
                handoff(maker[buffer], lane)
            uses.setdefault(buffer, []).append(lane)
            return buffer

        placed = []
        for task in graph.tasks:
            lane = self.lanes[task.name]
            device = lane.rsplit("/", 1)[0]
            reads = tuple(need(name, device, lane) for name in task.inputs)
            writes = tuple(add(name, device) for name in task.outputs)
            maker.update(dict.fromkeys(writes, lane))
            steps[lane].append(Compute(task.name, reads, writes))
            placed.append(Placed(task.name, device, lane, at, at + self.seconds))
            at += self.seconds
        outputs = []
        for name in (*self.outputs, *(made for made, _ in self.updates)):
            queue = (
                machine.copy_lane(self.lanes[graph.producer[name]].rsplit("/", 1)[0], "cpu")
                if name in graph.producer
                else "cpu/0"
            )
            outputs.append(
                need(
                    name, "cpu", queue if f"{name}@cpu" not in buffers else maker.get(f"{name}@cpu", "cpu/0")
                )
            )
        for buffer, lanes in uses.items():
            if buffers[buffer].kind == "made":
                for lane in dict.fromkeys(lanes):
                    if lane != maker[buffer]:
                        handoff(lane, maker[buffer])
                steps[maker[buffer]].append(Free(buffer))
        program = Program(
            "net",
            tuple(Lane(lane, lane.rsplit("/", 1)[0], tuple(found)) for lane, found in steps.items()),
            tuple(buffers.values()),
            tuple(outputs[: len(self.outputs)]),
            tuple(
                (buffer, target) for buffer, (_, target) in zip(outputs[len(self.outputs) :], self.updates)
            ),
        )
        seconds = tuple(self.seconds for _ in machine.devices)
        costed = CostedGraph(
            graph,
            machine,
            tuple(TaskCost(task.name, seconds) for task in graph.tasks),
            tuple(
                Cluster(task.name, (task.name,), seconds, 0.0, task.inputs, task.outputs, task.after)
                for task in graph.tasks
            ),
            tuple((name, "cpu") for name in (*self.inputs, *self.state)),
            tuple((name, "cpu") for name in self.outputs),
        )
        plan = Plan(costed, "by hand", tuple(placed), tuple(transfers), (), (), at)
        captured = SimpleNamespace(
            graph=graph,
            state={name: (self.state, name) for name in self.state},
            calls=self.calls,
            home=torch.device("cpu"),
            sizes=(),
        )
        return captured, plan, program

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
