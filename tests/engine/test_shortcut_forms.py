"""Shortcuts of a model that is called in several forms: one way to pass arguments does not depend on another."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from shortcuts import long_calls, warm
from torch import Tensor, nn

import autopar
from autopar.engine import direct

pytestmark = pytest.mark.slow


class Cached(nn.Module):
    """Reads a tensor of an object that no shortcut passes on, as models that generate read their cache."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor, cache: Any = None) -> Tensor:
        return self.linear(x) if cache is None else self.linear(x) + cache["past"]


def test_calls_without_a_shortcut_do_not_put_off_others() -> None:
    x, cache = torch.randn(5, 8), {"past": torch.randn(5, 8)}
    fast = autopar.compile(Cached(), ["cpu"])
    with torch.no_grad():
        for _ in range(direct.FIRST * direct.MORE + 1):
            fast(x, cache=cache)
        for _ in range(direct.FIRST + 1):
            fast(x)
        assert long_calls(fast, x) == 0
        assert long_calls(fast, x, cache=cache) == 2
        assert long_calls(fast, x) == 0


def test_several_forms_have_shortcuts() -> None:
    x, y, model = torch.randn(5, 8), torch.randn(5, 8), Cached()
    fast = warm("eager", model, x)
    with torch.no_grad():
        for _ in range(direct.FIRST + 1):
            fast(x)
            fast(x=y)
            fast(y, cache=None)
        for given in (x, y):
            assert (
                long_calls(fast, given)
                == long_calls(fast, x=given)
                == long_calls(fast, given, cache=None)
                == 0
            )
        with torch.no_grad():
            model.linear.weight.add_(1)
        assert long_calls(fast, x=x) == 0


def test_the_number_of_forms_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "MOST", 2)
    x, model = torch.randn(5, 8), Cached()
    fast = warm("eager", model, x)
    with torch.no_grad():
        for call in [lambda: fast(x=x), lambda: fast(x, None), lambda: fast(x, cache=None)] * 2:
            torch.testing.assert_close(call(), model(x))
            assert len(fast._placement.direct._searches) <= 2
