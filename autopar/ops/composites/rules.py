"""Kernels that replace composite ATen operators in a trace with its backward: attention, embedding bags,
recurrent layers, norms, resizes and factors of matrices; and out-of-place operators for random numbers drawn in place.

The rules replace torch's kernels at the dispatch keys of autograd. They therefore also apply in checkpointed
regions and in torch functions that call the operator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, library
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from ...errors import CaptureError
from . import recurrent
from .define import KERNELS, LIBRARY, Decompose, define, fused_attention, whole

_aten = torch.ops.aten
_SDPA = _aten.scaled_dot_product_attention.default
_GRID = _aten.affine_grid_generator.default
Rule = Callable[..., Any]


def _tape_shape(query: Tensor, key: Tensor, *rest: Any) -> tuple[int, ...]:
    """Return the shape of one float per query, the log-sum-exp of its softmax: fused kernels save only this. With
    dropout, the tape of others holds of each score its softmax, what is left of it, and masks."""
    if rest[2] and (query.device.type not in ("cuda", "xpu") or query.dtype is torch.float64):
        return (*query.shape[:-1], key.shape[-2] * (2 * max(4, query.itemsize) + 2))
    return (*query.shape[:-1], 4)


_ATTENTION = define(
    "scaled_dot_product_attention",
    "Tensor query, Tensor key, Tensor value, Tensor? attn_mask, float dropout_p, bool is_causal, float? scale, "
    "bool enable_gqa, bool trained_mask",
    "Tensor",
    lambda *arguments: _SDPA(*arguments[:6], scale=arguments[6], enable_gqa=arguments[7]),
    cast=recurrent.products,
    tape=_tape_shape,
    worth=fused_attention,
    # Some fused kernels take no mask that requires grad.
    fixed=lambda *arguments: () if arguments[8] else (3,),
    draws=lambda *arguments: bool(arguments[4]),
    tags=(torch.Tag.nondeterministic_seeded,),
)


def _attention(*arguments: Any) -> Any:
    if arguments[4] and arguments[0].device.type == "cpu":
        # Draw the dropout mask once, as eager does on a CPU. Kernels of accelerators draw masks of their own.
        with sdpa_kernel(SDPBackend.MATH):
            return _SDPA.decompose(*arguments[:6], scale=arguments[6], enable_gqa=arguments[7])
    return _ATTENTION(*arguments, arguments[3] is not None and arguments[3].requires_grad)[0]


def _recurrent(layer: Rule) -> Rule:
    def rule(*arguments: Any) -> Any:
        kind = arguments[0].device.type
        if kind == "cpu" and torch.is_autocast_enabled(kind) and recurrent.projected(arguments):
            return recurrent.projecting(rule, kind, arguments)
        sequence, hx, params, biases, layers, dropout, train, *rest = arguments
        if train and dropout and layers > 1:
            return recurrent.layered(layer, *arguments)
        *outputs, _ = layer(sequence, hx, params, biases, layers, 0.0, train, *rest)
        return tuple(outputs)

    return rule


def _packed(*arguments: Any) -> Any:
    raise CaptureError(
        "a recurrent layer runs over a packed sequence, whose steps depend on the lengths in a tensor; pad the batch "
        "(torch.nn.utils.rnn.pad_sequence) and mask the loss"
    )


def _bags(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor | None,
    per_sample_weights: Tensor | None,
    scale_grad_by_freq: bool,
    mode: int,
    include_last_offset: bool,
    padding_idx: int | None,
) -> Tensor:
    """Compute embedding bags; the bags are the rows of `indices` if `offsets` is None."""
    if offsets is None:
        rows, length = indices.shape
        offsets = torch.arange(0, rows * length, max(1, length), device=indices.device)
        indices = indices.reshape(-1)
        if per_sample_weights is not None:
            per_sample_weights = per_sample_weights.reshape(-1)
    # torch's own binding, with the overload `padding_idx`: 26 bags are 26 calls, so overhead counts.
    out: Tensor = torch.embedding_bag(
        weight,
        indices,
        offsets,
        scale_grad_by_freq,
        mode,
        False,
        per_sample_weights,
        include_last_offset,
        padding_idx,
    )[0]
    return out


def _like_bags(weight: Tensor, indices: Tensor, offsets: Tensor | None, *rest: Any) -> Tensor:
    *_, include_last_offset, _ = rest
    bags = indices.shape[0] if offsets is None else offsets.shape[0] - bool(include_last_offset)
    return weight.new_empty(bags, weight.shape[1])


_EMBEDDING_BAG = define(
    "embedding_bag",
    "Tensor weight, Tensor indices, Tensor? offsets, Tensor? per_sample_weights, bool scale_grad_by_freq, int mode, "
    "bool include_last_offset, int? padding_idx",
    "Tensor",
    _bags,
    _like_bags,
)


def _bag(*arguments: Any) -> Any:
    weight, indices, offsets, scale, mode, sparse, weights, last, *padding = arguments
    if sparse:
        raise CaptureError(
            "embedding_bag(sparse=True) has a sparse gradient, which no graph holds; build it with sparse=False"
        )
    index = padding[0] if padding else None
    bags = _EMBEDDING_BAG(weight, indices, offsets, weights, scale, mode, last, index)
    with torch.no_grad():
        # Only the backward that torch would have traced reads the other outputs.
        _, *rest = _aten._embedding_bag_forward_only.default(
            weight, indices, offsets, scale, mode, False, weights, last, -1 if index is None else index
        )
    return (bags, *rest)


def _bags_of_rows(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """Compute `torch.nn.functional.embedding_bag`. Bags given as matrix rows stay rows, so the batch can be
    split."""
    if input.ndim != 2 or offsets is not None or max_norm is not None or sparse or not input.numel():
        bags: Tensor = functional.embedding_bag(
            input, weight, offsets, max_norm, norm_type, scale_grad_by_freq, mode, sparse, per_sample_weights,
            include_last_offset, padding_idx,
        )  # fmt: skip
        return bags
    if padding_idx is not None and padding_idx < 0:
        padding_idx += weight.shape[0]
    number = ("sum", "mean", "max").index(mode)
    rows: Tensor = _EMBEDDING_BAG(
        weight, input, None, per_sample_weights, scale_grad_by_freq, number, False, padding_idx
    )
    return rows


_RESIZES = """
    upsample_nearest1d upsample_nearest2d upsample_nearest3d
    _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d
    upsample_linear1d upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d
