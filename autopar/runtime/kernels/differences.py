"""Operators whose values differ between a library and PyTorch, as one table: such tasks stay eager (`differs`).

Found by running each operator on the limits of its dtypes, NaN, infinities, zeros of both signs, small and large
numbers, and indices out of range. docs/kernels.md has the same table, with the differences that remain. Ids of look-ups
and masks of attention are `edge_cases`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from ...ir.graph import Graph, Ref, Task

_INDUCTOR = ("inductor", "inductor frozen")
_ONNX, _OPENVINO = ("onnxruntime",), ("openvino",)
_EXPORTED = (*_ONNX, *_OPENVINO)
_ALL = (*_INDUCTOR, *_EXPORTED)

_FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})
_NARROW = frozenset({"int8", "uint8", "int16"})
_LONG = frozenset({"int32", "int64"})
_INTEGERS = _NARROW | _LONG

EXACT = 2**24
"""Largest integer that OpenVINO computes with exactly: it compares and divides integers as float32."""

_CASTS = "_to_copy to"
_QUOTIENTS = "div floor_divide fmod remainder __floordiv__ __rfloordiv__ __rmod__"
_SHIFTS = "__lshift__ __rshift__ bitwise_left_shift bitwise_right_shift"
_EXTREMES = "amax amin aminmax argmax argmin fmax fmin max maximum min minimum sort argsort kthvalue"
_WRITES = (
    "cross_entropy_loss embedding_bag index_add index_fill nll_loss nll_loss_nd one_hot scatter scatter_add "
    "scatter_reduce take"
)
_MOVES = frozenset({
    "_to_copy", "alias", "as_strided", "cat", "chunk", "clone", "constant_pad_nd", "contiguous", "detach", "embedding",
    "expand", "flatten", "flip", "gather", "index", "index_select", "narrow", "permute", "repeat", "reshape", "roll",
    "select", "slice", "split", "split_with_sizes", "squeeze", "stack", "t", "to", "transpose", "unbind", "unflatten",
    "unsqueeze", "view", "where",
})  # fmt: skip
"""Operators that move elements as they are."""


@dataclass(frozen=True)
class Difference:
    """A row of the table: tasks of some ATen operators, where a tensor that they read has a dtype of `reads`, one that
    they make a dtype of `makes`, and `condition` holds.

    operators: names without overload, separated by spaces; "": all but `_MOVES`.
    reads, makes: empty for any dtype.
    instead: the values that the libraries give instead of PyTorch's, as part of a sentence.
    """

    libraries: tuple[str, ...]
    operators: str
    instead: str
    reads: frozenset[str] = frozenset()
    makes: frozenset[str] = frozenset()
    condition: Callable[[Task], bool] = lambda _: True


def _numbers(task: Task) -> Iterator[Any]:
    return (each for each in task.args if isinstance(each, (int, float)) and not isinstance(each, bool))


def _by_tensor(task: Task) -> bool:
    """Return True for a quotient whose divisor is a tensor, 0 or -1."""
    return len(task.args) < 2 or isinstance(task.args[1], Ref) or task.args[1] in (0, -1)


def _rounded(task: Task) -> bool:
    return "div." not in task.target or task.target.endswith("_mode")


def _of_number(task: Task) -> bool:
    return not isinstance(task.args[0], Ref)


def _by_zero(task: Task) -> bool:
    return any(number == 0 for number in _numbers(task))


def _grows(task: Task) -> bool:
    """Return True for a product with a tensor or with a number that takes integers of 24 bits beyond int32."""
    return not any(abs(number) < 2**7 for number in _numbers(task))


def _large(task: Task) -> bool:
    return any(isinstance(number, int) and abs(number) > EXACT for number in _numbers(task))


def _corrected(task: Task) -> bool:
    return task.target.endswith(".correction")


DIFFERENCES = (
    # Integers.
    Difference(_ALL, _QUOTIENTS, "a number, or the process ends, if the divisor is 0, or -1 of the least integer",
               makes=_INTEGERS, condition=_by_tensor),
    Difference(_INDUCTOR, "pow", "floats for powers of a constant", makes=_INTEGERS, condition=_of_number),
    Difference(_INDUCTOR, "cumprod cumsum prod sum", "0 for products beyond the dtype", makes=_NARROW),
    Difference(_INDUCTOR, "any all", "bool instead of uint8", makes=frozenset({"uint8"})),
    Difference(_INDUCTOR, _CASTS, "the nearest int8 for numbers beyond", _FLOATS, frozenset({"int8"})),
    Difference(_EXPORTED, "", "the nearest of its dtype for numbers beyond, or an error", _NARROW),
    Difference(_EXPORTED, "", "the nearest of its dtype for numbers beyond, or an error", makes=_NARROW),
    Difference(_OPENVINO, _CASTS, "the nearest of its dtype for numbers beyond", makes=_NARROW),
    Difference(_ONNX, "div pow prod", "numbers of float32", makes=_LONG),
    Difference(_ONNX, "sum", "the largest integer for sums beyond it", makes=_LONG),
    Difference(_ONNX, "ceil floor isnan relu trunc", "an error for lack of a kernel", _LONG),
    Difference(_ONNX, "add amax masked_fill sort where", "an error for lack of a kernel", makes=frozenset({"bool"})),
    Difference(_OPENVINO, f"{_QUOTIENTS} {_SHIFTS}", "quotients of float32, rounded to 0", makes=_LONG),
    Difference(_OPENVINO, "addcmul cumprod cumsum dot floor gcd matmul mm outer pow prod square sum",
               "integers of 32 bits", makes=_LONG),
    Difference(_OPENVINO, "mul", "integers of 32 bits", makes=_LONG, condition=_grows),
    Difference(_OPENVINO, "", "integers of 32 bits", _LONG, condition=_large),
    Difference(_OPENVINO, "", "integers of 32 bits", makes=_LONG, condition=_large),
    Difference(_OPENVINO, _CASTS, "integers of 32 bits", _FLOATS, _LONG),
    Difference(_OPENVINO, "cumsum", "bool", frozenset({"bool"})),
    Difference(_OPENVINO, "std var", "the value without the correction", condition=_corrected),
    # Ids.
    Difference(_INDUCTOR, "index_add index_select scatter_reduce", "no error for ids out of range"),
    Difference(_EXPORTED, _WRITES, "no error for ids out of range"),
    # Floats.
    Difference(_INDUCTOR, "acosh atanh erf expm1", "0 for small numbers, infinity for large ones", _FLOATS),
    Difference(_INDUCTOR, "div floor_divide remainder", "other quotients of infinite or large numbers",
               _FLOATS, _FLOATS, _rounded),
    Difference(_INDUCTOR, "mul", "0 for NaN times the constant 0", _FLOATS, condition=_by_zero),
    Difference(_EXPORTED, "erfc expm1 log1p sgn sign signbit", "0 for small numbers, or a number for NaN", _FLOATS),
    Difference(_ONNX, "logcumsumexp", "NaN for infinities", _FLOATS),
    Difference(_EXPORTED, _EXTREMES, "a number for NaN", _FLOATS),
    Difference(_OPENVINO, _EXTREMES, "other places of equal numbers, or rounded integers", _INTEGERS),
    Difference(_OPENVINO, "", "numbers of float32", frozenset({"float64"})),
    Difference(_OPENVINO, "", "numbers of float32", makes=frozenset({"float64"})),
    Difference(_OPENVINO, _CASTS, "numbers of float32", frozenset({"float64"})),
    Difference(_OPENVINO, _CASTS, "False for NaN", _FLOATS, frozenset({"bool"})),
    Difference(_EXPORTED, "atan2 div floor_divide fmod logaddexp logaddexp2 remainder special_xlog1py xlogy",
               "other numbers for NaN, infinities or large numbers", _FLOATS, _FLOATS, _rounded),
    Difference(_OPENVINO, "addcdiv erf erfinv", "other numbers for infinities or small numbers", _FLOATS),
    Difference(_OPENVINO, "ge gt", "True for NaN", _FLOATS),
    Difference(_OPENVINO, "all any bucketize logical_and logical_not logical_or logical_xor", "False for NaN", _FLOATS),
)  # fmt: skip


def differs(task: Task, graph: Graph, library: str) -> str:
    """Return why a library may compute other values than PyTorch for a task, as a sentence; "" if it may not."""
    room, _, rest = task.target.partition(".")
    name = rest.partition(".")[0]
    if room != "aten":
        return ""
    reads, makes = ({graph.value[each].dtype for each in names} for names in (task.inputs, task.outputs))
    for row in (*_ROWS.get((library, name), ()), *(() if name in _MOVES else _ROWS.get((library, ""), ()))):
        fits = (not row.reads or row.reads & reads) and (not row.makes or row.makes & makes)
        if fits and row.condition(task):
            return f"its {name} may give {row.instead}"
    return ""


def _by_name() -> dict[tuple[str, str], list[Difference]]:
    rows: dict[tuple[str, str], list[Difference]] = {}
    for row in DIFFERENCES:
        for key in product(row.libraries, row.operators.split() or [""]):
            rows.setdefault(key, []).append(row)
    return rows


_ROWS = _by_name()
