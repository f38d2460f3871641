"""Seconds of each task on each device, from its FLOPs and bytes: the roofline of Williams, Waterman and
Patterson ("Roofline: an insightful visual performance model for multicore architectures", CACM 52(4), 2009).

A task lasts `launch + max(flops ÷ FLOP/s in its dtype, bytes ÷ bytes per second)`, with two exceptions: a
recurrent layer is a chain of as many steps as its sequence is long, each reading all weights; and a lookup of
scattered rows waits for each row. On the CPU, the interpreter's dispatch comes first. An accelerator's queue
hides dispatch behind earlier tasks, so it limits only whole clusters there (`fuse`). On a device where
operators were timed, each family has a launch, dispatch included, and a factor on the rest (`Device.scales`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from ..ir.costed import CostedGraph, TaskCost
from ..ir.device import Device
from ..ir.graph import UPDATES, WORDS, Argument, Const, Graph, Ref, Task
from ..ir.machine import Machine
from .clustering import fuse

VIEW_S = 1e-6
"""Seconds of the interpreter for a view, which moves no data."""
CALL = "call"
"""Family of calls themselves: guards and arguments."""
_SCRATCH = (
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

MISS_S = 2e-8
"""Seconds to read a row at a random place in memory: a cache miss, though several misses overlap."""
CACHED = 3.0
"""Bandwidth of cached weights relative to memory."""
CACHE_BYTES = 2 << 20
"""Bytes of a cache that keeps the weights of a recurrent layer between steps."""

_LOOKUPS = (
    "aten.embedding.",
    WORDS,
    "aten.index_select.",
    "aten.index.",
    "aten.gather.",
    "aten.take.",
    "aten.take_along_dim.",
    "aten.select_copy.",
    "aten.slice_copy.",
)
"""Operators that read only as much of their first input as they write."""
_BAGS = ("aten._embedding_bag", "aten.embedding_bag.", "autopar.embedding_bag.")
"""Operators that read a row of their first input for each element of the second."""
ROWS = ("aten.embedding.", WORDS, "aten.index_select.", *_BAGS)
"""Operators that read whole rows of their first input at random places."""
_UNREAD = ("aten.empty", "aten.new_empty")
_FLOATING = ("float", "bfloat", "complex")
_KERNELS = {1: 2, 2: 5, 3: 11, 4: 13}
"""Number of elementwise kernels of an optimizer's update by number of outputs: copies of these, then the formula."""
_PASSES = 2.4
"""Mean number of tensors that one of these kernels reads or writes."""
_PRODUCTS = {"linear", "addmm", "mm", "bmm", "baddbmm", "matmul"}
_RECURRENT = {"lstm", "gru", "rnn_tanh", "rnn_relu", "rnn"}
_FAMILIES = {
    "attention": {"scaled_dot_product_attention", "_scaled_dot_product_flash_attention_for_cpu"},
    "encoder": {"_transformer_encoder_layer_fwd", "_native_multi_head_attention"},
    "max_pool": {"max_pool1d", "max_pool2d", "max_pool3d", "max_pool2d_with_indices"},
    "mean_pool": {"avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d", "adaptive_avg_pool2d"},
    "batch_norm": {"batch_norm", "native_batch_norm", "_native_batch_norm_legit_no_training",
                   "_native_batch_norm_legit", "_native_batch_norm_legit_functional"},
    "layer_norm": {"layer_norm", "native_layer_norm", "group_norm", "native_group_norm", "rms_norm"},
    "softmax": {"softmax", "_softmax", "log_softmax", "_log_softmax"},
    "gelu": {"gelu", "silu", "sigmoid", "exp", "erf", "log", "mish", "softplus"},
    "tanh": {"tanh", "pow", "sin", "cos"},
    "copy": {"clone", "_to_copy", "contiguous", "copy"},
    "join": {"cat", "stack", "join"},
    "sum": {"sum", "mean", "amax", "amin", "max", "min", "argmax", "var", "var_mean", "cumsum", "norm"},
    "make": {"arange", "zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "new_ones", "new_zeros"},
}  # fmt: skip
_BY_NAME = {name: family for family, names in _FAMILIES.items() for name in names}


class _Work(NamedTuple):
    """FLOPs in `dtype` and bytes of a task of a `family`, done in `kernels` sequential kernels, each of which also
    reads `weights` bytes, and the number of rows that it `waits` for."""

    family: str
    dtype: str
    flops: int
    bytes: int
    kernels: int = 1
    weights: int = 0
    waits: int = 0

    def seconds(self, flops_per_s: float, bytes_per_s: float) -> float:
        """Return the least seconds at these rates, without launches."""
        again = bytes_per_s * (CACHED if self.weights <= CACHE_BYTES else 1.0)
        moved = self.bytes / bytes_per_s + self.kernels * self.weights / again
        return max(self.flops / flops_per_s, moved + self.waits * MISS_S)


Estimate: TypeAlias = Callable[[_Work], float]
"""The seconds of a task from its work."""
Ratios: TypeAlias = Mapping[tuple[str, str], float]
"""By (task, device name), measured seconds ÷ the roofline's, for a task and its parts."""


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
    deliver: as in `CostedGraph.deliver`; a device outside the machine means the host, "" the device that
    makes the output. By default, outputs go to the host and updates to the home of their state.
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
    # A home task ignores pins: pins of a module do not move the random draws in it.
    only = {task.name: caller if task.home else (pins or {}).get(task.name) for task in graph.tasks}
    estimates = {device.name: estimate(machine, device) for device in machine.devices}
    costs = tuple(_cost(graph, task, estimates, only[task.name], ratios or {}) for task in graph.tasks)
    clusters = fuse(graph, machine, costs)
    scales = machine.device[machine.host].scales
    call_s = next((base + factor * checks(graph) for name, base, factor in scales if name == CALL), 0.0)
    return CostedGraph(graph, machine, costs, clusters, tuple(home.items()), delivered, call_s=call_s)


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

    def seconds(todo: _Work) -> float:
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
    """Return the cost of a task, perhaps on `only` one device. Measurements of the task, or else of the task
    that it is a part of, scale the roofline."""
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
    return TaskCost(task.name, tuple(seconds), workspace(graph, task), how)


def workspace(graph: Graph, task: Task) -> int:
    """Return the scratch bytes of a task while it runs."""
    return touched(graph, task) if task.target.startswith(_SCRATCH) else 0


def device_seconds(graph: Graph, task: Task, device: Device) -> tuple[float, float]:
    """Return (seconds of launches, seconds at the roofline) of a task on a device whose queue hides dispatch."""
    if task.free:
        return 0.0, 0.0
    todo = work(graph, task)
    return device.launch_s * todo.kernels, todo.seconds(device.flops_per_s(todo.dtype), device.bytes_per_s)


def work(graph: Graph, task: Task) -> _Work:
    """Return family, FLOPs, bytes, kernels and looked-up rows of a task."""
    moved, name = touched(graph, task), operator(task)
    kind, dtype = family(graph, task), main_dtype(graph, task)
    if task.target in UPDATES:
        kernels = _KERNELS[len(task.outputs)]
        moved = max(moved, int(_PASSES * kernels * graph.value[task.outputs[0]].bytes))
        return _Work(kind, dtype, task.flops, moved, kernels)
    if name in _RECURRENT and task.inputs:
        return _Work(kind, dtype, task.flops, moved, *_steps(graph, task))
    waits = 0
    if task.target.startswith(ROWS) and len(task.inputs) > 1:
        waits = math.prod(graph.value[task.inputs[1]].shape)
    return _Work(kind, dtype, task.flops, moved, waits=waits)


def operator(task: Task) -> str:
    """Return the operator of a task without namespace and overload: `linear` of `aten.linear.default`."""
    parts = task.target.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def family(graph: Graph, task: Task) -> str:
    """Return the family of operators that share one scale: products by their smallest side (`product 5`: 32
    to 63), convolutions by kind (depthwise, grouped, pointwise), the rest by name. Other operators are their
    own family if they have FLOPs, else `elementwise`."""
    name = operator(task)
    if task.free:
        return "view"
    shapes = [graph.value[value].shape for value in task.inputs]
    if name in _PRODUCTS and len(shapes) > 1:
        return f"product {int(math.log2(max(1, _smallest_side(name, shapes)))) if task.flops else 0}"
    if name in ("convolution", "conv1d", "conv2d", "conv3d") and len(shapes) > 1:
        return _convolution(*shapes[:2])
    if task.target.startswith(ROWS):
        return "rows"
    if name in _RECURRENT or task.target in UPDATES:
        return name
    return _BY_NAME.get(name, name if task.flops else "elementwise")


def touched(graph: Graph, task: Task) -> int:
    """Return the bytes that a task reads and writes; 0 for a view."""
    if task.free:
        return 0
    written = sum(graph.value[name].bytes for name in task.outputs)
    if task.target.startswith(_UNREAD):
        return 0
    read = [graph.value[name].bytes for name in task.inputs]
    if task.target.startswith(_LOOKUPS) and read:
        read[0] = min(read[0], written)
    elif task.target.startswith(_BAGS) and len(read) > 1:
        table, indices = (graph.value[name] for name in task.inputs[:2])
        read[0] = min(read[0], table.bytes // max(1, table.shape[0]) * math.prod(indices.shape))
    return written + sum(read)


def main_dtype(graph: Graph, task: Task) -> str:
    """Return the dtype of a task's computation: of its first floating-point output, else its first floating-point
    input, else its first output; `float32` if it has none."""
    dtypes = [graph.value[name].dtype for name in (*task.outputs, *task.inputs)]
    floating = (dtype for dtype in dtypes if dtype.startswith(_FLOATING))
    return next(floating, dtypes[0] if dtypes else "float32")


def _smallest_side(name: str, shapes: list[tuple[int, ...]]) -> int:
    """Return the least of rows, columns and inner size of a product."""
    left, right = shapes[1:3] if name in ("addmm", "baddbmm") and len(shapes) > 2 else shapes[:2]
    if not left or not right:
        return 1
    rows = math.prod(left[:-1]) if name == "linear" else math.prod(left[-2:-1])
    columns = right[0] if name == "linear" else right[-1]
    return min(rows, left[-1], columns)


def _convolution(image: tuple[int, ...], weight: tuple[int, ...]) -> str:
    if len(image) < 3 or len(weight) < 3:
        return "convolution"
    if weight[1] != image[1]:
        return "convolution, depthwise" if weight[1] == 1 else "convolution, grouped"
    return "convolution, pointwise" if math.prod(weight[2:]) == 1 else "convolution"


def _steps(graph: Graph, task: Task) -> tuple[int, int]:
    """Return the number of sequential steps of a recurrent layer, over all its layers and directions, and the bytes of
    weights that each reads."""
    shape = graph.value[task.inputs[0]].shape
    batch_first = len(shape) == 3 and bool(task.args) and task.args[-1] is True
    length = shape[1] if batch_first else shape[0] if shape else 1
    matrices = [v for name in task.inputs[1:] if len((v := graph.value[name]).shape) == 2]
    layers = max(1, len(matrices) // 2)
    return max(1, length) * layers, sum(value.bytes for value in matrices) // layers
