"""How far apart two answers are, and how far they may be."""

from __future__ import annotations

from typing import Any

import torch

LIMIT = {
    torch.float64: 1e-12,
    torch.complex128: 1e-12,
    torch.float32: 1e-5,
    torch.complex64: 1e-5,
    torch.float16: 2e-2,
    torch.bfloat16: 2e-2,
}
"""Largest max|Δ| ÷ max|reference| of each dtype; everything else must be equal."""


def error(found: Any, reference: Any) -> float:
    """max|Δ| ÷ max|reference|, NaN and infinities equal to themselves; infinite when shape, dtype or kind differ."""
    if not isinstance(reference, torch.Tensor) or not isinstance(found, torch.Tensor):
        return 0.0 if type(found) is type(reference) and found == reference else float("inf")
    if found.shape != reference.shape or found.dtype != reference.dtype:
        return float("inf")
    if reference.numel() == 0:
        return 0.0
    found, reference = found.detach(), reference.detach().to(found.device)
    if found.layout is not torch.strided:
        found, reference = found.to_dense(), reference.to_dense()
    if not (reference.is_floating_point() or reference.is_complex()):
        return 0.0 if torch.equal(found, reference) else float("inf")
    wide = torch.complex128 if reference.is_complex() else torch.float64
    a, b = found.to(wide), reference.to(wide)
    finite = torch.isfinite(b)
    if not bool(finite.all()):
        if not torch.equal(torch.nan_to_num(a[~finite], nan=7.0), torch.nan_to_num(b[~finite], nan=7.0)):
            return float("inf")
        a, b = a[finite], b[finite]
        if b.numel() == 0:
            return 0.0
    delta, scale = float((a - b).abs().max()), float(b.abs().max())
    if delta != delta:
        return float("inf")
    return delta / scale if scale else (0.0 if delta == 0 else float("inf"))


def limit(reference: Any) -> float:
    """The largest error allowed against `reference`."""
    return LIMIT.get(reference.dtype, 0.0) if isinstance(reference, torch.Tensor) else 0.0
