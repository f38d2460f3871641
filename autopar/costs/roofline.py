"""Seconds of each task on each device, from its FLOPs and bytes: the roofline of Williams, Waterman and
Patterson ("Roofline: an insightful visual performance model for multicore architectures", CACM 52(4), 2009).

A task lasts `launch + max(flops ÷ FLOP/s in its dtype, bytes ÷ bytes per second)`. On the CPU the
interpreter's dispatch comes before it; an accelerator's queue hides dispatch behind earlier tasks, so that
there only a whole cluster can be limited by it (`fuse`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from ..ir.costed import CostedGraph, TaskCost
from ..ir.graph import UPDATES, Argument, Const, Graph, Ref, Task
from ..ir.machine import Machine
from .clustering import fuse

VIEW_S = 1e-6
"""Seconds of the interpreter for a view, which touches no data."""

_LOOKUPS = (
    "aten.embedding.",
    "aten.index_select.",
    "aten.index.",
    "aten.gather.",
    "aten.take.",
    "aten.take_along_dim.",
    "aten.select_copy.",
    "aten.slice_copy.",
)
"""Ops that read of their first input only as much as they write."""
_BAGS = ("aten._embedding_bag", "aten.embedding_bag.", "autopar.embedding_bag.")
"""Ops that read a row of their first input for each element of their second."""
_UNREAD = ("aten.empty", "aten.new_empty")
_SCRATCH = (
    "aten.convolution.",
    "aten.conv",
    "aten.scaled_dot_product_attention.",
    "aten.sort.",
    "aten.topk.",
    "aten.lstm.",
    "aten.gru.",
    "autopar.scaled_dot_product_attention",
    "autopar.lstm",
    "autopar.gru",
    "autopar.rnn",
    "autopar.layer_norm_backward.",
    "autopar.group_norm_backward.",
    "autopar.rms_norm_backward.",
)
"""Ops whose kernels may take scratch memory: as much as they read and write is set aside for them."""
_KERNELS = {1: 2, 2: 5, 3: 11, 4: 13}
"""Elementwise kernels of an optimizer's update, by the tensors it makes: copies of those, then the formula."""
_PASSES = 2.4
"""Tensors that one of these kernels reads or writes, on average."""
_FLOATING = ("float", "bfloat", "complex")


def cost(
    graph: Graph,
    machine: Machine,
    *,
    homes: Mapping[str, str],
    deliver: Mapping[str, str] | Iterable[tuple[str, str]] = (),
    pins: Mapping[str, str] | None = None,
    measured: Mapping[tuple[str, str], float] | None = None,
) -> CostedGraph:
    """The graph with seconds of each task on each device, fused into clusters.

    `homes` says where each input and state value is before the call; what it leaves out, or places on no
    device of the machine, is the host's. `deliver` says where outputs must come, by name, or as the whole
    list of pairs of `CostedGraph.deliver`; "" leaves an output where it is made. By default outputs come to
    the host and updates to the home of what they update. `pins` is the only device of some tasks. `measured`
    has seconds by (`signature` of the task, device name) and goes before the roofline. Linear in tasks.
    """
    home = {
        name: homes[name] if homes.get(name) in machine.device else machine.host
        for name in (*graph.inputs, *graph.state)
    }
    delivered = _delivered(graph, machine, home, deliver)
    caller = home[graph.inputs[0]] if graph.inputs else machine.host
    allowed = _allowed(graph, pins or {}, caller)
    rates: dict[str, list[float]] = {}
    costs = tuple(
        _task_cost(graph, task, machine, allowed.get(task.name), measured, rates) for task in graph.tasks
    )
    return CostedGraph(graph, machine, costs, fuse(graph, machine, costs), tuple(home.items()), delivered)


def signature(graph: Graph, task: Task) -> str:
    """The key of a task's cost: its target, the shapes and dtypes it reads, and its constants. Tasks with one key take
    the same time anywhere."""

    def text(argument: Argument) -> str:
        if isinstance(argument, Ref):
            value = graph.value[argument.value]
            return f"{value.dtype}{list(value.shape)}"
        if isinstance(argument, tuple):
            return f"({', '.join(map(text, argument))})"
        return argument.text if isinstance(argument, Const) else repr(argument)

    arguments = [*map(text, task.args), *(f"{name}={text(value)}" for name, value in task.kwargs)]
    return f"{task.target}({', '.join(arguments)})"


