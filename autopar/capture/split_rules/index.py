"""Cuts of what reads or writes at positions that tensors give."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from .registry import Call, Way, aligned, axis_of, rule


@rule("embedding")
def embedding(call: Call) -> Iterator[Way]:
    """Every axis of the indices; the table whole, or cut by features."""
    rank = call.rank("indices")
    for axis in range(rank):
        yield Way({"indices": axis}, axis)
    yield Way({"weight": 1}, rank)


@rule("gather", "take_along_dim")
def gather(call: Call) -> Iterator[Way]:
    """Axes along which self and index run side by side."""
    index = "index" if "index" in call.arguments else "indices"
    if not isinstance(call.get("dim"), int) or call.rank("self") != call.rank(index):
        return
    rank = call.rank("self")
    for axis in range(rank):
        if axis == axis_of(call["dim"], rank):
            yield Way({index: axis}, axis)
        elif call.shape("self")[axis] == call.shape(index)[axis]:
            yield Way({"self": axis, index: axis}, axis)


@rule("scatter", "scatter_add", "scatter_reduce")
def scatter(call: Call) -> Iterator[Way]:
    """Axes along which self, index and source run side by side."""
    rank = call.rank("self")
    tensors = {name: tensor for name, _, tensor in call.tensors() if tensor.dim()}
    if call.rank("index") != rank:
        return
    for axis in range(rank):
        if (
            axis != axis_of(call["dim"], rank)
            and len({tensor.shape[axis] for tensor in tensors.values()}) == 1
        ):
            yield Way(dict.fromkeys(tensors, axis), axis)


@rule("index_select", "index_add", "index_copy", "index_fill", "index_reduce")
def index_select(call: Call) -> Iterator[Way]:
    """Every axis but the indexed one; there, a selection may be cut by its index."""
    rank = call.rank("self")
    if rank == 0:
        return
    dim = axis_of(call["dim"], rank)
    source = next((name for name in ("source", "tensor_source") if call.is_tensor(name)), None)
    if source is None and call.name in ("aten::index_add", "aten::index_copy", "aten::index_reduce"):
        return
    for axis in range(rank):
        if axis != dim:
            yield Way({"self": axis} | ({} if source is None else {source: axis}), axis)
        elif call.name == "aten::index_select" and call.rank("index") == 1:
            yield Way({"index": 0}, axis)


@rule("index", "_unsafe_index", "index_put", "_unsafe_index_put")
def index(call: Call) -> Iterator[Way]:
    """Axes that no tensor indexes pass through; of a read, also the axes of the indices.

    The axes of the indices stand where the first of them stood when they are neighbours, else in front.
    """
    shape, indices = call.shape("self"), list(call["indices"])
    if any(item is not None and item.dtype in (torch.bool, torch.uint8) for item in indices):
        return
    indices += [None] * (len(shape) - len(indices))
    busy = [axis for axis, item in enumerate(indices) if item is not None]
    if not busy:
        return
    wide = torch.broadcast_shapes(*(indices[axis].shape for axis in busy))
    first = busy[0] if busy[-1] - busy[0] + 1 == len(busy) else 0
    rest = [axis for axis in range(len(shape)) if axis not in busy]
    result = (*(shape[axis] for axis in rest[:first]), *wide, *(shape[axis] for axis in rest[first:]))
    writes = call.is_tensor("values")
    for place, axis in enumerate(rest):
        out = place if place < first else place + len(wide)
        if writes:
            yield Way({"self": axis, "values": aligned(call["values"], out, result)}, axis)
        else:
            yield Way({"self": axis}, out)
    if not writes:
        for axis in range(len(wide)):
            cut = [None if item is None else aligned(item, axis, wide) for item in call["indices"]]
            yield Way({"indices": cut}, first + axis)
