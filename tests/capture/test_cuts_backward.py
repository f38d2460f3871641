"""Cuts of gradients and losses: parts joined, added up, or each its own, are the call."""

from __future__ import annotations

import pytest
import torch
from cut_cases import Case, b, case, i, r
from cut_parts import check, identify

from autopar.capture.split_rules import cuts
from autopar.ir.graph import SUMMED
from autopar.ops import resolve as bind

aten = torch.ops.aten
S = SUMMED


def norm(*shape: int) -> tuple[torch.Tensor, ...]:
    """An input and its mean and reciprocal deviation over the last axis."""
    x = r(*shape)
    return x, x.mean(-1, keepdim=True), (x.var(-1, correction=0, keepdim=True) + 1e-5).rsqrt()


def groups(*shape: int) -> tuple[torch.Tensor, ...]:
    """An input of two groups of channels with mean and reciprocal deviation of each."""
    x = r(*shape)
    flat = x.reshape(shape[0], 2, -1)
    return x, flat.mean(-1), (flat.var(-1, correction=0) + 1e-5).rsqrt()


def pooled(*shape: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A gradient, an input and the indices of its pooling by two."""
    x = r(*shape)
    y, indices = aten.max_pool2d_with_indices.default(x, [2, 2])
    return r(*y.shape), x, indices


X, MEAN, RSTD = norm(6, 3, 4)
G, GMEAN, GRSTD = groups(6, 4, 5)
POOL = pooled(6, 4, 8, 8)
POINTS = r(6, 3, 4), r(6, 5, 4)
NUMBER = torch.tensor(0.7, dtype=torch.float64)
CLASSES = i(4, 6)
SCORES = r(6, 4)
NOTHING = r(0)
CONV = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)

PRODUCTS = [
    case(aten.mm.default, r(4, 6), r(6, 5), axes=(0, 1, S)),
    case(aten.bmm.default, r(3, 4, 6), r(3, 6, 5), axes=(0, 1, 2, S)),
    case(aten.mv.default, r(4, 6), r(6), axes=(0, S)),
    case(aten.dot.default, r(6), r(6), axes=(S,)),
    case(aten.matmul.default, r(2, 3, 4, 6), r(3, 6, 5), axes=(0, 1, 2, 3, S)),
    case(aten.matmul.default, r(6), r(3, 6, 5), axes=(0, 1, S)),
    case(aten.linear.default, r(3, 6), r(5, 6), axes=(0, 1, S)),
    case(aten.einsum.default, "bi,bj->ij", [r(6, 4), r(6, 5)], axes=(0, 1, S)),
    case(aten.einsum.default, "bti,btj,b->ij", [r(6, 3, 4), r(6, 3, 5), r(6)], axes=(0, 1, S)),
    case(aten.sum.default, r(6, 4), axes=(S,)),
    case(aten.sum.dim_IntList, r(6, 4, 3), [0], True, axes=(1, 2, S)),
    case(aten.sum.dim_IntList, r(6, 4, 3), [0, 2], axes=(0, S)),
    case(aten.sum.dim_IntList, b(6, 4), [0], axes=(0, S)),
    case(aten.nansum.default, r(6, 4), [0], axes=(0, S)),
    case(aten.convolution_backward.default, *(r(6, 5, 8, 8), r(6, 3, 8, 8), r(5, 3, 3, 3), [5]), *CONV,
         [True, True, True], axes=(0,)),
    case(aten.convolution_backward.default, *(r(6, 5, 8, 8), r(6, 3, 8, 8), r(5, 3, 3, 3), None), *CONV,
         [True, True, False], axes=(0,)),
    case(aten.convolution_backward.default, *(r(6, 4, 6), r(6, 4, 8), r(4, 2, 3), [4]),
         *([1], [0], [1], False, [0], 2), [True, True, True], axes=(0,)),
    case(aten.convolution_backward.default, *(r(6, 4, 10), r(6, 3, 8), r(3, 4, 3), [4]),
         *([1], [0], [1], True, [0], 1), [True, True, True], axes=(0,)),
]  # fmt: skip

NORMS = [
    case(aten.native_layer_norm_backward.default, r(6, 3, 4), X, [4], MEAN, RSTD, r(4), r(4), [True] * 3,
         axes=(0, 1)),
    case(aten.native_layer_norm_backward.default, r(6, 3, 4), X, [4], MEAN, RSTD, r(4), None,
         [True, True, False], axes=(0, 1)),
    case(aten.native_layer_norm_backward.default, r(6, 3, 4), X, [4], MEAN, RSTD, None, None,
         [True, False, False], axes=(0, 1)),
    case(aten.native_group_norm_backward.default, r(6, 4, 5), G, GMEAN, GRSTD, r(4), 6, 4, 5, 2, [True] * 3,
         axes=(0,)),
    case(aten._native_batch_norm_legit_functional.default,
         *(r(6, 4, 5), r(4), r(4), r(4), r(4).abs(), False, 0.1, 1e-5), axes=(0, 2)),
    case(aten.native_batch_norm.default, *(r(6, 4, 5), r(4), r(4), r(4), r(4).abs(), False, 0.1, 1e-5),
         axes=(0, 2)),
    case(aten.native_batch_norm_backward.default, *(r(6, 4, 5), r(6, 4, 5), r(4), r(4), r(4).abs()),
         *(NOTHING, r(0), False, 1e-5, [True] * 3), axes=(0, 2)),
    case(aten.native_batch_norm_backward.default, *(r(6, 4, 5), r(6, 4, 5), r(4), r(4), r(4).abs()),
         *(None, None, False, 1e-5, [True] * 3), axes=(0, 2)),
    case(aten.native_batch_norm_backward.default, *(r(6, 4, 5), r(6, 4, 5), r(4), None, None),
         *(r(4), r(4).abs(), True, 1e-5, [True] * 3), axes=(1,)),
    case(aten._native_batch_norm_legit_functional.default,
         *(r(6, 4, 5), r(4), r(4), r(4), r(4).abs(), True, 0.1, 1e-5), axes=(1,)),
    case(aten._native_batch_norm_legit.no_stats, *(r(1, 4, 5), r(4), r(4), True, 0.1, 1e-5), axes=(1,)),
    case(aten.batch_norm.default, *(r(6, 4, 5), r(4), r(4), None, None, True, 0.1, 1e-5, False)),
    case(aten._softmax_backward_data.default, r(6, 3, 4), r(6, 3, 4).softmax(1), 1, torch.float64, axes=(0, 2)),
    case(aten._log_softmax_backward_data.default, r(6, 4), r(6, 4).log_softmax(-1), -1, torch.float64, axes=(0,)),
]  # fmt: skip

LOSSES = [
    *(case(op.default, r(6, 5), r(6, 5).sigmoid(), 2, axes=(S,))
      for op in (aten.mse_loss, aten.l1_loss, aten.smooth_l1_loss, aten.huber_loss, aten.soft_margin_loss,
                 aten.kl_div)),
    *(case(op.default, r(6, 5), r(6, 5), 1) for op in (aten.mse_loss, aten.smooth_l1_loss, aten.kl_div)),
    case(aten.binary_cross_entropy.default, r(6, 5).sigmoid(), r(6, 5).sigmoid(), r(5).abs(), 2, axes=(S,)),
    case(aten.binary_cross_entropy_with_logits.default, r(6, 5), r(6, 5).sigmoid(), r(6, 1).abs(), r(5).abs(), 2,
         axes=(S,)),
    *(case(op.default, grad, r(6, 5), r(6, 5), how, *rest, axes=(0, 1))
      for op, rest in ((aten.mse_loss_backward, ()), (aten.smooth_l1_loss_backward, (1.0,)),
                       (aten.huber_loss_backward, (1.0,)), (aten.soft_margin_loss_backward, ()))
      for how, grad in ((0, r(6, 5)), (2, NUMBER))),
    case(aten.mse_loss_backward.default, NUMBER, r(6, 5), r(6, 5), 1),
    case(aten.binary_cross_entropy_backward.default, r(6, 5), r(6, 5).sigmoid(), r(6, 5), r(5), 0, axes=(0, 1)),
    case(aten.binary_cross_entropy_backward.default, NUMBER, r(6, 5).sigmoid(), r(6, 5), None, 2, axes=(0, 1)),
    case(aten.nll_loss_forward.default, SCORES, CLASSES, None, 0, -100, axes=(0,)),
    case(aten.nll_loss_forward.default, SCORES, CLASSES, r(4).abs(), 2, 1, axes=(S,)),
    case(aten.nll_loss_forward.default, SCORES, CLASSES, r(4).abs(), 1, 1),
    case(aten.nll_loss2d_forward.default, r(6, 4, 3, 5), i(4, 6, 3, 5), r(4).abs(), 2, 1, axes=(S,)),
    case(aten.nll_loss2d_forward.default, r(6, 4, 3, 5), i(4, 6, 3, 5), None, 0, 1, axes=(0, 1, 2)),
    case(aten.cross_entropy_loss.default, SCORES, CLASSES, r(4).abs(), 2, axes=(S,)),
    case(aten.cross_entropy_loss.default, SCORES, CLASSES, None, 2, 1, 0.1, axes=(S,)),
    case(aten.nll_loss_backward.default, r(6), SCORES, CLASSES, r(4).abs(), 0, -100, NUMBER, axes=(0,)),
    case(aten.nll_loss_backward.default, NUMBER, SCORES, CLASSES, r(4).abs(), 2, 1, NUMBER + 1, axes=(0,)),
    case(aten.nll_loss_backward.default, NUMBER, SCORES, CLASSES, r(4).abs(), 1, 1, NUMBER + 1, axes=(0,)),
    case(aten.nll_loss2d_backward.default, NUMBER, r(6, 4, 3, 5), i(4, 6, 3, 5), None, 1, 1, NUMBER + 1,
         axes=(0, 2, 3)),
    case(aten.nll_loss2d_backward.default, r(6, 3, 5), r(6, 4, 3, 5), i(4, 6, 3, 5), None, 0, 1, NUMBER,
         axes=(0, 2, 3)),
    case(aten.multi_margin_loss.default, SCORES, CLASSES, 1, 1.0, None, 2, axes=(S,)),
    case(aten.multi_margin_loss.default, SCORES, CLASSES, 1, 1.0, None, 0, axes=(0,)),
    case(aten.multi_margin_loss_backward.default, NUMBER, SCORES, CLASSES, 1, 1.0, None, 2, axes=(0,)),
    case(aten.multilabel_margin_loss_forward.default, SCORES, i(4, 6, 4), 2, axes=(S,)),
    case(aten.multilabel_margin_loss_backward.default, r(6), SCORES, i(4, 6, 4), 0, i(2, 6, 4).double(), axes=(0,)),
]  # fmt: skip

TABLES = [
    case(aten.embedding_dense_backward.default, r(6, 3, 4), i(9, 6, 3), 9, -1, False, axes=(S, 1)),
    case(aten.embedding_dense_backward.default, r(6, 4), i(9, 6), 9, 2, False, axes=(S, 1)),
    case(aten.embedding_dense_backward.default, r(6, 3, 4), i(9, 6, 3), 9, -1, True, axes=(1,)),
    case(aten.index_put.default, torch.zeros(6, 4).double(), [torch.arange(6), i(4, 6)], r(6), True),
    case(aten.scatter_add.default, torch.zeros(6, 4).double(), 1, i(4, 6, 1), r(6, 1), axes=(0,)),
]  # fmt: skip

SHAPES = [
    case(aten.max_pool2d_with_indices_backward.default, *POOL[:2], *([2, 2], [2, 2], [0, 0], [1, 1], False),
         POOL[2], axes=(0, 1)),
    case(aten.avg_pool2d_backward.default, r(6, 4, 4, 4), r(6, 4, 8, 8),
         *([2, 2], [2, 2], [0, 0], False, True, None), axes=(0, 1)),
    case(aten.avg_pool3d_backward.default, r(6, 4, 2, 2, 2), r(6, 4, 4, 4, 4),
         *([2, 2, 2], [2, 2, 2], [0, 0, 0], False, True, None), axes=(0, 1)),
    case(aten._adaptive_avg_pool2d_backward.default, r(6, 4, 2, 2), r(6, 4, 8, 8), axes=(0, 1)),
    case(aten._adaptive_avg_pool3d_backward.default, r(6, 4, 2, 2, 2), r(6, 4, 4, 4, 4), axes=(0, 1)),
    case(aten.adaptive_max_pool2d_backward.default, POOL[0], POOL[1], POOL[2], axes=(0, 1)),
    case(aten.reflection_pad2d_backward.default, r(6, 4, 6, 6), r(6, 4, 4, 4), [1, 1, 1, 1], axes=(0, 1)),
    case(aten.replication_pad1d_backward.default, r(6, 4, 6), r(6, 4, 4), [1, 1], axes=(0, 1)),
    case(aten.constant_pad_nd.default, r(6, 4, 6), [-1, -1], 0.0, axes=(0, 1)),
    case(aten.upsample_nearest2d_backward.default, r(6, 4, 6, 6), [6, 6], [6, 4, 3, 3], axes=(0, 1)),
    case(aten.upsample_bilinear2d_backward.default, r(6, 4, 6, 6), [6, 6], [6, 4, 3, 3], False, axes=(0, 1)),
    case(aten.upsample_bicubic2d_backward.default, r(6, 4, 6, 6), [6, 6], [6, 4, 3, 3], False, axes=(0, 1)),
    case(aten.upsample_linear1d_backward.default, r(6, 4, 6), [6], [6, 4, 3], False, axes=(0, 1)),
    case(aten.slice_backward.default, r(6, 2, 4), [6, 5, 4], 1, 1, 3, 1, axes=(0, 2)),
    case(aten.slice_backward.default, r(6, 5, 4), [6, 5, 4], 0, 0, 2**62, 1, axes=(0, 1, 2)),
    case(aten.slice_backward.default, r(3, 5, 4), [6, 5, 4], 0, 0, 2**62, 2, axes=(1, 2)),
    case(aten.select_backward.default, r(6, 4), [6, 5, 4], 1, 2, axes=(0, 2)),
    case(aten.select_backward.default, r(5, 4), [6, 5, 4], 0, 2, axes=(1, 2)),
    case(aten.unfold_backward.default, r(6, 3, 2), [6, 6], 1, 2, 2, axes=(0,)),
    case(aten.diagonal_backward.default, r(6, 4), [6, 4, 4], 0, 1, 2, axes=(0,)),
    case(aten.diagonal_backward.default, r(6, 4), [4, 6, 4], 0, 0, 2, axes=(1,)),
    case(aten.glu_backward.default, r(6, 4), r(6, 8), -1, axes=(0,)),
    case(aten.grid_sampler_2d_backward.default, r(6, 4, 5, 5), r(6, 4, 3, 3), r(6, 5, 5, 2), 0, 0, False,
         [True, True], axes=(0,)),
    case(aten._cdist_backward.default, r(6, 3, 5), *POINTS, 1.0, torch.cdist(*POINTS, p=1.0), axes=(0, 1, S)),
    case(aten.zeros.default, [6, 4], axes=(0, 1)),
    case(aten.full.default, [6, 4], 2.0, dtype=torch.float64, axes=(0, 1)),
    case(aten.new_zeros.default, r(3), [6, 4], axes=(0, 1)),
    case(aten.expand.default, NUMBER, [6, 4], axes=(0, 1)),
    case(aten.expand.default, r(1, 4), [6, 4], axes=(0, 1)),
]  # fmt: skip

ELEMENTS = [
    *(case(op.default, r(6, 5), r(6, 5), axes=(0, 1))
      for op in (aten.hardsigmoid_backward, aten.hardswish_backward, aten.mish_backward, aten.silu_backward,
                 aten.gelu_backward, aten.tanh_backward, aten.sigmoid_backward, aten.logit_backward)),
    case(aten.threshold_backward.default, r(6, 5), r(6, 5), 0.0, axes=(0, 1)),
    case(aten.hardtanh_backward.default, r(6, 5), r(6, 5), -1.0, 1.0, axes=(0, 1)),
    case(aten.elu_backward.default, r(6, 5), 1.0, 1.0, 1.0, False, r(6, 5), axes=(0, 1)),
    case(aten.leaky_relu_backward.default, r(6, 5), r(6, 5), 0.1, False, axes=(0, 1)),
    case(aten.softplus_backward.default, r(6, 5), r(6, 5), 1.0, 20.0, axes=(0, 1)),
    case(aten.log_sigmoid_forward.default, r(6, 5), axes=(0, 1)),
    case(aten.log_sigmoid_backward.default, r(6, 5), r(6, 5), r(6, 5).sigmoid(), axes=(0, 1)),
    case(aten.native_dropout_backward.default, r(6, 5), b(6, 5), 2.0, axes=(0, 1)),
    case(aten._prelu_kernel_backward.default, r(6, 5), r(6, 5), r(1, 5), axes=(0, 1)),
    case(aten.rsub.Tensor, r(6, 5), r(5), axes=(0, 1)),
]  # fmt: skip

CASES: list[Case] = [*PRODUCTS, *NORMS, *LOSSES, *TABLES, *SHAPES, *ELEMENTS]


@pytest.mark.parametrize("each", CASES, ids=identify)
def test_every_cut_of_a_gradient_gives_the_gradient(each: Case) -> None:
    check(each)


def test_the_buffer_of_log_sigmoid_is_what_a_cpu_makes_it() -> None:
    x = r(6, 5)
    buffer = aten.log_sigmoid_forward.default(x)[1]
    assert torch.equal(bind.target("aten.log_sigmoid_forward.default")(x)[1], buffer)
    # Where there is none, this stands in for it.
    torch.testing.assert_close(x.abs().neg_().exp_(), buffer, rtol=1e-12, atol=0)


@pytest.mark.parametrize("each", [
    case(aten.mse_loss.default, r(6, 5), r(6, 5), 1),
    case(aten.mean.default, r(6, 5)),
    case(aten.nll_loss_forward.default, SCORES, CLASSES, None, 1, -100),
    case(aten.native_batch_norm_backward.default, *(r(6, 4), r(6, 4), r(4), None, None),
         *(r(4), r(4).abs(), True, 1e-5, [True] * 3)),
    case(aten.addmm.default, r(1), r(1, 6), r(6, 1)),
], ids=identify)  # fmt: skip
def test_reductions_that_depend_on_the_number_of_rows_are_not_summed(each: Case) -> None:
    op, args, kwargs, _ = each
    assert all(SUMMED not in cut.outputs for cut in cuts(op, args, kwargs, op(*args, **kwargs)))
