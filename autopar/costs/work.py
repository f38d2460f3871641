"""The work of a task by its shapes: its operator family, and the seconds of its FLOPs and bytes at a device's rates.

The seconds are those of the roofline, `max(flops ÷ FLOP/s, bytes ÷ bytes per second)`, with two exceptions: a
recurrent layer is a chain of as many steps as its sequence is long, each with all its weights, and a lookup of
scattered rows waits for each of them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from ..ir.graph import UPDATES, Graph, Task
from ..ir.slices import WORDS

MISS_S = 2e-8
"""Seconds of a row at a random place in memory: a cache miss, of which several overlap."""
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


class Work(NamedTuple):
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


def work(graph: Graph, task: Task) -> Work:
    """Return family, FLOPs, bytes, kernels and looked-up rows of a task."""
    moved, name = touched(graph, task), operator(task)
    kind, dtype = family(graph, task), main_dtype(graph, task)
    if task.target in UPDATES:
        kernels = _KERNELS[len(task.outputs)]
        moved = max(moved, int(_PASSES * kernels * graph.value[task.outputs[0]].bytes))
        return Work(kind, dtype, task.flops, moved, kernels)
    if name in _RECURRENT and task.inputs:
        return Work(kind, dtype, task.flops, moved, *_steps(graph, task))
    waits = 0
    if task.target.startswith(ROWS) and len(task.inputs) > 1:
        waits = math.prod(graph.value[task.inputs[1]].shape)
    return Work(kind, dtype, task.flops, moved, waits=waits)


def operator(task: Task) -> str:
    """Return the operator of a task without namespace and overload: `linear` of `aten.linear.default`."""
    parts = task.target.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def family(graph: Graph, task: Task) -> str:
    """Return the family of operators that share one scale: products by their smallest side, `product 5` from 32 to 63,
    convolutions by the number of summed elements, the rest by name; other operators are their own family if they have
    FLOPs, else `elementwise`."""
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


def _convolution(given: tuple[int, ...], weight: tuple[int, ...]) -> str:
    if len(given) < 3 or len(weight) < 3:
        return "convolution"
    if weight[1] != given[1]:
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
