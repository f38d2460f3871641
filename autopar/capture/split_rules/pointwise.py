"""Cuts of what computes each element from the elements that broadcast onto it."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from .registry import Call, Way, broadcasting, rule

_UNTAGGED = (
    "alias contiguous detach lift_fresh_copy copy fill zeros_like ones_like full_like empty_like type_as to"
    " _to_copy absolute arccos arccosh arcsin arcsinh arctan arctan2 arctanh fix negative subtract multiply"
    " divide floor_divide float_power greater greater_equal less less_equal not_equal isclose isreal"
    " polar complex conj _conj _neg_view resolve_conj resolve_neg real imag hardswish leaky_relu log_sigmoid"
    " logical_not special_expit special_expm1 special_erf special_erfc special_erfinv special_exp2"
    " special_logit"
    " special_sinc special_round special_log1p special_psi special_gammaln special_i0"
    " special_digamma special_xlogy"
    " special_gammainc special_gammaincc special_polygamma special_multigammaln"
    " _prelu_kernel masked_fill where __and__ __or__ __xor__ zero rsub"
    " elu_backward hardsigmoid_backward hardswish_backward hardtanh_backward leaky_relu_backward mish_backward"
    " softplus_backward rrelu_with_noise_backward _prelu_kernel_backward log_sigmoid_forward log_sigmoid_backward"
)


@rule(_UNTAGGED)
def pointwise(call: Call) -> Iterator[Way]:
    """Every output axis, as far as each tensor has it."""
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
    for axis in range(len(shape)):
        yield Way(broadcasting(call, axis, shape), axis)


@rule("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
def dropout(call: Call) -> Iterator[Way]:
    """Only where it drops nothing."""
    if not call["train"] or call["p"] == 0:
        yield from pointwise(call)


@rule("native_dropout")
def native_dropout(call: Call) -> Iterator[Way]:
    """Only where it drops nothing (the mask is an output as well)."""
    if call["train"] is False:
        yield from pointwise(call)


@rule("rrelu")
def rrelu(call: Call) -> Iterator[Way]:
    """Only in evaluation, where the slope is fixed."""
    if not call["training"]:
        yield from pointwise(call)
