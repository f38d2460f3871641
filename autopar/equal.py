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


def error(found: Any, reference: Any, floor: float = 0.0) -> float:
    """max|Δ| ÷ max|reference|, NaN and infinities equal to themselves; infinite when shape, dtype or kind differ.

    Where all of the reference is finite it is divided by no less than `floor`.
    """
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
        floor = 0.0
    delta, scale = float((a - b).abs().max()), max(float(b.abs().max()), floor)
    if delta != delta:
        return float("inf")
    return delta / scale if scale else (0.0 if delta == 0 else float("inf"))


def limit(reference: Any) -> float:
    """The largest error allowed against `reference`."""
    return LIMIT.get(reference.dtype, 0.0) if isinstance(reference, torch.Tensor) else 0.0


def widen(value: Any) -> Any:
    """A tensor in double precision, anything that is no floating tensor as it is."""
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.double()
    if isinstance(value, torch.Tensor) and value.is_complex():
        return value.to(torch.complex128)
    return value


def no_worse(found: Any, eager: Any, wide: Any, floor: float = 0.0) -> bool:
    """Whether `found` is no farther from the float64 answer than twice eager's own error."""
    if not isinstance(wide, torch.Tensor) or not isinstance(eager, torch.Tensor):
        return False
    return error(widen(found), wide, floor) <= 2 * error(widen(eager), wide, floor) + 1e-12
