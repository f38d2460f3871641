"""Cuts of matrix products, convolutions, attention, recurrent cells and pooling."""

from __future__ import annotations

from collections.abc import Iterator

from ...ir.graph import SUMMED
from .registry import Call, Way, aligned, always, broadcast, rule, same_axes


@rule("linear")
def linear(call: Call) -> Iterator[Way]:
    """Yield every axis of the input except the features, and the rows of the weight; without bias, the
    features, as sums."""
    rank = call.rank("input")
    for axis in range(rank - 1):
        yield Way({"input": axis}, axis)
    if call.rank("weight") == 2:
        yield Way({"weight": 0, "bias": 0}, rank - 1)
    if call["bias"] is None:
        yield Way({"input": rank - 1, "weight": call.rank("weight") - 1}, SUMMED)


@rule("matmul", "mm", "bmm", "mv", "dot", "addmm", "baddbmm", "addmv", "linalg_matmul", "__rmatmul__")
def matmul(call: Call) -> Iterator[Way]:
    """Yield broadcast batch axes, rows of the left, columns of the right; an added tensor broadcasts.

    Without an added tensor, also yield the columns of the left with the rows of the right, as sums.
    """
    names = [name for name, _, _ in call.tensors()]
    added = names.pop(0) if len(names) == 3 else None
    left, right = names
    out = tuple(call.output.shape)
    rows, columns = call.rank(left), call.rank(right)
    for axis in range(len(out)):
        last = axis == len(out) - 1
        inputs: dict[str, int | None]
        if columns == 1:
            inputs = {left: axis}
        elif last:
            inputs = {right: columns - 1}
        elif rows == 1:
            inputs = {right: axis}
        elif axis == len(out) - 2:
            inputs = {left: rows - 2}
        else:
            inputs = {name: aligned(call[name], axis, out) for name in names}
        if added is not None:
            inputs[added] = aligned(call[added], axis, out)
        yield Way(inputs, axis)
    if added is None:
        yield Way({left: rows - 1, right: max(columns - 2, 0)}, SUMMED)


@rule("einsum")
def einsum(call: Call) -> Iterator[Way]:
    """Yield each letter, in operands that have it in full size; an output without the letter is a sum."""
    equation = call["equation"].replace(" ", "")
    if "->" not in equation or "." in equation:
        return
    operands, out = equation.split("->")
    terms = operands.split(",")
    sizes: dict[str, int] = {}
    for term, tensor in zip(terms, call["tensors"], strict=True):
        for letter, size in zip(term, tensor.shape, strict=True):
            sizes[letter] = max(size, sizes.get(letter, 0))
    for letter, size in sizes.items():
        if all(term.count(letter) < 2 for term in terms):
            axes = [
                term.index(letter) if letter in term and tensor.shape[term.index(letter)] == size else None
                for term, tensor in zip(terms, call["tensors"], strict=True)
            ]
            yield Way({"tensors": axes}, out.index(letter) if letter in out else SUMMED)


# Bilinear: the axes in front of the features. Outer product: either vector.
rule("bilinear")(lambda call: same_axes(call, "input1", "input2", last=1))
rule("outer ger")(always(Way({"self": 0}, 0), Way({"vec2": 0}, 1)))


@rule("cdist", "_cdist_forward", "_euclidean_dist")
def cdist(call: Call) -> Iterator[Way]:
    """Yield batch axes, and the points of either side."""
    rank = call.output.dim()
    yield from broadcast(call, call.output.shape, but=(rank - 2, rank - 1))
    yield Way({"x1": call.rank("x1") - 2}, rank - 2)
    yield Way({"x2": call.rank("x2") - 2}, rank - 1)


@rule("conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d convolution _convolution")
def convolution(call: Call) -> Iterator[Way]:
    """Yield the batch axis."""
    if call.rank("input") == call.rank("weight"):
        yield Way({"input": 0}, 0)


