"""A second opinion on placement: the program's tasks on fake tensors of fake devices, which torch refuses to
mix.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from autopar.ir.device import Device, Link
from autopar.ir.graph import Graph, Task, Value
from autopar.ir.machine import Machine
from autopar.ir.program import Compute, Copy, Free, Program
from autopar.lowering.vector_clocks import History
from autopar.ops import resolve as bind
from autopar.session.propagate import in_order, meaning


def gpus(kind: str = "cuda") -> Machine:
    """A CPU and two accelerators that are not here."""
    names = ["cpu", f"{kind}:0", f"{kind}:1"]
    links = [Link(a, b, 1e-6, 1e10, f"{a}>{b}") for a in names for b in names if a != b]
    return Machine(tuple(Device(name, name.partition(":")[0]) for name in names), tuple(links))


def run_fake(
    program: Program,
    graph: Graph,
    calls: Mapping[str, Callable[..., Any]] | None = None,
    check: Callable[[Task, str, Value, Any], None] = lambda *_: None,
) -> dict[str, Any]:
    """Every step on fake tensors: the CPU as it is, the accelerators as cuda:0, cuda:1 … in order of their
    lanes.

    `check(task, buffer, value, tensor)` sees what each task makes. Returns the results by buffer name. What torch
    raises where a task mixes devices comes through.
    """
    names = dict.fromkeys(buffer.device for buffer in program.buffers)
    others = [name for name in names if name != "cpu"]
    device = {"cpu": torch.device("cpu")} | {name: torch.device("cuda", i) for i, name in enumerate(others)}
    with FakeTensorMode(allow_non_fake_inputs=False), torch.no_grad():
        held: dict[str, Any] = {}
        for buffer in program.buffers:
            if buffer.kind in ("given", "resident"):
                about = graph.value[buffer.value]
                held[buffer.name] = torch.empty_strided(
                    about.shape,
                    in_order(about.shape, about.order),
                    dtype=getattr(torch, about.dtype),
                    device=device[buffer.device],
                )
        for lane, position in History(program).order:
            step = program.lanes[lane].steps[position]
            if isinstance(step, Compute):
                task, place = graph.task[step.task], program.lanes[lane].device

                def read(value: str, place: str = place) -> Any:
                    return held[f"{value}@{place}"]

                args = [bind.argument(item, read, device[place]) for item in task.args]
                kwargs = {name: bind.argument(item, read, device[place]) for name, item in task.kwargs}
                found = meaning(task.target, calls)(*args, **kwargs)
                held.update(zip(step.writes, found if task.unpack else [found]))
                for name, value in zip(step.writes, task.outputs):
                    made, about = held[name], graph.value[value]
                    if made is not None and 0 not in about.shape:
                        assert made.device == device[place], f"{name} came out on {made.device}"
                        assert tuple(made.shape) == about.shape, f"{name} came out as {tuple(made.shape)}"
                        assert made.dtype == getattr(torch, about.dtype), f"{name} came out as {made.dtype}"
                    check(task, name, about, made)
            elif isinstance(step, Copy):
                target = program.buffer[step.dst]
                source = held[step.src]
                held[step.dst] = torch.empty_like(source, device=device[target.device])
            elif isinstance(step, Free):
                del held[step.buffer]
        return {name: held[name] for name in (*program.outputs, *(made for made, _ in program.updates))}
