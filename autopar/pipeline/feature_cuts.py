"""Candidate splits of a graph's products along features on a machine: `feature_cuts`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TypeAlias

from ..ir.costed import CostedGraph
from ..ir.graph import Graph
from ..transform.batch_axis import batch_of
from ..transform.feature_split import products, split_features
from ..transform.features import Stretch

Price: TypeAlias = Callable[[Graph], CostedGraph]

MOST_PARTS = 8
"""Limit on the parts of a product."""
LEAST_PRODUCT_S = 1e-3
"""Least seconds of products for a feature split: many times the cost of joining lanes, which below 1 ms exceeds the
prediction."""


def feature_cuts(graph: Graph, price: Price, costed: CostedGraph, *, forced: bool) -> Iterator[CostedGraph]:
    """Yield the graph, whose whole is `costed`, with products in 2, 3, … parts.

    With `forced`, all products, in up to as many parts as there are lanes. Without, in up to as many as there are
    devices, since lanes of one device share its memory, which limits products of one row: for a batch of one row,
    products longer than `LEAST_PRODUCT_S`; for any batch, pairs whose weights and updates do not fit in some device's
    memory.
    """
    devices = costed.machine.devices
    count = sum(device.lanes for device in devices) if forced else len(devices)
    cap = min((d.memory_bytes for d in devices if d.memory_bytes is not None), default=math.inf)
    one_row = (batch_of(graph) or 1) < 2
    if not (forced or one_row or math.isfinite(cap)):
        return
    for parts in range(2, min(count, MOST_PARTS) + 1):
        begun = [
            stretch.tasks[0]
            for stretch in products(graph, parts)
            if (forced and stretch.columns)
            or _held(graph, stretch) > cap
            or (one_row and sum(costed.cost[name].least for name in stretch.tasks) > LEAST_PRODUCT_S)
        ]
        if begun:
            yield price(split_features(graph, parts, begun))


def _held(graph: Graph, stretch: Stretch) -> int:
    """Return the bytes of a stretch's weights, and of the inputs and outputs of their updates."""
    weights = {name for name in stretch.axes if name in graph.state}
    readers = (graph.task[reader] for name in weights for reader in graph.readers[name])
    updates = [task for task in readers if task.phase == "update"]
    beside = {name for task in updates for name in (*task.inputs, *task.outputs)}
    return sum(graph.value[name].bytes for name in weights | beside)
