"""Whether two answers are the same: structure, kinds, shapes, dtypes, values and NaN places.

The error of a tensor is max|Δ| ÷ max|reference|, taken in float64; `exact` asks for equal bits instead (any
NaN equals any other). A NaN in one and not in the other is always a difference. Written apart from the
comparison that autopar makes on a first call, so that the two can disagree.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

LIMITS = {
    torch.float64: 1e-12, torch.complex128: 1e-12, torch.float32: 1e-5, torch.complex64: 1e-5,
    torch.float16: 2e-2, torch.bfloat16: 2e-2,
}  # fmt: skip
"""Greatest error of a tensor of each dtype where bits may differ; a dtype that is not here must be equal."""


WORDS = {
    torch.float64: torch.int64, torch.float32: torch.int32, torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
}  # fmt: skip
"""Integers as wide as each floating dtype, to compare bits at once."""


def error(reference: torch.Tensor, result: torch.Tensor) -> float:
    """max|Δ| ÷ max|reference| over the entries that are finite in both, inf where NaN or ±inf do not match.

    Both have one shape. Empty tensors and equal tensors have error 0.
    """
    wide = torch.complex128 if reference.is_complex() else torch.float64
    a, b = reference.detach().to(wide), result.detach().to(wide)
    if not bool((a.isnan() == b.isnan()).all()):
        return float("inf")
    usual = a.isfinite() & b.isfinite()
    if not bool((usual | a.isnan() | (a == b)).all()):
        return float("inf")
    a, b = a[usual], b[usual]
    if not a.numel():
        return 0.0
    delta, scale = float((a - b).abs().max()), float(a.abs().max())
    return 0.0 if delta == 0 else delta / scale if scale else float("inf")


def same_bits(reference: torch.Tensor, result: torch.Tensor) -> bool:
    """Whether all entries are equal, NaN to NaN, and zeros of one sign."""
    words = WORDS.get(reference.dtype)
    if words and torch.equal(reference.detach().view(words), result.detach().view(words)):
        return True
    if not torch.equal(reference.isnan(), result.isnan()):
        return False
    a, b = (
        reference.detach().nan_to_num() if reference.is_floating_point() else reference.detach(),
        result.detach(),
    )
    b = b.nan_to_num() if reference.is_floating_point() else b
    if reference.is_complex():
        a, b = torch.view_as_real(a).nan_to_num(), torch.view_as_real(b).nan_to_num()
    return torch.equal(a, b) and (not a.is_floating_point() or torch.equal(a.signbit(), b.signbit()))


def difference(reference: Any, result: Any, exact: bool) -> str:
    """The first difference between two nested answers in words, empty when there is none."""
    before, kind = pytree.tree_flatten_with_path(reference)
    after, other = pytree.tree_flatten_with_path(result)
    if kind != other:
        return f"structure {other} where eager has {kind}"
    for (path, a), (_, b) in zip(before, after):
        where = "output" + "".join(str(key) for key in path)
        if isinstance(a, torch.Tensor):
            wrong = _tensor(a, b, exact)
        else:
            wrong = "" if type(a) is type(b) and (a == b or a != a) else f"{b!r} where eager has {a!r}"
        if wrong:
            return f"{where}: {wrong}"
    return ""


def largest(reference: Any, result: Any) -> float:
    """The largest error of a tensor of two answers of one structure."""
    pairs = zip(pytree.tree_leaves(reference), pytree.tree_leaves(result))
    return max(
        (error(a, b) for a, b in pairs if isinstance(a, torch.Tensor) and not same_bits(a, b)), default=0.0
    )


def verdict(reference: Any, result: Any) -> str:
    """`exact` where all bits are equal, the largest error where it is small enough, else the first difference."""
    return difference(reference, result, exact=False) or (
        f"{largest(reference, result):.1e}" if difference(reference, result, exact=True) else "exact"
    )


def _tensor(a: torch.Tensor, b: Any, exact: bool) -> str:
    if not isinstance(b, torch.Tensor):
        return f"{type(b).__name__} where eager has a tensor"
    for name in ("shape", "dtype", "device"):
        if getattr(a, name) != getattr(b, name):
            return f"{name} {getattr(b, name)} where eager has {getattr(a, name)}"
    if same_bits(a, b):
        return ""
    if exact or a.dtype not in LIMITS:
        return f"not bit-equal, error {error(a, b):.3g}"
    wrong = error(a, b)
    return "" if wrong <= LIMITS[a.dtype] else f"error {wrong:.3g} above {LIMITS[a.dtype]:g}"


def snapshot(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], answer: Any) -> Any:
    """A copy of everything a call leaves behind: answer, arguments, parameters and buffers."""
    held: dict[str, Any] = {"answer": answer, "args": args, "kwargs": kwargs}
    if isinstance(model, torch.nn.Module):
        held["parameters"] = dict(model.named_parameters(remove_duplicate=False))
        held["buffers"] = dict(model.named_buffers(remove_duplicate=False))
        held["state_dict"] = list(model.state_dict())
    leaves, kind = pytree.tree_flatten(opened(held))
    copies = [leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    return pytree.tree_unflatten(copies, kind)


def opened(answer: Any) -> Any:
    """The answer with each object that torch sees as one leaf, such as a cache, as a dict of what it holds."""

    def inside(leaf: Any) -> Any:
        closed = isinstance(leaf, (torch.Tensor, torch.nn.Module)) or callable(leaf)
        return (
            leaf if closed or not hasattr(leaf, "__dict__") else {"class": type(leaf), **opened(vars(leaf))}
        )

    return pytree.tree_map(inside, answer)
