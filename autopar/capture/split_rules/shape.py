"""Cuts of operators that move elements without computing: views, joins, splits, paddings, indexed reads and writes."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from .registry import Call, Way, aligned, axes_of, axis_of, rule, same_axes


@rule("view reshape _unsafe_view _reshape_alias")
def reshape(call: Call) -> Iterator[Way]:
    """Yield axis i before and axis j after with equal products of the sizes to their left.

    A share of either axis is then the same block of each row, so a part of one is the same part of the other.
    """
    before, after = call.shape("self"), tuple(call.output.shape)
    if call.output.dtype != call["self"].dtype or 0 in before:
        return
    name = "shape" if "shape" in call.arguments else "size"
    left = {math.prod(before[:axis]): axis for axis in range(len(before)) if before[axis] > 1}
    for axis in range(len(after)):
        source = left.get(math.prod(after[:axis]))
        if source is None or after[axis] == 1:
            continue
        sized = name in call.arguments and call[name][axis] != -1
        yield Way({"self": source}, axis, ((name, axis),) if sized else ())


@rule("expand", "expand_copy")
def expand(call: Call) -> Iterator[Way]:
    """Yield every axis. It is cut in the input too, or only in the size if the input repeats along it."""
    tensor, shape = call["self"], tuple(call.output.shape)
    for axis in range(len(shape)):
        scale = (("size", axis),) if call["size"][axis] != -1 else ()
        yield Way({"self": aligned(tensor, axis, shape)}, axis, scale)


@rule("repeat", "tile")
def repeat(call: Call) -> Iterator[Way]:
    """Yield axes that are repeated once."""
    name = "repeats" if "repeats" in call.arguments else "dims"
    shape = tuple(call.output.shape)
    times = (1,) * (len(shape) - len(call[name])) + tuple(call[name])
    for axis, count in enumerate(times):
        if count == 1:
            yield Way({"self": aligned(call["self"], axis, shape)}, axis)


@rule("repeat_interleave")
def repeat_interleave(call: Call) -> Iterator[Way]:
    """Yield every axis for a fixed number of repeats, which keeps each row's copies together."""
    if (
        isinstance(call.get("repeats"), int)
        and call.get("dim") is not None
        and call.get("output_size") is None
    ):
        yield from same_axes(call, "self")


@rule("permute permute_copy transpose transpose_copy t t_copy")
def permute(call: Call) -> Iterator[Way]:
    """Yield every axis, at its new position."""
    rank = call.rank("self")
    order = list(range(rank))
    if "dims" in call.arguments:
        order = [axis_of(axis, rank) for axis in call["dims"]]
    elif rank > 1:
        one, other = axis_of(call.get("dim0", 0), rank), axis_of(call.get("dim1", 1), rank)
        order[one], order[other] = order[other], order[one]
    for after, before in enumerate(order):
        yield Way({"self": before}, after)


@rule("squeeze", "squeeze_copy")
def squeeze(call: Call) -> Iterator[Way]:
    """Yield axes that stay; none without `dim`, since a part might then lose an axis that the whole keeps."""
    if "dim" not in call.arguments:
        return
    shape = call.shape("self")
    busy = axes_of(call["dim"], len(shape))
    yield from same_axes(call, "self", but=busy, gone=[axis for axis in busy if shape[axis] == 1])


@rule("view_as_real", "view_as_complex", "view_as_real_copy", "view_as_complex_copy")
def complex_view(call: Call) -> Iterator[Way]:
    """Yield every axis but the pair (real, imaginary)."""
    yield from same_axes(call, "self", last=max(0, call.rank("self") - call.output.dim()))


@rule("cat", "concat", "concatenate")
def cat(call: Call) -> Iterator[Way]:
    """Yield every axis but the one that grows."""
    rank = call.output.dim()
    if all(tensor.dim() == rank for tensor in call["tensors"]):
        for axis in range(rank):
            if axis != axis_of(call["dim"], rank):
                yield Way({"tensors": [axis] * len(call["tensors"])}, axis)


@rule("unsqueeze", "unsqueeze_copy", "stack")
def new_axis(call: Call) -> Iterator[Way]:
    """Yield every axis; those after the new one move up by one."""
    rank = call.output.dim()
    new = axis_of(call["dim"], rank)
    for axis in range(rank - 1):
        yield Way({"self": axis, "tensors": [axis] * len(call.get("tensors", ()))}, axis + (axis >= new))


@rule("unbind", "unbind_copy", "select", "select_copy")
def select(call: Call) -> Iterator[Way]:
    """Yield every axis but the selected one."""
    if isinstance(call.get("dim"), int):
        gone = [axis_of(call["dim"], call.rank("self"))]
        yield from same_axes(call, "self", but=gone, gone=gone)


