"""Values that libraries of kernels compute otherwise than PyTorch: a compiled model gives eager's values and errors,
and the library serves the layers around such operators."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autopar

pytestmark = pytest.mark.slow

LIBRARIES = ["onnxruntime", "openvino", pytest.param("inductor frozen", marks=pytest.mark.release)]
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
FLOATS = (
    *(0.0, -0.0, math.nan, math.inf, -math.inf),
    *(1e-8, -1e-8, 1e-5, -0.5, 2.5, 3.5, -7.0, 255.9, 1e10, -1e10),
)
DIVISIONS = 6
"""Divisions of integers, each with a divisor of its own."""


class Values(nn.Module):
    """Integers of all widths, divisions, casts, orders and functions of floats between two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor, ids: Tensor, *rest: Tensor) -> list[Tensor]:
        rows = x.index_select(0, ids).exp()
        x = self.first(x).tanh()
        n, by, rest = rest[0], rest[1 : 1 + DIVISIONS], rest[1 + DIVISIONS :]
        v, w, *pairs = rest
        more, shares = n + 1, n / by[5]
        found = [rows, x[0].index_add(0, ids, x[1, : len(ids)]), shares]
        found += [torch.div(more, divisor, rounding_mode=to) for to, divisor in zip(("trunc", "floor"), by)]
        found += [n // by[2], n % by[3], torch.fmod(n, by[4]), 100 // by[5]]
        wrapped: list[Tensor] = []
        for a, b in zip(pairs[::2], pairs[1::2]):
            wrapped += [a * b, a - b]
            found += [a + b, -a, a.abs(), a * 3, a * a, a < b, a >> 1, a.max(), a.sum(), a.cumsum(0)]
            found += [a.prod(dtype=a.dtype), a // 7, torch.fmod(a, 7)]
        found += [each > 5 for each in wrapped] + [each.float() for each in wrapped]
        found += [v.to(dtype) for dtype in (*INTEGERS, torch.bool)]
        found += [v.max(), v.amin(), v.argmax(), *v.min(0), v.sort(stable=True)[0], v.maximum(w)]
        found += [v.minimum(w), v % 3, v // 3, v % w, v // w, torch.fmod(v, w)]
        found += [v.sign(), v.expm1(), v.erf(), v.abs().log1p()]
        found += [(v / 1e11).atanh(), v.logical_not(), v * 0, v > w, v == w, v.round(), v.asinh()]
        return [self.last(x), *found]


def limits(dtype: torch.dtype, divisors: bool = False) -> tuple[Tensor, Tensor]:
    """Return pairs of limits of a dtype and usual numbers; as `divisors`, the second is neither 0 nor -1."""
    info = torch.iinfo(dtype)
    first = [info.min, info.max, info.max - 1, info.max // 2 + 1, 0, 1, 3, 7, 100] + [-1, -7] * (info.min < 0)
    second = [number for number in first if not divisors or number not in (0, -1)]
    one, other = zip(*product(first, second))
    return torch.tensor(one, dtype=dtype), torch.tensor(other, dtype=dtype)


def same(found: Any, wanted: Any) -> None:
    for place, (ours, right) in enumerate(zip(found, wanted, strict=True)):
        if right.is_floating_point():
            torch.testing.assert_close(
                ours,
                right,
                rtol=1e-5,
                atol=1e-12,
                equal_nan=True,
                msg=lambda text, at=place: f"result {at}: {text}",
            )
        else:
            assert torch.equal(ours, right), f"result {place}: {ours} for {right}"


@pytest.mark.parametrize("library", LIBRARIES)
def test_values_and_errors_are_eagers_where_libraries_differ(library: str) -> None:
    torch.manual_seed(0)
    model, x, ids = Values().eval(), torch.randn(5, 8), torch.tensor([1, 0, 3])
    n, divisor = limits(torch.int64, divisors=True)

    def operands(n: Tensor, divisor: Tensor) -> list[Tensor]:
        # One tensor for all divisors would be one input of the graph, and each other set another capture.
        return [n, *(divisor.clone() for _ in range(DIVISIONS))]

    usual, nasty = operands(torch.full_like(n, 7), torch.full_like(n, 2)), operands(n, divisor)
    v, w = (torch.tensor(each) for each in zip(*product(FLOATS, FLOATS)))
    floats = [torch.full_like(v, 0.3), torch.full_like(w, 0.7)]
    pairs = [each for dtype in INTEGERS for each in limits(dtype)]
    small = [torch.full_like(each, 5 - place % 2) for place, each in enumerate(pairs)]
    with torch.no_grad():
        fast = autopar.compile(model, ["cpu"], kernels=library)
        for _ in range(2):
            fast(x, ids, *usual, *floats, *small)
        if "not installed" in fast.explain() or "no C++ compiler" in fast.explain():
            pytest.skip(f"{library} is not here")
        assert fast.serving == library, fast.explain()
        for given in ([ids.flip(0), *nasty, v, w, *pairs], [ids, *usual, *floats, *small]):
            same(fast(x * 2, *given), model(x * 2, *given))
        least = operands(torch.full_like(n, torch.iinfo(n.dtype).min), torch.full_like(n, -1))
        same(fast(x, ids, *least, v, w, *small), model(x, ids, *least, v, w, *small))
        for place in range(1, DIVISIONS + 1):
            given = [*usual]
            given[place] = torch.arange(len(n)) - 3
            with pytest.raises(RuntimeError, match="ZeroDivisionError"):
                fast(x, ids, *given, *floats, *small)
        for bad in (-1, 5, 8):
            wrong = torch.tensor([1, bad, 0])
            with pytest.raises(IndexError, match="out of range"):
                fast(x, wrong, *usual, *floats, *small)
        same(fast(x, ids, *usual, *floats, *small), model(x, ids, *usual, *floats, *small))