@rule("scaled_dot_product_attention", "_scaled_dot_product_flash_attention_for_cpu")
def attention(call: Call) -> Iterator[Way]:
    """Yield batch, heads (grouped queries in proportion to their keys), and query rows unless causal."""
    query, key, value, mask = call["query"], call["key"], call["value"], call["attn_mask"]
    if call["dropout_p"] != 0 or not query.dim() == key.dim() == value.dim():
        return
    rank = query.dim()
    own = call.name == "aten::scaled_dot_product_attention"
    scores = (*query.shape[:-1], key.shape[-2])

    def masked(axis: int) -> dict[str, int | None]:
        return {} if mask is None else {"attn_mask": aligned(mask, axis, scores)}

    for axis in range(rank - 2 if own else 1):
        grouped = axis == rank - 3 and bool(call.get("enable_gqa", False))
        if key.shape[axis] != value.shape[axis] or (not grouped and key.shape[axis] != query.shape[axis]):
            continue
        yield Way({"query": axis, "key": axis, "value": axis, **masked(axis)}, axis)
    if own and not call["is_causal"]:
        yield Way({"query": rank - 2, **masked(rank - 2)}, rank - 2)


@rule("_transformer_encoder_layer_fwd", "_native_multi_head_attention")
def fused_attention(call: Call) -> Iterator[Way]:
    """Yield the batch axis if there is no mask."""
    if call["mask"] is None and all(output.numel() for output in call.outputs):
        yield Way({"src": 0, "query": 0, "key": 0, "value": 0}, 0)


@rule("lstm", "gru", "rnn_tanh", "rnn_relu")
def recurrent(call: Call) -> Iterator[Way]:
    """Yield the batch axis of a padded batch: axis 0 or 1 of the input (`batch_first`), axis 1 of states."""
    if not call.is_tensor("input") or call.rank("input") != 3 or (call["train"] and call["dropout"] != 0):
        return
    batch = 0 if call["batch_first"] else 1
    states = [1] * len(call["hx"]) if isinstance(call["hx"], list | tuple) else 1
    yield Way({"input": batch, "hx": states}, (batch, *(1 for _ in call.outputs[1:])))


@rule("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell")
def cell(call: Call) -> Iterator[Way]:
    """Yield the batch axis."""
    if call.rank("input") == 2:
        yield Way({"input": 0, "hx": [0, 0] if isinstance(call["hx"], list | tuple) else 0}, 0)


_POOLS = (
    "max_pool{n}d max_pool{n}d_with_indices avg_pool{n}d adaptive_avg_pool{n}d adaptive_max_pool{n}d"
    " _adaptive_avg_pool{n}d max_unpool{n}d upsample_nearest{n}d _upsample_nearest_exact{n}d"
    " max_pool{n}d_with_indices_backward avg_pool{n}d_backward _adaptive_avg_pool{n}d_backward"
    " adaptive_max_pool{n}d_backward reflection_pad{n}d_backward replication_pad{n}d_backward"
)
_RESIZES = (
    "upsample_linear1d upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d _upsample_bilinear2d_aa"
    " _upsample_bicubic2d_aa _upsample_lanczos2d_aa"
)


@rule(*(name.format(n=n) for n in (1, 2, 3) for name in _POOLS.split()), _RESIZES)
def pool(call: Call) -> Iterator[Way]:
    """Yield batch and channels, in the backward too: each image plane is independent."""
    inner = int(next(digit for digit in call.name if digit.isdigit()))
    name = "self" if "self" in call.arguments else "input"
    yield from same_axes(call, name, "grad_output", "indices", last=inner)


# The batch axis of images and grids; for an affine grid, `size` has it too.
rule("grid_sampler grid_sampler_2d grid_sampler_3d")(always(Way({"input": 0, "grid": 0}, 0)))
rule("affine_grid_generator")(always(Way({"theta": 0}, 0, (("size", 0),))))


_MATRIX = (
    "linalg_inv linalg_inv_ex inverse linalg_cholesky linalg_cholesky_ex cholesky linalg_matrix_exp"
    " linalg_det det _linalg_det slogdet linalg_slogdet _linalg_slogdet logdet linalg_eigh _linalg_eigh"
    " linalg_eigvalsh"
    " linalg_svdvals linalg_matrix_power matrix_power linalg_pinv pinverse"
)


@rule(_MATRIX)
def matrix(call: Call) -> Iterator[Way]:
    """Yield batch axes of functions of one matrix."""
    names = [name for name, _, _ in call.tensors()]
    if len(names) == 1:
        yield from same_axes(call, names[0], last=2)


@rule("linalg_solve", "linalg_solve_ex", "linalg_solve_triangular", "cholesky_solve")
def solve(call: Call) -> Iterator[Way]:
    """Yield batch axes if both sides are batches of matrices."""
    names = [name for name, _, _ in call.tensors()]
    shape = tuple(call.output.shape)
    if all(call.rank(name) == len(shape) for name in names):
        yield from broadcast(call, shape, but=range(len(shape) - 2, len(shape)))
