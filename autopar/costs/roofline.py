"""Seconds of each task on each device, from its FLOPs and bytes: the roofline of Williams, Waterman and
Patterson ("Roofline: an insightful visual performance model for multicore architectures", CACM 52(4), 2009).

A task lasts `launch + max(flops ÷ FLOP/s in its dtype, bytes ÷ bytes per second)`. On the CPU the
interpreter's dispatch comes before it; an accelerator's queue hides dispatch behind earlier tasks, so that
there only a whole cluster can be limited by it (`fuse`). A device that operators were timed on has a launch, dispatch
included, and a factor on the rest for each family of them (`Device.scales`).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import TypeAlias

from ..ir.costed import CostedGraph, TaskCost
from ..ir.device import Device
from ..ir.graph import Argument, Const, Graph, Ref, Task
from ..ir.machine import Machine
from .clustering import fuse
from .work import Work, touched, work

VIEW_S = 1e-6
"""Seconds of the interpreter for a view, which moves no data."""

Estimate: TypeAlias = Callable[[Work], float]
"""The seconds of a task from its work."""
Ratios: TypeAlias = Mapping[tuple[str, str], float]
"""By (task, device name), measured seconds ÷ the roofline's, for a task and its parts."""

CALL = "call"
"""Family of calls themselves: guards and arguments."""
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
"""Operators whose kernels may allocate scratch memory: estimated as the bytes they read and write."""


def cost(
    graph: Graph,
    machine: Machine,
    *,
    homes: Mapping[str, str],
    deliver: Sequence[tuple[str, str]] | None = None,
    pins: Mapping[str, str] | None = None,
    ratios: Ratios | None = None,
) -> CostedGraph:
    """Cost each task of a graph on each device, and fuse tasks into clusters.

    homes: device of each input and state value before the call; missing ones, or devices outside the machine, mean the
    host.
    deliver: as in `CostedGraph.deliver`, for a device outside the machine the host; "" leaves an output where it is
    made. By default outputs go to the host and updates to the home of what they update.
    pins: the only device of some tasks.

    Linear in tasks.
    """
    home = {
        name: homes[name] if homes.get(name) in machine.device else machine.host
        for name in (*graph.inputs, *graph.state)
    }
    if deliver is None:
        deliver = [(name, machine.host) for name in graph.outputs]
        deliver += [(name, home[target]) for name, target in graph.updates]
    delivered = tuple((name, to if to in machine.device or not to else machine.host) for name, to in deliver)
    caller = home[graph.inputs[0]] if graph.inputs else machine.host
    allowed = _allowed(graph, pins or {}, caller)
    estimates = {device.name: estimate(machine, device) for device in machine.devices}
    costs = tuple(_cost(graph, task, estimates, allowed.get(task.name), ratios or {}) for task in graph.tasks)
    clusters = fuse(graph, machine, costs)
    return CostedGraph(
        graph, machine, costs, clusters, tuple(home.items()), delivered, call_s=call_seconds(graph, machine)
    )


def call_seconds(graph: Graph, machine: Machine) -> float:
    """Return the seconds of a call outside its tasks, on a host where calls were timed; else 0."""
    host = machine.device[machine.host]
    return next((base + factor * checks(graph) for name, base, factor in host.scales if name == CALL), 0.0)


def checks(graph: Graph) -> float:
    """Return the number of things that a call's guards check (modules, state and tasks), as seconds at 1 µs each."""
    modules = {""}
    for task in graph.tasks:
        path = task.module
        while path not in modules:
            modules.add(path)
            path = path.rpartition(".")[0]
    return 1e-6 * (len(modules) + len(graph.state) + len(graph.tasks))


def signature(graph: Graph, task: Task) -> str:
    """Return the key of a task's cost: target, shapes and dtypes of its inputs, constants. Tasks with one key take
    equally long on a device."""

    def text(argument: Argument) -> str:
        if isinstance(argument, Ref):
            value = graph.value[argument.value]
            return f"{value.dtype}{list(value.shape)}"
        if isinstance(argument, tuple):
            return f"({', '.join(map(text, argument))})"
        return argument.text if isinstance(argument, Const) else repr(argument)

    arguments = [*map(text, task.args), *(f"{name}={text(value)}" for name, value in task.kwargs)]
    return f"{task.target}({', '.join(arguments)})"


def estimate(machine: Machine, device: Device) -> Estimate:
    """Return the roofline of one device of a machine: the seconds of a task from its work, with dispatch unless
    hidden."""
    traits, rates = device.traits, dict[str, float]()
    # On the declared clock a stand-in takes the time of a chip, whose queue hides the host's dispatch.
    here = not (traits.hides_dispatch or (traits.stand_in and machine.clock == "declared"))
    scales = {name: (launch, factor) for name, launch, factor in device.scales}

    def seconds(todo: Work) -> float:
        if todo.family == "view" and "view" not in scales:
            return VIEW_S if here else 0.0
        if todo.dtype not in rates:
            rates[todo.dtype] = device.flops_per_s(todo.dtype)
        busy = todo.seconds(rates[todo.dtype], device.bytes_per_s)
        if scales:
            if todo.family not in scales:
                scales[todo.family] = _nearest(todo.family, scales, device)
            launch, factor = scales[todo.family]
            return todo.kernels * launch + factor * busy
        return todo.kernels * device.launch_s + busy + (device.dispatch_s if here else 0.0)

    return seconds


def _nearest(family: str, scales: Mapping[str, tuple[float, float]], device: Device) -> tuple[float, float]:
    """Return launch and factor of a family that was never timed: those of the nearest product, or the launch of
    elementwise operators."""
    products = [name for name in scales if name.startswith("product ")]
    if products and family.startswith("product "):
        side = int(family.split()[1])
        return scales[min(products, key=lambda name: abs(int(name.split()[1]) - side))]
    return scales.get("elementwise", (device.launch_s + device.dispatch_s, 1.0))[0], 1.0


def _cost(
    graph: Graph, task: Task, estimates: Mapping[str, Estimate], only: str | None, ratios: Ratios
) -> TaskCost:
    """Return the cost of a task, which may be bound to one device; from measurements of it, or of the task that it is
    a part of, if there are any."""
    todo = work(graph, task)
    seconds: list[float | None] = []
    how = "roofline"
    for name, estimated in estimates.items():
        if only is not None and name != only:
            seconds.append(None)
            continue
        ratio = ratios.get((task.name, name), ratios.get((task.origin, name)) if task.origin else None)
        how = how if ratio is None else "measured"
        seconds.append(estimated(todo) * (1.0 if ratio is None else ratio))
    workspace = touched(graph, task) if task.target.startswith(_SCRATCH) else 0
    return TaskCost(task.name, tuple(seconds), workspace, how)


def _allowed(graph: Graph, pins: Mapping[str, str], caller: str) -> dict[str, str]:
    """Return the only device of each task that is bound: home tasks to the caller's, pinned tasks to their own.

    A home task ignores pins: pins of a module do not move the random draws in it.
    """
    return {
        task.name: device for task in graph.tasks if (device := caller if task.home else pins.get(task.name))
    }


def row_cost(
    graph: Graph, task: Task, device: Device, rows: int, fixed: Container[str]
) -> tuple[float, float]:
    """Return (fixed seconds, seconds per row) of a task captured with `rows` rows, by the roofline.

    Its limit at that size is taken as its limit at any size: FLOPs, which are all proportional to rows, or bytes, of
    which those of state and of values in `fixed` (gradients of weights) are constant.
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
