"""A graph of small operations of most families, to find the scales of an unmeasured CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ..ir.device import Device
from ..ir.graph import Argument, Graph, Ref, Task, Value
from ..ir.machine import Machine
from ..ops import resolve
from . import scales
from .calibrate import threads
from .measure import chip, measure
from .roofline import CALL

BUDGET_S = 0.3
CALL_SCALE = (2e-5, 1.3)
"""Launch in seconds and factor of calls if none was recorded: the median of the models of
`tests/benchmarks/timed/zoo.py`."""


def scaled(device: Device) -> scales.Scales:
    """Return the scales of a CPU: the stored ones, else those of `operations`, which take some tenths of a second."""
    label = chip(device)
    found = scales.kept(label)
    if not found:
        measure(operations(), Machine((device,)), {}, budget_s=BUDGET_S)
        found = scales.kept(label)
    if all(name != CALL for name, _, _ in found):
        found += ((CALL, *CALL_SCALE),)
    return found


def operations() -> Graph:
    """Return independent operations, two sizes of most families. Each is computed once, for the shapes."""
    values: list[Value] = []
    tasks: list[Task] = []

    def named(tensor: torch.Tensor, kind: Any = "input") -> str:
        name, dtype = f"v{len(values)}", str(tensor.dtype).removeprefix("torch.")
        values.append(Value(name, tuple(tensor.shape), dtype, tensor.nbytes, name, kind))
        return name

    def argument(item: Any) -> Argument:
        if isinstance(item, (tuple, list)):
            return tuple(map(argument, item))
        return Ref(named(item)) if isinstance(item, torch.Tensor) else item

    for flops, target, *args in _calls():
        with torch.no_grad(), threads(1):
            made = resolve.target(target)(*args)
        several = isinstance(made, tuple)
        outputs = tuple(named(tensor, "made") for tensor in (made if several else (made,)))
        tasks.append(
            Task(f"probe{len(tasks)}", target, tuple(map(argument, args)), outputs=outputs, unpack=several,
                 flops=flops, free=not several and made._is_view())
        )  # fmt: skip
    inputs = tuple(value.name for value in values if value.kind == "input")
    made = tuple(value.name for value in values if value.kind == "made")
    return Graph("probes", tuple(values), tuple(tasks), inputs, (), made)


def _calls() -> Iterator[tuple[Any, ...]]:
    """Yield the FLOPs of each operation, its target and its arguments."""
    given = torch.zeros
    for rows in (1, 2, 8, 24, 64, 128, 256):
        for side in (512, max(rows, 32)):
            data, weight = given(rows, side), given(side, side)
            yield 2 * rows * side * side, "aten.linear.default", data, weight, given(side)
    for channels, side in ((32, 14), (64, 56)):
        image, window = given(1, channels, side, side), ((3, 3), (2, 2), (1, 1))
        for made, groups, size in (
            (channels, 1, 3), (channels, 4, 3), (channels, channels, 3), (2 * channels, 1, 1),
        ):  # fmt: skip
            weight, pad = given(made, channels // groups, size, size), (size // 2, size // 2)
            flops = 2 * made * side * side * weight[0].numel()
            yield flops, "aten.conv2d.default", image, weight, None, (1, 1), pad, (1, 1), groups
        yield 0, "aten.max_pool2d.default", image, *window
        yield 0, "aten.avg_pool2d.default", image, *window
        statistics = [given(channels) for _ in range(4)]
        yield 0, "aten.batch_norm.default", image, *statistics, False, 0.1, 1e-5, True
    for batch, length, width in ((1, 16, 64), (4, 32, 128)):
        sequence, state = given(batch, length, width), given(1, batch, width)
        for kind, gates, hidden in (("lstm", 4, (state, state)), ("gru", 3, state)):
            weights = (given(gates * width, width), given(gates * width, width))
            flops = 4 * batch * length * weights[0].numel()
            yield flops, f"aten.{kind}.input", sequence, hidden, weights, False, 1, 0.0, False, False, True
        heads = given(batch, 4, 4 * length, 32)
        yield 16 * length * heads.numel(), "aten.scaled_dot_product_attention.default", heads, heads, heads
    for side in (8, 1024):
        data = given(side, 256)
        for name in ("relu", "gelu", "tanh", "clone"):
            yield 0, f"aten.{name}.default", data
        yield 0, "aten.add.Tensor", data, data
        yield 0, "aten.layer_norm.default", data, (256,)
        yield 0, "aten.softmax.int", data, -1
        yield 0, "aten.mean.dim", data, (1,)
        yield 0, "aten.cat.default", (data, data), 1
        yield 0, "aten.zeros.default", (side, 256)
        yield 0, "aten.transpose.int", data, 0, 1
        yield 0, "aten.embedding.default", given(4096, 256), given(side, dtype=torch.int64)
