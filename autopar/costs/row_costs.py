"""Seconds of a task as a line over the rows of its batch, by the roofline."""

from __future__ import annotations

from collections.abc import Container

from ..ir.device import Device
from ..ir.graph import Graph, Task
from .work import touched, work


def row_cost(
    graph: Graph, task: Task, device: Device, rows: int, fixed: Container[str]
) -> tuple[float, float]:
    """(seconds beside the rows, seconds per row) of a task that was captured with `rows` of them.

    What limits it there is taken to limit it anywhere: FLOPs, which all go by rows, or bytes, of which those of state
    and of the values in `fixed` (gradients of weights) do not.
    """
    if task.free:
        return 0.0, 0.0
    todo = work(graph, task)
    launch = device.launch_s * todo.kernels
    rate = device.flops_per_s(todo.dtype)
    busy = todo.seconds(rate, device.bytes_per_s)
    if todo.flops / rate >= busy:
        return launch, busy / rows
    names = {*task.inputs, *task.outputs}
    beside = sum(
        value.bytes for name in names if (value := graph.value[name]).kind == "state" or name in fixed
    )
    constant = min(busy, min(beside, touched(graph, task)) / device.bytes_per_s)
    return launch + constant, (busy - constant) / rows