def touched(graph: Graph, task: Task) -> int:
    """Bytes a task reads and writes; none for a view."""
    if task.free:
        return 0
    made = sum(graph.value[name].bytes for name in task.outputs)
    if task.target.startswith(_UNREAD):
        return 0
    read = [graph.value[name].bytes for name in task.inputs]
    if task.target.startswith(_LOOKUPS) and read:
        read[0] = min(read[0], made)
    elif task.target.startswith(_BAGS) and len(read) > 1:
        table, indices = (graph.value[name] for name in task.inputs[:2])
        read[0] = min(read[0], table.bytes // max(1, table.shape[0]) * math.prod(indices.shape))
    return made + sum(read)


def main_dtype(graph: Graph, task: Task) -> str:
    """The dtype a task computes in: of its first floating output, else of its first floating input, else of
    the first output; `float32` when it has neither."""
    dtypes = [graph.value[name].dtype for name in (*task.outputs, *task.inputs)]
    floating = (dtype for dtype in dtypes if dtype.startswith(_FLOATING))
    return next(floating, dtypes[0] if dtypes else "float32")


def _delivered(
    graph: Graph,
    machine: Machine,
    home: Mapping[str, str],
    deliver: Mapping[str, str] | Iterable[tuple[str, str]],
) -> tuple[tuple[str, str], ...]:
    pairs = () if isinstance(deliver, Mapping) else tuple(deliver)
    if len(pairs) == len(graph.outputs) + len(graph.updates):
        return tuple(
            (name, goal if goal in machine.device or not goal else machine.host) for name, goal in pairs
        )
    goals = deliver if isinstance(deliver, Mapping) else dict(pairs)
    known = {name: goal for name, goal in goals.items() if goal in machine.device or not goal}
    found = [(name, known.get(name, machine.host)) for name in graph.outputs]
    return tuple(found + [(name, home.get(target, machine.host)) for name, target in graph.updates])


def _task_cost(
    graph: Graph,
    task: Task,
    machine: Machine,
    only: str | None,
    measured: Mapping[tuple[str, str], float] | None,
    rates: dict[str, list[float]],
) -> TaskCost:
    moved, kernels = touched(graph, task), 1
    if task.target in UPDATES:
        kernels = _KERNELS[len(task.outputs)]
        moved = max(moved, int(_PASSES * kernels * graph.value[task.outputs[0]].bytes))
    dtype = main_dtype(graph, task)
    key = signature(graph, task) if measured and not task.free else ""
    seconds: list[float | None] = []
    how = "roofline"
    if dtype not in rates:
        rates[dtype] = [device.flops_per_s(dtype) for device in machine.devices]
    for device, rate in zip(machine.devices, rates[dtype]):
        known = measured.get((key, device.name)) if measured and key else None
        # On the declared clock a stand-in takes the time of a chip, whose queue hides the host's dispatch.
        traits = device.traits
        here = not (traits.hides_dispatch or (traits.stand_in and machine.clock == "declared"))
        if only is not None and device.name != only:
            seconds.append(None)
        elif task.free:
            seconds.append(VIEW_S if here else 0.0)
        elif known is not None:
            seconds.append(known)
            how = "measured"
        else:
            work = kernels * device.launch_s + max(task.flops / rate, moved / device.bytes_per_s)
            seconds.append(work + device.dispatch_s if here else work)
    workspace = moved if task.target.startswith(_SCRATCH) else 0
    return TaskCost(task.name, tuple(seconds), workspace, how)


def _allowed(graph: Graph, pins: Mapping[str, str], caller: str) -> dict[str, str]:
    """The only device of each task that has but one: home tasks the caller's, pinned tasks their own.

    A home task stays home whatever a pin says: pins of a module do not move the random numbers drawn within
    it.
    """
    return {
        task.name: device for task in graph.tasks if (device := caller if task.home else pins.get(task.name))
    }
