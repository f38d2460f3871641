"""Calls for every family of cut rules, each with the output axes that must be among its cuts."""

from __future__ import annotations

from typing import Any

import torch

aten = torch.ops.aten
_generator = torch.Generator().manual_seed(0)


def r(*shape: int) -> torch.Tensor:
    """A float64 tensor of normal numbers."""
    return torch.randn(*shape, dtype=torch.float64, generator=_generator)


def i(high: int, *shape: int) -> torch.Tensor:
    """A tensor of indices below `high`."""
    return torch.randint(high, shape, generator=_generator)


def b(*shape: int) -> torch.Tensor:
    """A boolean tensor."""
    return r(*shape) > 0


def spd(*batch: int) -> torch.Tensor:
    """Symmetric positive definite matrices of size 4."""
    half = r(*batch, 4, 4)
    return half @ half.mT + 4 * torch.eye(4, dtype=torch.float64)


def c(*shape: int) -> torch.Tensor:
    """A complex tensor."""
    return torch.complex(r(*shape), r(*shape))


Case = tuple[Any, tuple[Any, ...], dict[str, Any], set[int]]


def case(op: Any, *args: Any, axes: tuple[int, ...] = (), **kwargs: Any) -> Case:
    """A call and the axes of its first output along which it must be cut."""
    return op, args, kwargs, set(axes)


SHARED = r(6, 5)

POINTWISE = [
    case(aten.add.Tensor, r(6, 5), r(6, 5), axes=(0, 1)),
    case(aten.add.Tensor, r(6, 5), r(5), axes=(0, 1)),
    case(aten.add.Tensor, r(6, 1), r(1, 5), axes=(0, 1)),
    case(aten.add.Tensor, r(6, 4, 5), r(4, 1), axes=(0, 1, 2)),
    case(aten.mul.Tensor, SHARED, SHARED, axes=(0, 1)),
    case(aten.mul.Tensor, r(5, 5), r(5), axes=(0, 1)),
    case(aten.mul.Scalar, r(6, 5), 2.0, axes=(0,)),
    case(aten.add.Tensor, r(6, 5), torch.tensor(2.0).double(), axes=(0,)),
    case(aten.relu.default, r(6, 5), axes=(0, 1)),
    case(aten.gelu.default, r(6, 5), axes=(0,)),
    case(aten.silu.default, r(6, 5), axes=(0,)),
    case(aten.sigmoid.default, r(6, 5), axes=(0,)),
    case(aten.hardtanh.default, r(6, 5), axes=(0,)),
    case(aten.leaky_relu.default, r(6, 5), 0.1, axes=(0,)),
    case(aten.elu.default, r(6, 5), axes=(0,)),
    case(aten.hardswish.default, r(6, 5), axes=(0,)),
    case(aten.hardsigmoid.default, r(6, 5), axes=(0,)),
    case(aten.mish.default, r(6, 5), axes=(0,)),
    case(aten.softplus.default, r(6, 5), axes=(0,)),
    case(aten.log_sigmoid.default, r(6, 5), axes=(0,)),
    case(aten.pow.Tensor_Scalar, r(6, 5), 2, axes=(0,)),
    case(aten.where.self, b(6, 5), r(6, 5), r(5), axes=(0, 1)),
    case(aten.where.ScalarOther, b(6, 5), r(6, 1), 0.0, axes=(0, 1)),
    case(aten.masked_fill.Scalar, r(6, 4, 5), b(6, 1, 5), -1.0, axes=(0, 1, 2)),
    case(aten.clone.default, r(6, 5), axes=(0, 1)),
    case(aten.detach.default, r(6, 5), axes=(0,)),
    case(aten.alias.default, r(6, 5), axes=(0,)),
    case(aten._to_copy.default, r(6, 5), dtype=torch.float32, axes=(0,)),
    case(aten.type_as.default, r(6, 5), r(6, 5), axes=(0,)),
    case(aten.clamp.default, r(6, 5), -1.0, 1.0, axes=(0,)),
    case(aten.maximum.default, r(6, 5), r(6, 5), axes=(0,)),
    case(aten.max.other, r(6, 5), r(5), axes=(0, 1)),
    case(aten.eq.Tensor, i(3, 6, 5), i(3, 5), axes=(0, 1)),
    case(aten.lerp.Tensor, r(6, 5), r(6, 5), r(5), axes=(0, 1)),
    case(aten.addcmul.default, r(6, 5), r(6, 5), r(5), axes=(0, 1)),
    case(aten.zeros_like.default, r(6, 5), axes=(0, 1)),
    case(aten.ones_like.default, r(6, 5), dtype=torch.int64, axes=(0, 1)),
    case(aten.full_like.default, r(6, 5), 3.0, axes=(0, 1)),
    case(aten.frexp.Tensor, r(6, 5), axes=(0, 1)),
    case(aten.floor_divide.default, r(6, 5), r(5), axes=(0, 1)),
    case(aten.isclose.default, r(6, 5), r(5), axes=(0, 1)),
    case(aten.complex.default, r(6, 5), r(6, 5), axes=(0, 1)),
    case(aten.dropout.default, r(6, 5), 0.5, False, axes=(0, 1)),
    case(aten.dropout.default, r(6, 5), 0.0, True, axes=(0, 1)),
    case(aten.feature_dropout.default, r(6, 5, 3), 0.5, False, axes=(0, 1)),
    case(aten.native_dropout.default, r(6, 5), 0.5, False, axes=(0, 1)),
    case(aten.rrelu.default, r(6, 5), axes=(0, 1)),
    case(aten._prelu_kernel.default, r(6, 5), r(1, 5), axes=(0, 1)),
    case(aten.prelu.default, r(6, 4, 5), r(4), axes=(0, 2)),
    case(aten.prelu.default, r(6, 4, 5), r(1), axes=(0, 1, 2)),
    case(aten.mse_loss.default, r(6, 5), r(6, 5), 0, axes=(0, 1)),
    case(
        aten.binary_cross_entropy_with_logits.default, r(6, 5), b(6, 5).double(), None, r(5), 0, axes=(0, 1)
    ),
    case(aten.polar.default, r(6, 5).abs(), r(6, 5), axes=(0, 1)),
]

