"""The ways to cut the products of a graph along features that may pay on a machine: `feature_cuts`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TypeAlias

from ..ir.costed import CostedGraph
from ..ir.graph import Graph
from ..transform.feature_split import products, split_features
from ..transform.features import Stretch
from ..transform.split import batch_of

Price: TypeAlias = Callable[[Graph], CostedGraph]

MOST_PARTS = 8
"""Parts of a product that are tried at the most."""
LEAST_PRODUCT_S = 1e-3
"""Seconds of products that are worth cutting along features: many times what lanes take to meet, which below a
millisecond costs more than is predicted."""


def feature_cuts(graph: Graph, price: Price, costed: CostedGraph, *, forced: bool) -> Iterator[CostedGraph]:
    """The graph, which is `costed` as a whole, with products in 2, 3, … parts.

    With `forced` all products, in as many parts as there are lanes. Without, in as many as there are devices,
    for lanes of one share its memory, which products of one row wait for: of a batch of one row what takes longer than
    `LEAST_PRODUCT_S`, of any batch pairs whose weights, with what updates them, some device has no memory for.
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
            or (one_row and sum(_least(costed, name) for name in stretch.tasks) > LEAST_PRODUCT_S)
        ]
        if begun:
            yield price(split_features(graph, parts, begun))


def _held(graph: Graph, stretch: Stretch) -> int:
    """Bytes of the weights of a stretch, and of what their updates read and make."""
    weights = {name for name, _ in stretch.axes if name in graph.state}
    readers = (graph.task[reader] for name in weights for reader in graph.readers[name])
    updates = [task for task in readers if task.phase == "update"]
    beside = {name for task in updates for name in (*task.inputs, *task.outputs)}
    return sum(graph.value[name].bytes for name in weights | beside)


def _least(costed: CostedGraph, task: str) -> float:
    """Seconds of a task where it is quickest."""
    known = costed.cost.get(task)
    return min((time for time in known.seconds if time is not None), default=0.0) if known else 0.0
