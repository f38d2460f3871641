"""A second opinion on placement: the program's tasks on fake tensors of fake devices, which torch refuses to
mix.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from autopar.clocks import History
from autopar.graph import Graph
from autopar.programs import Compute, Copy, Free, Program
from autopar.runtime import bind


def run_fake(
    program: Program, graph: Graph, calls: Mapping[str, Callable[..., Any]] | None = None
) -> dict[str, Any]:
    """Every step on fake tensors: the CPU as it is, the accelerators as cuda:0, cuda:1 … in order of their
    lanes.

    Returns the results by buffer name. What torch raises where a task mixes devices comes through.
    """
    names = dict.fromkeys(buffer.device for buffer in program.buffers)
    others = [name for name in names if name != "cpu"]
    device = {"cpu": torch.device("cpu")} | {name: torch.device("cuda", i) for i, name in enumerate(others)}
    with FakeTensorMode(allow_non_fake_inputs=False), torch.no_grad():
        held: dict[str, Any] = {}
        for buffer in program.buffers:
            if buffer.kind in ("given", "resident"):
                about = graph.value[buffer.value]
                held[buffer.name] = torch.empty(
                    about.shape, dtype=getattr(torch, about.dtype), device=device[buffer.device]
                )
        for lane, position in History(program).order:
            step = program.lanes[lane].steps[position]
            if isinstance(step, Compute):
                task, place = graph.task[step.task], program.lanes[lane].device

                def read(value: str, place: str = place) -> Any:
                    return held[f"{value}@{place}"]

                args = [bind.argument(item, read, device[place]) for item in task.args]
                kwargs = {name: bind.argument(item, read, device[place]) for name, item in task.kwargs}
                found = bind.target(task.target, calls)(*args, **kwargs)
                held.update(zip(step.writes, found if task.unpack else [found]))
                for name in step.writes:
                    assert held[name].device == device[place], f"{name} came out on {held[name].device}"
            elif isinstance(step, Copy):
                target = program.buffer[step.dst]
                source = held[step.src]
                held[step.dst] = torch.empty_like(source, device=device[target.device])
            elif isinstance(step, Free):
                del held[step.buffer]
        return {name: held[name] for name in (*program.outputs, *(made for made, _ in program.updates))}