@rule(
    "slice slice_copy narrow_copy flip roll unfold unfold_copy glu slice_scatter select_scatter rot90 fliplr flipud"
    " diff split split_with_sizes unsafe_split unsafe_split_with_sizes unsafe_chunk split_copy split_with_sizes_copy"
)
def along(call: Call) -> Iterator[Way]:
    """Yield every axis but those the operator works along; every axis for a slice of the whole tensor."""
    rank = call.rank("self")
    if call.name in ("aten::fliplr", "aten::flipud"):
        busy = frozenset({1 if call.name == "aten::fliplr" else 0})
    elif "dims" in call.arguments:
        if call.name == "aten::roll" and not call["dims"]:
            return
        busy = axes_of(tuple(call["dims"]), rank) if call["dims"] else frozenset()
    else:
        busy = axes_of(call["dimension"] if "dimension" in call.arguments else call["dim"], rank)
    if "step" in call.arguments and "end" in call.arguments and _takes_all(call):
        busy = frozenset()
    for axis in range(rank):
        if axis not in busy:
            gone = axis_of(call["dim"], rank) if call.name == "aten::select_scatter" else rank
            beside = dict.fromkeys(("prepend", "append"), axis)
            yield Way({"self": axis, "src": axis - (axis > gone), **beside}, axis)


def _takes_all(call: Call) -> bool:
    size = call.shape("self")[axis_of(call["dim"], call.rank("self"))]
    return call["step"] == 1 and call["start"] in (None, 0) and (call["end"] is None or call["end"] >= size)


@rule(
    "pad constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d"
    " replication_pad2d replication_pad3d _pad_circular _pad_enum"
)
def pad(call: Call) -> Iterator[Way]:
    """Yield axes before the padded ones; with constant padding, also axes whose padding has width 0."""
    rank, sizes = call.rank("self"), tuple(call["pad" if "pad" in call.arguments else "padding"])
    constant = call.name == "aten::constant_pad_nd" or call.get("mode") == "constant"
    for axis in range(rank):
        place = 2 * (rank - 1 - axis)
        if place >= len(sizes) or (constant and sizes[place : place + 2] == (0, 0)):
            yield Way({"self": axis}, axis)


@rule("tril", "triu", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "im2col", "col2im")
def leading(call: Call) -> Iterator[Way]:
    """Yield the batch axes in front of the plane, cube or image that the operator works on."""
    rank = call.rank("self")
    inner = {"aten::tril": 2, "aten::triu": 2, "aten::col2im": 2, "aten::channel_shuffle": rank - 1}
    yield from same_axes(call, "self", last=inner.get(call.name, 3))


@rule("diagonal", "diagonal_copy")
def diagonal(call: Call) -> Iterator[Way]:
    """Yield axes outside the plane, in order, in front of the diagonal."""
    plane = [axis_of(call[dim], call.rank("self")) for dim in ("dim1", "dim2")]
    yield from same_axes(call, "self", but=plane, gone=plane)


@rule("diag_embed", "diagonal_backward")
def diag_embed(call: Call) -> Iterator[Way]:
    """Yield the axes before the diagonal; in the output they stand, in order, around its plane."""
    rank = call.output.dim()
    plane = {axis_of(call["dim1"], rank), axis_of(call["dim2"], rank)}
    for before, after in enumerate(axis for axis in range(rank) if axis not in plane):
        scale = (("input_sizes", after),) if "input_sizes" in call.arguments else ()
        yield Way({"self": before, "grad_output": before}, after, scale)


@rule("zeros ones full new_zeros new_ones new_full new_empty")
def filled(call: Call) -> Iterator[Way]:
    """Yield every axis, by its size. An input gives only dtype and device, so any of its axes may be cut
    together with any output axis of the same size."""
    for axis in range(call.output.dim()):
        yield Way({}, axis, (("size", axis),))
    for before, size in enumerate(call.shape("self") if call.is_tensor("self") else ()):
        for after, other in enumerate(call.output.shape):
            if size == other:
                yield Way({"self": before}, after, (("size", after),))


@rule("one_hot")
def one_hot(call: Call) -> Iterator[Way]:
    """Yield every axis if the number of classes is given."""
    if call["num_classes"] > 0:
        yield from same_axes(call, "self")


@rule("embedding")
def embedding(call: Call) -> Iterator[Way]:
    """Yield every axis of the indices, with the table whole; and the features of the table."""
    rank = call.rank("indices")
    for axis in range(rank):
        yield Way({"indices": axis}, axis)
    yield Way({"weight": 1}, rank)


@rule("gather", "take_along_dim")
def gather(call: Call) -> Iterator[Way]:
    """Yield axes along which self and index have the same size; the gathered axis cuts the index alone."""
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
    """Yield axes along which self, index and source have the same size."""
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
    """Yield every axis but the indexed one, along which a selection may be cut by its index."""
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
    """Yield axes that no tensor indexes; for a read, also the axes of the indices.

    In the output, the axes of the indices replace adjacent indexed axes; otherwise they come first.
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
