"""Attention: `scaled_dot_product_attention`, whose kernels and what they save differ from device to device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

from .define import whole
from .vjp import Tape

_aten = torch.ops.aten


def _low(kind: str, args: tuple[Any, ...]) -> torch.dtype:
    return torch.get_autocast_dtype(kind)


def _shape(query: Tensor, *rest: Any) -> tuple[int, ...]:
    """A float for each query: the logarithm of its softmax's sum, which is all that fused kernels keep."""
    return (*query.shape[:-1], 4)


def _fused(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout: float,
    causal: bool,
    scale: float | None,
    gqa: bool,
) -> bool:
    """True if the kernel is one that does not keep the whole matrix of scores."""
    choice = torch._fused_sdp_choice(query, key, value, mask, dropout, causal, scale=scale, enable_gqa=gqa)
    return bool(choice != SDPBackend.MATH.value)


# No fused kernel of a CPU takes a mask that requires grad, which few do.
_TAPE = Tape(_shape, _fused, fixed=(3,))
attention = whole(_aten.scaled_dot_product_attention.default, cast=_low, tape=_TAPE)
