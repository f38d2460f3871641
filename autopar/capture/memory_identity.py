"""Tensors of a call that lie in the same memory."""

from __future__ import annotations

import torch


def memory(tensor: torch.Tensor) -> int:
    """Equal for tensors that lie in the same memory."""
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else id(tensor)
