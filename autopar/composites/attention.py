"""Attention: `scaled_dot_product_attention`, whose kernels and what they save differ from device to device."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from .define import arguments, become, whole

_aten = torch.ops.aten


def _low(kind: str, args: tuple[Any, ...]) -> torch.dtype:
    return torch.get_autocast_dtype(kind)


attention = whole(_aten.scaled_dot_product_attention.default, cast=_low)


def _random(*args: Any, **kwargs: Any) -> torch.Tensor:
    with sdpa_kernel(SDPBackend.MATH):
        return _aten.scaled_dot_product_attention.default(*args, **kwargs)


def swap_attention(node: torch.fx.Node) -> None:
    """With dropout it becomes matrix products, softmax and `dropout`, so that its mask is drawn once, and as
    eager draws it on a CPU.
    """
    given = arguments(node)
    if given["dropout_p"]:
        node.target = _random
    else:
        become(node, attention.forward, given.values())


SWAPS = {_aten.scaled_dot_product_attention.default: swap_attention}
