"""Cuts of elementwise operators with broadcasting, and of losses and their gradients.

A loss keeps rows or sums them. A mean has no cut, since it is not the sum of the means of its parts.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ...ir.graph import OWN, SUMMED
from .registry import Call, Way, broadcast, rule

_UNTAGGED = (
    "alias detach lift_fresh_copy copy fill zeros_like ones_like full_like empty_like type_as"
    " _to_copy absolute arccos arccosh arcsin arcsinh arctan arctan2 arctanh fix negative subtract multiply"
    " divide floor_divide float_power greater greater_equal less less_equal not_equal isclose isreal"
    " polar complex _conj _neg_view hardswish leaky_relu log_sigmoid"
    " logical_not special_expit special_expm1 special_erf special_erfc special_erfinv special_exp2"
    " special_logit"
    " special_sinc special_round special_log1p special_psi special_gammaln special_i0"
    " special_digamma special_xlogy"
    " special_gammainc special_gammaincc special_polygamma special_multigammaln"
    " _prelu_kernel masked_fill where __and__ __or__ __xor__ zero rsub"
    " elu_backward hardsigmoid_backward hardswish_backward hardtanh_backward leaky_relu_backward mish_backward"
    " softplus_backward rrelu_with_noise_backward _prelu_kernel_backward log_sigmoid_forward log_sigmoid_backward"
)

_NONE, _MEAN, _SUM = range(3)
"""Reductions of a loss."""


@rule(_UNTAGGED)
def pointwise(call: Call) -> Iterator[Way]:
    """Yield every output axis; a tensor without this axis, or of size 1 there, is needed whole."""
    tensors = [tensor for _, _, tensor in call.tensors()]
    outputs = call.outputs
    if not tensors or not all(isinstance(output, torch.Tensor) for output in outputs):
        return
    try:
        shape = torch.broadcast_shapes(*(tensor.shape for tensor in tensors))
    except RuntimeError:
        return
    if any(output.shape != shape for output in outputs):
        return
    yield from broadcast(call, shape)


@rule("dropout feature_dropout alpha_dropout feature_alpha_dropout native_dropout rrelu")
def dropout(call: Call) -> Iterator[Way]:
    """Yield every axis if nothing is drawn, else none."""
    training = call["training" if "training" in call.arguments else "train"]
    if training is False or (call.name != "aten::native_dropout" and call.get("p") == 0):
        yield from pointwise(call)


@rule(
    "mse_loss l1_loss smooth_l1_loss huber_loss soft_margin_loss kl_div poisson_nll_loss"
    " binary_cross_entropy binary_cross_entropy_with_logits hinge_embedding_loss margin_ranking_loss"
)
def loss(call: Call) -> Iterator[Way]:
    """Yield every axis of the compared elements; none for a mean."""
    if call["reduction"] == _NONE:
        yield from pointwise(call)
    elif call["reduction"] == _SUM:
        shape = torch.broadcast_shapes(*(tensor.shape for _, _, tensor in call.tensors()))
        yield from broadcast(call, shape, output=SUMMED)


@rule(
    "mse_loss_backward smooth_l1_loss_backward huber_loss_backward soft_margin_loss_backward"
    " binary_cross_entropy_backward"
)
def loss_backward(call: Call) -> Iterator[Way]:
    """Yield every axis; none for a mean, whose gradient depends on the number of elements."""
    if call["reduction"] != _MEAN:
        yield from pointwise(call)


@rule("cross_entropy_loss", "nll_loss", "nll_loss_nd", "nll_loss_forward", "nll_loss2d_forward")
def class_loss(call: Call) -> Iterator[Way]:
    """Yield every axis but the classes: they are axis 1 of the scores and absent in the target.

    The second output of the native form, the weight of the targets, is unused if nothing is reduced.
    """
    scores, target = call["self"], call["target"]
    if scores.dim() < 2 or target.dim() != scores.dim() - 1 or call["reduction"] == _MEAN:
        return
    for axis in range(target.dim()):
        first, second = (axis, OWN) if call["reduction"] == _NONE else (SUMMED, SUMMED)
        yield Way({"self": axis + (axis > 0), "target": axis}, (first, second)[: len(call.outputs)])


@rule("nll_loss_backward", "nll_loss2d_backward")
def class_loss_backward(call: Call) -> Iterator[Way]:
    """Yield every axis but the classes. After a sum, the gradient and the targets' weight stay whole."""
    if call.rank("self") < 2:
        return
    for axis in range(call.rank("target")):
        scores = axis + (axis > 0)
        rows = {"self": scores, "target": axis}
        if call["reduction"] != _NONE:
            yield Way(rows, scores)
            continue
        for weight in (OWN, None):
            yield Way({**rows, "grad_output": axis, "total_weight": weight}, scores)


@rule("multi_margin_loss", "multilabel_margin_loss", "multilabel_margin_loss_forward")
def margin_loss(call: Call) -> Iterator[Way]:
    """Yield the rows of a batch; the second output, the marks of the targets, has rows after a sum too."""
    if call.rank("self") == 2 and call["reduction"] != _MEAN:
        first = 0 if call["reduction"] == _NONE else SUMMED
        yield Way({"self": 0, "target": 0}, (first, 0)[: len(call.outputs)])


@rule("multi_margin_loss_backward", "multilabel_margin_loss_backward")
def margin_loss_backward(call: Call) -> Iterator[Way]:
    """Yield the rows of a batch."""
    if call.rank("self") == 2 and call["reduction"] != _MEAN:
        gradient = 0 if call["reduction"] == _NONE else None
        yield Way({"grad_output": gradient, "self": 0, "target": 0, "is_target": 0}, 0)
