"""Scales of operator families on a device: the measured launch, and a factor on the roofline. Also the
operations that measure the scales of a new machine.

Scales are fitted to a family's samples by least absolute deviations, which single outliers do not affect.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from ..ir.graph import Argument, Graph, Ref, Task, Value
from ..ops import resolve
from ..system import cache
from .calibrate import as_tasks, threads

VERSION = 1
"""Version of stored figures; other versions are ignored."""
MOST_EACH = 200
"""Limit on the samples of a family, of which the latest count."""
LAUNCHES = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)
"""Launches to try, as shares of the fewest seconds per kernel in the family."""
LEAST_S, LEAST_FACTOR = 5e-7, 0.02
LEAST_BUSY_S = 1e-15
"""Seconds by the roofline below which an operation tells nothing about the factor."""

Scales: TypeAlias = tuple[tuple[str, float, float], ...]
"""(family, launch in seconds, factor), as in `Device.scales`."""


_Sample: TypeAlias = tuple[int, float, float]
"""A measured operation: its kernels, seconds by the roofline without launches, and measured seconds."""


def fitted(samples: Iterable[tuple[str, int, float, float]]) -> Scales:
    """Return the scale of each family from measured operations: (family, kernels, seconds by the roofline without
    launches, measured seconds)."""
    families: dict[str, list[_Sample]] = {}
    for family, kernels, busy_s, seconds in samples:
        families.setdefault(family, []).append((kernels, busy_s, seconds))
    return tuple((name, *_fit(own_samples[-MOST_EACH:])) for name, own_samples in sorted(families.items()))


def _fit(samples: Sequence[_Sample]) -> tuple[float, float]:
    """Return launch and factor of the samples of one family."""
    shortest = min(seconds / kernels for kernels, _, seconds in samples)
    best = (float("inf"), 0.0, 0.0)
    for share in LAUNCHES:
        launch = max(LEAST_S, share * shortest)
        factor = max(LEAST_FACTOR, _factor(samples, launch))
        error = sum(abs(launch * n + factor * busy - took) / took for n, busy, took in samples)
        best = min(best, (error, launch, factor))
    return best[1:]


def _factor(samples: Sequence[_Sample], launch: float) -> float:
    """Return the median of seconds beyond launches ÷ the roofline's, weighted by the roofline's share."""
    ratios = sorted(
        ((took - launch * n) / busy, busy / took) for n, busy, took in samples if busy > LEAST_BUSY_S
    )
    half, so_far = sum(weight for _, weight in ratios) / 2, 0.0
    for ratio, weight in ratios:
        so_far += weight
        if so_far >= half:
            return ratio
    return statistics.fmean(ratio for ratio, _ in ratios) if ratios else 1.0


def stored(label: str) -> Scales:
    """Return the stored scales of a chip; none if there are none."""
    rows = cache.load(_file()).get(label, [])
    if not isinstance(rows, list) or not all(_is_scale(entry) for entry in rows):
        return ()
    return tuple((str(name), float(launch), float(factor)) for name, launch, factor in rows)


def keep(fits: Mapping[str, Scales]) -> None:
    """Store the scales of chips by label, in place of earlier ones."""
    path = _file()
    cache.store(path, {**cache.load(path), **fits})


def _is_scale(entry: Any) -> bool:
    return (
        isinstance(entry, list)
        and len(entry) == 3
        and isinstance(entry[0], str)
        and all(map(cache.is_figure, entry[1:]))
    )


def _file() -> Any:
    return cache.file_for("scales", [VERSION, torch.__version__])


def operations() -> Graph:
    """Return independent operations, two sizes of most families. Each is computed once, to get its shapes."""
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
        with as_tasks("cpu"), threads(1):
            result = resolve.target(target)(*args)
        several = isinstance(result, tuple)
        outputs = tuple(named(tensor, "made") for tensor in (result if several else (result,)))
        tasks.append(
            Task(f"probe{len(tasks)}", target, tuple(map(argument, args)), outputs=outputs, unpack=several,
                 flops=flops, free=not several and result._is_view())
        )  # fmt: skip
    inputs = tuple(value.name for value in values if value.kind == "input")
    result = tuple(value.name for value in values if value.kind == "made")
    return Graph("probes", tuple(values), tuple(tasks), inputs, (), result)


def _calls() -> Iterator[tuple[Any, ...]]:
    """Yield the FLOPs of each operation, its target and its arguments."""
    zeros = torch.zeros
    for rows in (1, 2, 8, 24, 64, 128, 256):
        for side in (512, max(rows, 32)):
            data, weight = zeros(rows, side), zeros(side, side)
            yield 2 * rows * side * side, "aten.linear.default", data, weight, zeros(side)
    for channels, side in ((32, 14), (64, 56)):
        image, window = zeros(1, channels, side, side), ((3, 3), (2, 2), (1, 1))
        for outputs, groups, size in (
            (channels, 1, 3), (channels, 4, 3), (channels, channels, 3), (2 * channels, 1, 1),
        ):  # fmt: skip
            weight, pad = zeros(outputs, channels // groups, size, size), (size // 2, size // 2)
            flops = 2 * outputs * side * side * weight[0].numel()
            yield flops, "aten.conv2d.default", image, weight, None, (1, 1), pad, (1, 1), groups
        yield 0, "aten.max_pool2d.default", image, *window
        yield 0, "aten.avg_pool2d.default", image, *window
        statistics = [zeros(channels) for _ in range(4)]
        yield 0, "aten.batch_norm.default", image, *statistics, False, 0.1, 1e-5, True
    for batch, length, width in ((1, 16, 64), (4, 32, 128)):
        sequence, state = zeros(batch, length, width), zeros(1, batch, width)
        for kind, gates, hidden in (("lstm", 4, (state, state)), ("gru", 3, state)):
            weights = (zeros(gates * width, width), zeros(gates * width, width))
            flops = 4 * batch * length * weights[0].numel()
            yield flops, f"aten.{kind}.input", sequence, hidden, weights, False, 1, 0.0, False, False, True
        heads = zeros(batch, 4, 4 * length, 32)
        yield 16 * length * heads.numel(), "aten.scaled_dot_product_attention.default", heads, heads, heads
    for side in (8, 1024):
        data = zeros(side, 256)
        for name in ("relu", "gelu", "tanh", "clone"):
            yield 0, f"aten.{name}.default", data
        yield 0, "aten.add.Tensor", data, data
        yield 0, "aten.layer_norm.default", data, (256,)
        yield 0, "aten.softmax.int", data, -1
        yield 0, "aten.mean.dim", data, (1,)
        yield 0, "aten.cat.default", (data, data), 1
        yield 0, "aten.zeros.default", (side, 256)
        yield 0, "aten.transpose.int", data, 0, 1
        yield 0, "aten.embedding.default", zeros(4096, 256), zeros(side, dtype=torch.int64)