SHAPE = [
    case(aten.view.default, r(6, 4, 5), [6, 20], axes=(0, 1)),
    case(aten.view.default, r(6, 4, 5), [24, 5], axes=(0, 1)),
    case(aten.view.default, r(24, 5), [6, 4, 5], axes=(0, 2)),
    case(aten.view.default, r(6, 20), [6, -1, 5], axes=(0, 1)),
    case(aten.view.default, r(6, 20), [-1, 4, 5], axes=(0, 1)),
    case(aten.reshape.default, r(6, 4, 6), [6, 24], axes=(0, 1)),
    case(aten.reshape.default, r(6, 4), [6, 1, 4, 1], axes=(0, 2)),
    case(aten.reshape.default, r(1, 6, 4), [6, 4], axes=(0, 1)),
    case(aten.reshape.default, r(6, 2), [4, 3], axes=(0,)),
    case(aten._unsafe_view.default, r(6, 4, 5), [24, 5], axes=(0, 1)),
    case(aten.expand.default, r(6, 1, 5), [6, 4, 5], axes=(0, 2)),
    case(aten.expand.default, r(6, 1), [-1, 4], axes=(0,)),
    case(aten.expand.default, r(6, 5), [3, 6, 5], axes=(1, 2)),
    case(aten.repeat.default, r(6, 4), [1, 3], axes=(0,)),
    case(aten.repeat.default, r(6, 4), [2, 1, 1], axes=(1, 2)),
    case(aten.repeat.default, r(6, 4), [2, 1], axes=(1,)),
    case(aten.tile.default, r(6, 4), [3], axes=(0,)),
    case(aten.repeat_interleave.self_int, r(6, 4), 3, 0, axes=(0, 1)),
    case(aten.repeat_interleave.self_int, r(6, 4), 3, 1, axes=(0, 1)),
    case(aten.permute.default, r(6, 4, 5), [2, 0, 1], axes=(0, 1, 2)),
    case(aten.permute.default, r(6, 4, 5), [0, -1, 1], axes=(0, 1, 2)),
    case(aten.transpose.int, r(6, 4, 5), 0, -1, axes=(0, 1, 2)),
    case(aten.t.default, r(6, 4), axes=(0, 1)),
    case(aten.unsqueeze.default, r(6, 4), 0, axes=(1, 2)),
    case(aten.unsqueeze.default, r(6, 4), -1, axes=(0, 1)),
    case(aten.unsqueeze.default, r(6, 4), 1, axes=(0, 2)),
    case(aten.squeeze.dim, r(6, 1, 4), 1, axes=(0, 1)),
    case(aten.squeeze.dim, r(6, 4), 1, axes=(0,)),
    case(aten.squeeze.dims, r(1, 6, 1, 4), [0, -2], axes=(0, 1)),
    case(aten.view_as_real.default, c(6, 4), axes=(0, 1)),
    case(aten.view_as_complex.default, r(6, 4, 2), axes=(0, 1)),
    case(aten.cat.default, [r(6, 4), r(6, 3)], 1, axes=(0,)),
    case(aten.cat.default, [r(6, 4), r(3, 4)], axes=(1,)),
    case(aten.cat.default, [SHARED, SHARED], -1, axes=(0,)),
    case(aten.stack.default, [r(6, 4), r(6, 4)], axes=(1, 2)),
    case(aten.stack.default, [r(6, 4), r(6, 4)], -1, axes=(0, 1)),
    case(aten.split.Tensor, r(6, 4), 3, 1, axes=(0,)),
    case(aten.split_with_sizes.default, r(6, 4), [1, 3], -1, axes=(0,)),
    case(aten.unbind.int, r(3, 6, 4), axes=(0, 1)),
    case(aten.select.int, r(6, 4, 5), 1, -1, axes=(0, 1)),
    case(aten.slice.Tensor, r(6, 4), 1, 1, 3, axes=(0,)),
    case(aten.slice.Tensor, r(6, 4), 0, 0, 9223372036854775807, axes=(0, 1)),
    case(aten.slice.Tensor, r(6, 4), 0, 0, 6, axes=(0, 1)),
    case(aten.slice.Tensor, r(6, 4), 0, 0, -2, axes=(1,)),
    case(aten.flip.default, r(6, 4, 5), [1], axes=(0, 2)),
    case(aten.roll.default, r(6, 4), [1], [1], axes=(0,)),
    case(aten.roll.default, r(6, 4), [1]),
    case(aten.rot90.default, r(6, 4, 5), 1, [1, 2], axes=(0,)),
    case(aten.fliplr.default, r(6, 4), axes=(0,)),
    case(aten.diff.default, r(6, 4), 1, -1, r(6, 1), axes=(0,)),
    case(aten.unfold.default, r(6, 8), 1, 4, 2, axes=(0,)),
    case(aten.glu.default, r(6, 4), -1, axes=(0,)),
    case(aten.slice_scatter.default, r(6, 4), r(6, 2), 1, 1, 3, axes=(0,)),
    case(aten.select_scatter.default, r(6, 4), r(6), 1, 1, axes=(0,)),
    case(aten.select_scatter.default, r(4, 6), r(6), 0, 1, axes=(1,)),
    case(aten.constant_pad_nd.default, r(6, 4), [1, 2], axes=(0,)),
    case(aten.constant_pad_nd.default, r(6, 4, 5), [0, 0, 1, 1], axes=(0, 2)),
    case(aten.pad.default, r(6, 4, 5), [1, 1], "reflect", axes=(0, 1)),
    case(aten.pad.default, r(6, 4), [1, 1], axes=(0,)),
    case(aten.reflection_pad2d.default, r(6, 4, 5, 5), [1, 1, 1, 1], axes=(0, 1)),
    case(aten.replication_pad1d.default, r(6, 4, 5), [1, 1], axes=(0, 1)),
    case(aten.tril.default, r(6, 4, 4), axes=(0,)),
    case(aten.triu.default, r(4, 4), 1),
    case(aten.pixel_shuffle.default, r(6, 4, 3, 3), 2, axes=(0,)),
    case(aten.pixel_unshuffle.default, r(6, 1, 4, 4), 2, axes=(0,)),
    case(aten.channel_shuffle.default, r(6, 4, 3, 3), 2, axes=(0,)),
    case(aten.im2col.default, r(6, 4, 5, 5), [3, 3], [1, 1], [0, 0], [1, 1], axes=(0,)),
    case(aten.col2im.default, r(6, 8, 4), [3, 3], [2, 2], [1, 1], [0, 0], [1, 1], axes=(0,)),
    case(aten.diagonal.default, r(6, 4, 4), 0, 1, 2, axes=(0,)),
    case(aten.diagonal.default, r(4, 6, 4), 0, 0, 2, axes=(0,)),
    case(aten.diag_embed.default, r(6, 4), axes=(0,)),
    case(aten.diag_embed.default, r(6, 4), 0, 0, 1, axes=(2,)),
    case(aten.new_zeros.default, r(6, 4), [6, 3], axes=(0,)),
    case(aten.new_full.default, r(6, 4), [2, 6], 1.5, axes=(1,)),
    case(aten.one_hot.default, i(4, 6, 3), 4, axes=(0, 1)),
]

