"""A call of which nothing is captured, because it fails or computes nothing, does not keep later calls from being
placed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pairs import alike, compiled
from torch import nn
from torch._dynamo.utils import counters


class Service(nn.Module):
    """Refuses requests without rows, and leaves an empty list as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        if isinstance(x, list):
            return [self.linear(each) for each in x]
        if x.shape[0] == 0:
            raise ValueError("no rows")
        return self.linear(x).relu()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (torch.randn(0, 4), ValueError),
        (torch.randn(2, 3), RuntimeError),
        (torch.randn(2, 4, device="meta"), RuntimeError),
        ([], None),
    ],
    ids=["refused", "other sizes", "another device", "nothing to compute"],
)
def test_calls_after_it_are_placed(given: Any, kind: type[Exception] | None) -> None:
    model = Service()
    fast = compiled(model)
    sizes = iter(range(1, 20))

    def good() -> None:
        x = torch.randn(next(sizes), 4)
        assert alike(fast(x), model(x))

    with torch.no_grad():
        for _ in range(3):
            if kind is None:
                assert fast(given) == []
            else:
                with pytest.raises(kind):
                    fast(given)
        for _ in range(8):
            good()
        known = sum(fast._placement.session.unplaced.values())
        good()
        assert sum(fast._placement.session.unplaced.values()) == known
        assert alike(fast([torch.ones(2, 4)]), model([torch.ones(2, 4)]))
        assert sum(fast._placement.session.unplaced.values()) == known
    fast.close()


def test_a_call_with_another_type_keeps_no_later_one_from_being_placed() -> None:
    """Its capture has no graph, and so no guards on the arguments."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    fast, x = compiled(model), torch.randn(2, 4)
    with torch.no_grad():
        fast(x)
        with pytest.raises(TypeError):
            fast("text")
        for _ in range(2):
            assert alike(fast(x), model(x))
        assert sum(fast._placement.session.unplaced.values()) <= 1
    fast.close()


def test_a_call_that_raises_is_not_blamed_on_the_next() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    fast, x = compiled(model), torch.randn(2, 4)
    with torch.no_grad():
        fast(x)
    for wrong in ((torch.randn(2, 3),), ()):
        with pytest.raises((RuntimeError, TypeError)):
            fast(*wrong)
    # With gradients, it is captured again.
    assert alike(fast(x), model(x))
    assert not fast._placement.session.unplaced and not fast._placement.session.breaks
    # Calls that go on to raise are captured ever more seldom.
    before = counters["frames"]["total"]
    for _ in range(100):
        with pytest.raises(TypeError):
            fast()
    assert counters["frames"]["total"] - before <= 10
    fast.close()


def test_a_model_without_a_graph_is_captured_ever_more_seldom() -> None:
    def same(x: torch.Tensor) -> torch.Tensor:
        return x

    fast, x = compiled(same), torch.randn(3)
    before = counters["frames"]["total"]
    for _ in range(100):
        assert fast(x) is x
    assert fast._placement.session.unplaced == {"torch.compile captured no graph": 100}
    assert 3 <= counters["frames"]["total"] - before <= 9


class Sparse(nn.Module):
    """Reads the entries that are not zero."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[x.nonzero().squeeze(-1)]


def test_the_line_is_named_at_which_a_capture_ended() -> None:
    fast = compiled(Sparse())
    fast(torch.randn(4))
    breaks = list(fast._placement.session.breaks)
    assert breaks and all("test_refused_calls.py" in each and "x.nonzero()" in each for each in breaks)
