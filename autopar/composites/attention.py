"""Attention: `scaled_dot_product_attention`, whose kernels and what they save differ from device to device."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from .define import define

_aten = torch.ops.aten


def _low(kind: str, args: tuple[Any, ...]) -> torch.dtype:
    return torch.get_autocast_dtype(kind)


attention = define(_aten.scaled_dot_product_attention.default, cast=_low)


def random_attention(*args: Any, **kwargs: Any) -> torch.Tensor:
    """Attention with dropout as matrix products, softmax and `dropout`, so that its mask is drawn once, and as
    eager draws it on a CPU."""
    with sdpa_kernel(SDPBackend.MATH):
        return _aten.scaled_dot_product_attention.default(*args, **kwargs)