REDUCE = [
    case(aten.sum.dim_IntList, r(6, 4, 5), [1], axes=(0, 1)),
    case(aten.sum.dim_IntList, r(6, 4, 5), [1, -1], axes=(0,)),
    case(aten.sum.dim_IntList, r(6, 4, 5), [0], True, axes=(1, 2)),
    case(aten.sum.dim_IntList, r(6, 4, 5), [0], axes=(0, 1)),
    case(aten.sum.dim_IntList, r(6, 4), None),
    case(aten.sum.default, r(6, 4)),
    case(aten.mean.dim, r(6, 4, 5), [-1], axes=(0, 1)),
    case(aten.mean.default, r(6, 4)),
    case(aten.amax.default, r(6, 4), [1], axes=(0,)),
    case(aten.amax.default, r(6, 4)),
    case(aten.amin.default, r(6, 4), [0], True, axes=(1,)),
    case(aten.max.dim, r(6, 4), 1, axes=(0,)),
    case(aten.max.default, r(6, 4)),
    case(aten.min.dim, r(6, 4), 0, True, axes=(1,)),
    case(aten.argmax.default, r(6, 4), -1, axes=(0,)),
    case(aten.argmax.default, r(6, 4)),
    case(aten.prod.dim_int, r(6, 4), 1, axes=(0,)),
    case(aten.any.dim, b(6, 4), 1, axes=(0,)),
    case(aten.any.dims, b(6, 4, 3), [1, 2], axes=(0,)),
    case(aten.any.default, b(6, 4)),
    case(aten.all.dim, b(6, 4), 0, axes=(0,)),
    case(aten.var.correction, r(6, 4), [1], correction=1, axes=(0,)),
    case(aten.var.correction, r(6, 4), correction=1),
    case(aten.var_mean.correction, r(6, 4), [1], correction=0, keepdim=True, axes=(0,)),
    case(aten.std.dim, r(6, 4), [1], axes=(0,)),
    case(aten.logsumexp.default, r(6, 4), [1], axes=(0,)),
    case(aten.norm.ScalarOpt_dim, r(6, 4), 2, [1], True, axes=(0,)),
    case(aten.norm.Scalar, r(6, 4)),
    case(aten.linalg_vector_norm.default, r(6, 4), 2, [1], axes=(0,)),
    case(aten.linalg_vector_norm.default, r(6, 4)),
    case(aten.median.dim, r(6, 5), 1, axes=(0,)),
    case(aten.median.default, r(6, 5)),
    case(aten.kthvalue.default, r(6, 5), 2, axes=(0,)),
    case(aten.mode.default, i(3, 6, 5), axes=(0,)),
    case(aten.count_nonzero.dim_IntList, b(6, 5), [1], axes=(0,)),
    case(aten.aminmax.default, r(6, 5), dim=1, axes=(0,)),
    case(aten.quantile.scalar, r(6, 5), 0.5, 1, axes=(0,)),
    case(aten.softmax.int, r(6, 4), -1, axes=(0,)),
    case(aten._softmax.default, r(6, 4), 0, False, axes=(1,)),
    case(aten._safe_softmax.default, r(6, 4), -1, axes=(0,)),
    case(aten.log_softmax.int, r(6, 4, 5), 1, axes=(0, 2)),
    case(aten.cumsum.default, r(6, 4), 1, axes=(0,)),
    case(aten.cummax.default, r(6, 4), 1, axes=(0,)),
    case(aten.logcumsumexp.default, r(6, 4), 0, axes=(1,)),
    case(aten.sort.default, r(6, 4), axes=(0,)),
    case(aten.sort.stable, r(6, 4), stable=True, dim=0, axes=(1,)),
    case(aten.argsort.default, r(6, 4), axes=(0,)),
    case(aten.msort.default, r(6, 4), axes=(1,)),
    case(aten.topk.default, r(6, 4), 2, axes=(0,)),
    case(aten.layer_norm.default, r(6, 3, 4), [4], r(4), r(4), axes=(0, 1)),
    case(aten.layer_norm.default, r(6, 3, 4), [3, 4], axes=(0,)),
    case(aten.native_layer_norm.default, r(6, 3, 4), [4], r(4), r(4), 1e-5, axes=(0, 1)),
    case(aten.rms_norm.default, r(6, 3, 4), [4], r(4), axes=(0, 1)),
    case(aten._fused_rms_norm.default, r(6, 3, 4), [4], r(4), 1e-5, axes=(0, 1)),
    case(aten.group_norm.default, r(6, 4, 5), 2, r(4), r(4), axes=(0,)),
    case(aten.native_group_norm.default, r(6, 4, 5), r(4), r(4), 6, 4, 5, 2, 1e-5, axes=(0,)),
    case(aten.instance_norm.default, r(6, 4, 5), r(4), r(4), None, None, True, 0.1, 1e-5, False, axes=(0,)),
    case(
        aten.batch_norm.default,
        *(r(6, 4, 5), r(4), r(4), r(4), r(4).abs(), False, 0.1, 1e-5, False),
        axes=(0, 2),
    ),
    case(aten.batch_norm.default, r(6, 4, 5), r(4), r(4), r(4), r(4).abs(), True, 0.1, 1e-5, False),
    case(
        aten._native_batch_norm_legit_no_training.default,
        *(r(6, 4, 5), r(4), r(4), r(4), r(4).abs(), 0.1, 1e-5),
        axes=(0, 2),
    ),
    case(aten.cosine_similarity.default, r(6, 4), r(6, 4), axes=(0,)),
    case(aten.cosine_similarity.default, r(6, 1, 4), r(1, 5, 4), 2, axes=(0, 1)),
    case(aten.pairwise_distance.default, r(6, 4), r(6, 4), axes=(0,)),
    case(aten.linalg_cross.default, r(6, 3), r(6, 3), axes=(0,)),
    case(aten.linalg_vecdot.default, r(6, 4), r(6, 4), axes=(0,)),
    case(aten.cross_entropy_loss.default, r(6, 4), i(4, 6), None, 0, axes=(0,)),
    case(aten.cross_entropy_loss.default, r(6, 4, 5), i(4, 6, 5), r(4).abs(), 0, axes=(0, 1)),
    case(aten.cross_entropy_loss.default, r(6, 4), i(4, 6)),
    case(aten.nll_loss.default, r(6, 4), i(4, 6), None, 0, axes=(0,)),
    case(aten.fft_rfft.default, r(6, 8), axes=(0,)),
    case(aten.fft_fft2.default, r(6, 4, 4), axes=(0,)),
    case(aten.fft_fftn.default, r(6, 4, 4), [4]),
    case(aten._fft_r2c.default, r(6, 8), [1], 0, True, axes=(0,)),
    case(aten.fft_fftshift.default, r(6, 8), [1], axes=(0,)),
    case(aten.stft.default, r(6, 32), 8, return_complex=True, axes=(0,)),
    case(aten.bucketize.Tensor, r(6, 4), torch.tensor([-1.0, 0.0, 1.0]).double(), axes=(0, 1)),
    case(aten.isin.Tensor_Tensor, i(5, 6, 4), i(5, 3), axes=(0, 1)),
    case(aten.searchsorted.Tensor, torch.tensor([-1.0, 0.0, 1.0]).double(), r(6, 4), axes=(0, 1)),
    case(aten.searchsorted.Tensor, r(6, 5).sort().values, r(6, 4), axes=(0,)),
]

