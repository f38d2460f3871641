"""A second opinion on placement: the program's tasks on fake tensors of fake devices, which torch refuses to
mix.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from autopar.graph import Graph
from autopar.lowering.clocks import History
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
                found = _meaning(task.target, calls)(*args, **kwargs)
                held.update(zip(step.writes, found if task.unpack else [found]))
                for name, value in zip(step.writes, task.outputs):
                    made, about = held[name], graph.value[value]
                    if made is None or 0 in about.shape:
                        # A CPU keeps no statistics of a BatchNorm that does not train; a GPU does, and reads none.
                        continue
                    assert made.device == device[place], f"{name} came out on {made.device}"
                    assert tuple(made.shape) == about.shape, f"{name} came out as {tuple(made.shape)}"
                    assert made.dtype == getattr(torch, about.dtype), f"{name} came out as {made.dtype}"
            elif isinstance(step, Copy):
                target = program.buffer[step.dst]
                source = held[step.src]
                held[step.dst] = torch.empty_like(source, device=device[target.device])
            elif isinstance(step, Free):
                del held[step.buffer]
        return {name: held[name] for name in (*program.outputs, *(made for made, _ in program.updates))}


def _meaning(target: str, calls: Mapping[str, Callable[..., Any]] | None) -> Callable[..., Any]:
    """What a task is called with: of our own operators the fake, since a fake GPU tensor that requires grad, which
    their kernels make, aborts the process on a build without CUDA.
    """
    space, _, rest = target.partition(".")
    if space == "autopar" and "." in rest:
        name, _, overload = rest.partition(".")
        found: Any = getattr(getattr(torch.ops.autopar, name), overload)
        return found
    return bind.target(target, calls)
