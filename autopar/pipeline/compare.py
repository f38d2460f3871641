"""Comparison of two answers: error and tolerance."""

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


def difference(found: Any, reference: Any, allowed: float) -> str:
    """Two answers' difference in words: of kind, dtype or shape, or the error and the one `allowed`."""
    for about in (_kind, _dtype, _shape):
        if about(found) != about(reference):
            return f"{about(found)}, not {about(reference)}"
    return f"error {error(found, reference):.2g}, allowed {allowed:.2g}"


def _kind(item: Any) -> str:
    return type(item).__name__ if not isinstance(item, torch.Tensor) else "a tensor"


def _dtype(item: Any) -> str:
    return f"of {item.dtype}" if isinstance(item, torch.Tensor) else ""


def _shape(item: Any) -> str:
    return f"of shape {list(item.shape)}" if isinstance(item, torch.Tensor) else ""


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
    """True if `found` is of eager's dtype, and no farther from the float64 answer than twice eager's own error."""
    if not all(isinstance(item, torch.Tensor) for item in (found, eager, wide)) or found.dtype != eager.dtype:
        return False
    return error(widen(found), wide, floor) <= 2 * error(widen(eager), wide, floor) + 1e-12