"""
_LOW = (torch.bfloat16, torch.float16)


def _wide(kind: str, args: tuple[Any, ...]) -> torch.dtype:
    return torch.float32


def _wide_on_accelerators(kind: str, args: tuple[Any, ...]) -> torch.dtype | None:
    return None if kind == "cpu" else torch.float32


def _norm(plain: Any) -> Rule:
    norm = whole(plain, cast=_wide_on_accelerators)

    def rule(*arguments: Any) -> Any:
        if arguments[0].dtype not in _LOW:
            raise Decompose
        return norm(*arguments)

    return rule


def _factors(matrix: Tensor, *rest: Any) -> tuple[int, ...]:
    """Return the shape of the factors of a matrix, which most of these operators save, and of one pivot per row."""
    return (*matrix.shape[:-1], matrix.shape[-1] * matrix.itemsize + 4)


# torch raises what is wrong with a matrix by an operator without a result, which no graph of values can hold.
_CHECKED = {
    plain: whole(plain, tape=_factors)
    for plain in (
        _aten.linalg_cholesky.default,
        _aten.linalg_inv.default,
        _aten.linalg_ldl_factor.default,
        _aten.linalg_lu_factor.default,
        _aten.linalg_solve.default,
    )
}


def _checked(operator: Rule) -> Rule:
    def rule(*arguments: Any) -> Any:
        *outputs, _ = operator(*arguments)
        return tuple(outputs) if len(outputs) > 1 else outputs[0]

    return rule


def _pool(dims: list[int]) -> Rule:
    def rule(data: Any, size: Any) -> Any:
        if set(size) != {1}:
            raise Decompose
        return _aten.mean.dim(data, dims, True)

    return rule


def _rrelu(data: Any, lower: float, upper: float, training: bool, generator: None = None) -> Any:
    """In training, draw in row-major memory: the fake does not know the layout of the input."""
    if training:
        data = data.contiguous()
    return _aten.rrelu.default.decompose(data, lower, upper, training)


def _bernoulli(data: Any, p: float, generator: None = None) -> Any:
    """Draw a new row-major tensor; a draw in place has an operator of its own (see `IN_PLACE`)."""
    return torch.empty_like(data, memory_format=torch.contiguous_format).bernoulli_(p)


RULES: dict[Any, Rule] = {
    _aten.rrelu.default: _rrelu,
    _SDPA: _attention,
    **{plain: _recurrent(layer) for plain, layer in recurrent.LAYERS.items()},
    **{layer.overloadpacket.data: _packed for layer in recurrent.LAYERS},
    **recurrent.CELLS,
    **dict.fromkeys((_aten.embedding_bag.padding_idx, _aten.embedding_bag.default), _bag),
    _aten.cdist.default: whole(_aten.cdist.default, cast=_wide),
    # torch's own backward takes no open sizes.
    _GRID: whole(_GRID, cast=recurrent.products),
    **{
        plain: whole(plain, cast=_wide_on_accelerators)
        for plain in (*(getattr(_aten, name).vec for name in _RESIZES.split()), _aten.rms_norm.default)
    },
    **{plain: _checked(operator) for plain, operator in _CHECKED.items()},
    **{plain: _norm(plain) for plain in (_aten.layer_norm.default, _aten.group_norm.default)},
    _aten.adaptive_avg_pool2d.default: _pool([-1, -2]),
    _aten.adaptive_avg_pool3d.default: _pool([-1, -2, -3]),
}
"""Rules for training; torch decomposes other operators."""
LAYERS: dict[Any, Rule] = {plain: RULES[plain] for plain in recurrent.LAYERS}
"""The rules that also hold while Dynamo captures."""

FUNCTIONS: dict[Any, Rule] = {functional.embedding_bag: _bags_of_rows}
"""Functions to trace instead of torch functions whose operators lose information."""

DRAWN: dict[Any, Rule] = {_aten.bernoulli.p: _bernoulli}
"""Rules for every trace."""


def _draw_normal(like: Tensor, mean: float, std: float, contiguous: bool) -> Tensor:
    result = torch.empty_like(like)
    if contiguous or not result.is_contiguous():
        return result.normal_(mean, std)
    # If memory has no gaps, a CPU draws many numbers at once, and they differ.
    with_gaps = result.new_empty((*result.shape, 2))[..., 0]
    return result.copy_(with_gaps.normal_(mean, std))


def _drawing(name: str, parameters: str, call: Callable[..., Tensor]) -> Any:
    """Define `autopar::name(Tensor like, …) -> Tensor`, which draws random numbers."""
    LIBRARY.define(f"{name}({parameters}) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))
    LIBRARY.impl(name, call, "CompositeExplicitAutograd")
    operator = getattr(torch.ops.autopar, name).default
    library.register_fake(operator, lambda like, *_: torch.empty_like(like), lib=LIBRARY)
    KERNELS[f"autopar.{name}.default"] = call
    return operator


_drawn_bernoulli = _drawing(
    "bernoulli", "Tensor like, float p", lambda like, p: torch.empty_like(like).bernoulli_(p)
)
_drawn_normal = _drawing("normal", "Tensor like, float mean, float std, bool contiguous", _draw_normal)


def _plain_bernoulli(like: Tensor, p: float = 0.5, *, generator: None = None) -> Any:
    return _drawn_bernoulli(like, p)


def _plain_normal(like: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: None = None) -> Any:
    return _drawn_normal(like, mean, std, like.is_contiguous())


IN_PLACE: dict[Any, Callable[..., Any]] = {
    _aten.bernoulli.p: _plain_bernoulli,
    _aten.normal_functional.default: _plain_normal,
}
"""Replacements in a trace of the operators that torch writes for `bernoulli_` and `normal_`. These operators
draw out-of-place, into row-major (`bernoulli.p`) or dense memory (`normal_functional`). Numbers are drawn in
memory order, so elements would get other numbers. The replacements draw into the layout of the filled
tensor."""
