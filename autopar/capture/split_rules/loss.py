"""Cuts of losses and their gradients: rows where they keep them, summands where they add them up.

A mean is no sum of the means of its parts, so it has no cut.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ...ir.graph import OWN, SUMMED
from .pointwise import pointwise
from .registry import Call, Way, broadcasting, rule

_NONE, _MEAN, _SUM = range(3)


@rule(
    "mse_loss l1_loss smooth_l1_loss huber_loss soft_margin_loss kl_div poisson_nll_loss"
    " binary_cross_entropy binary_cross_entropy_with_logits hinge_embedding_loss margin_ranking_loss"
)
def loss(call: Call) -> Iterator[Way]:
    """Every axis of the elements that are compared."""
    if call["reduction"] == _NONE:
        yield from pointwise(call)
    elif call["reduction"] == _SUM:
        shape = torch.broadcast_shapes(*(tensor.shape for _, _, tensor in call.tensors()))
        for axis in range(len(shape)):
            yield Way(broadcasting(call, axis, shape), SUMMED)


@rule(
    "mse_loss_backward smooth_l1_loss_backward huber_loss_backward soft_margin_loss_backward"
    " binary_cross_entropy_backward"
)
def loss_backward(call: Call) -> Iterator[Way]:
    """Every axis; the gradient of a sum is one number for all elements, that of a mean knows their count."""
    if call["reduction"] != _MEAN:
        yield from pointwise(call)


@rule("cross_entropy_loss", "nll_loss", "nll_loss_nd", "nll_loss_forward", "nll_loss2d_forward")
def class_loss(call: Call) -> Iterator[Way]:
    """Every axis but the classes: they are axis 1 of the scores and absent in the target.

    The weight of the targets is the second output of the native form, of no use where nothing is reduced.
    """
    scores, target = call["self"], call["target"]
    if scores.dim() < 2 or target.dim() != scores.dim() - 1 or call["reduction"] == _MEAN:
        return
    for axis in range(target.dim()):
        first, second = (axis, OWN) if call["reduction"] == _NONE else (SUMMED, SUMMED)
        yield Way({"self": axis + (axis > 0), "target": axis}, (first, second)[: len(call.outputs)])


@rule("nll_loss_backward", "nll_loss2d_backward")
def class_loss_backward(call: Call) -> Iterator[Way]:
    """Every axis but the classes; the gradient and the weight of the targets whole where they are of all."""
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
    """The rows of a batch; the marks of the targets keep them in any case."""
    if call.rank("self") == 2 and call["reduction"] != _MEAN:
        first = 0 if call["reduction"] == _NONE else SUMMED
        yield Way({"self": 0, "target": 0}, (first, 0)[: len(call.outputs)])


@rule("multi_margin_loss_backward", "multilabel_margin_loss_backward")
def margin_loss_backward(call: Call) -> Iterator[Way]:
    """The rows of a batch."""
    if call.rank("self") == 2 and call["reduction"] != _MEAN:
        gradient = 0 if call["reduction"] == _NONE else None
        yield Way({"grad_output": gradient, "self": 0, "target": 0, "is_target": 0}, 0)
