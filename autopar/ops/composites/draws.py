"""Random numbers drawn in place: `bernoulli_` and `normal_` as operators that make a new tensor.

Numbers are drawn in the order of memory. A trace writes a draw in place as the operator of that name that makes a
new tensor, but torch's own make it row-major (`bernoulli.p`) or dense (`normal_functional`), so that another element
gets each number. These draw as the one in place does: into memory like that of the tensor that is filled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, library

from .define import KERNELS

_aten = torch.ops.aten
_LIBRARY = library.Library("autopar", "FRAGMENT")


def _bernoulli(like: Tensor, p: float) -> Tensor:
    return torch.empty_like(like).bernoulli_(p)


def _normal(like: Tensor, mean: float, std: float, contiguous: bool) -> Tensor:
    made = torch.empty_like(like)
    if contiguous or not made.is_contiguous():
        return made.normal_(mean, std)
    # A CPU draws many numbers at once where memory has no gaps, which gives others.
    apart = made.new_empty((*made.shape, 2))[..., 0]
    return made.copy_(apart.normal_(mean, std))


def _define(name: str, given: str, call: Callable[..., Tensor]) -> Any:
    """Define `autopar::name(Tensor like, …) -> Tensor`, which draws."""
    _LIBRARY.define(f"{name}({given}) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))
    _LIBRARY.impl(name, call, "CompositeExplicitAutograd")
    operator = getattr(torch.ops.autopar, name).default
    library.register_fake(operator, lambda like, *_: torch.empty_like(like), lib=_LIBRARY)
    KERNELS[f"autopar.{name}.default"] = call
    return operator


_drawn_bernoulli = _define("bernoulli", "Tensor like, float p", _bernoulli)
_drawn_normal = _define("normal", "Tensor like, float mean, float std, bool contiguous", _normal)


def _plain_bernoulli(like: Tensor, p: float = 0.5, *, generator: None = None) -> Any:
    return _drawn_bernoulli(like, p)


def _plain_normal(like: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: None = None) -> Any:
    return _drawn_normal(like, mean, std, like.is_contiguous())


IN_PLACE: dict[Any, Callable[..., Any]] = {
    _aten.bernoulli.p: _plain_bernoulli,
    _aten.normal_functional.default: _plain_normal,
}
"""Decompositions of draws in place: the operator torch writes, and the one a trace is to write instead."""