INDEX = [
    case(aten.embedding.default, r(9, 4), i(9, 6, 3), axes=(0, 1, 2)),
    case(aten.embedding.default, r(9, 4), i(9, 6), 0, axes=(0, 1)),
    case(aten.gather.default, r(6, 4), 1, i(4, 6, 3), axes=(0, 1)),
    case(aten.gather.default, r(6, 4), 0, i(6, 3, 4), axes=(0, 1)),
    case(aten.gather.default, r(6, 4), 1, i(4, 3, 3), axes=(1,)),
    case(aten.scatter.src, r(6, 4), 1, i(4, 6, 4).argsort(1), r(6, 4), axes=(0,)),
    case(aten.scatter.value, r(6, 4), 1, i(4, 6, 2), 1.0, axes=(0,)),
    case(aten.scatter_add.default, r(6, 4), 1, i(4, 6, 2), r(6, 2), axes=(0,)),
    case(aten.scatter_reduce.two, r(6, 4), 1, i(4, 6, 2), r(6, 2), "amax", axes=(0,)),
    case(aten.index_select.default, r(6, 4), 1, i(4, 3), axes=(0, 1)),
    case(aten.index_select.default, r(6, 4), 0, i(6, 3), axes=(0, 1)),
    case(aten.index_add.default, r(6, 4), 1, i(4, 3), r(6, 3), axes=(0,)),
    case(aten.index_copy.default, r(6, 4), 1, torch.tensor([2, 0]), r(6, 2), axes=(0,)),
    case(aten.index_fill.int_Scalar, r(6, 4), 1, torch.tensor([2, 0]), 7.0, axes=(0,)),
    case(aten.index.Tensor, r(6, 4), [i(6, 3)], axes=(0, 1)),
    case(aten.index.Tensor, r(6, 4), [None, i(4, 3)], axes=(0, 1)),
    case(aten.index.Tensor, r(6, 4, 5), [torch.arange(6), i(4, 6)], axes=(0, 1)),
    case(aten.index.Tensor, r(6, 4, 5), [torch.arange(6)[:, None], i(4, 6, 3)], axes=(0, 1, 2)),
    case(aten.index.Tensor, r(6, 4, 5), [i(6, 3), None, i(5, 3)], axes=(0, 1)),
    case(aten.index.Tensor, r(6, 4, 5), [None, i(4, 3), i(5, 3)], axes=(0, 1)),
    case(aten.index.Tensor, r(6, 4, 5, 3), [None, i(4, 3), None, i(3, 3)], axes=(0, 1, 2)),
    case(aten.index.Tensor, r(6, 4, 5), [None, i(4, 3, 2)], axes=(0, 1, 2, 3)),
    case(aten.index.Tensor, r(6, 4), [b(6)]),
    case(aten.index_put.default, r(6, 4), [None, torch.tensor([2, 0])], r(6, 2), axes=(0,)),
    case(aten.index_put.default, r(6, 4), [None, torch.tensor([2, 0])], r(2), axes=(0,)),
    case(aten.index_put.default, r(4, 6), [torch.tensor([2, 0])], r(2, 6), True, axes=(1,)),
    case(
        aten.index_put.default,
        r(4, 6, 5),
        [torch.tensor([2, 0]), None, torch.tensor([1, 1])],
        r(2, 6),
        True,
        axes=(1,),
    ),
]

NONE = [
    case(aten.rand_like.default, r(6, 4)),
    case(aten.dropout.default, r(6, 4), 0.5, True),
    case(aten.native_dropout.default, r(6, 4), 0.5, True),
    case(aten.bernoulli.default, r(6, 4).sigmoid()),
    case(aten.nonzero.default, r(6, 4)),
    case(aten.masked_select.default, r(6, 4), b(6, 4)),
    case(aten.squeeze.default, r(6, 1, 4)),
    case(aten.relu_.default, r(6, 4)),
    case(aten.scaled_dot_product_attention.default, *(r(6, 4, 3, 8),) * 3, None, 0.5),
    case(aten.repeat.default, r(6, 4), [2, 2]),
]

CASES = [*POINTWISE, *SHAPE, *REDUCE, *INDEX]
