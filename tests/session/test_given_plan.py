"""A plan that is given for another graph: the error says what differs, and what to type."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from feasible import problems
from torch import nn

import autopar
from autopar.costs.clustering import unfused
from autopar.planner import replan, schedule
from autopar.session.saved_plan import follow_user_plan

pytestmark = pytest.mark.slow


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None, flip: bool = False) -> torch.Tensor:
        y = self.first(x).relu()
        y = y if mask is None else y * mask
        return self.last(y.flip(1) if flip else y)


X, MASK = torch.randn(4, 8), torch.ones(4, 8)


@pytest.fixture
def planned(tmp_path: Path) -> Path:
    """The file of the plan of a call with a mask, of a model that was called without one before."""
    fast = autopar.compile(Masked(), ["cpu*2"])
    with torch.no_grad():
        fast(X)
        fast(X, MASK)
    fast.plan.save(tmp_path / "plan.json")
    return tmp_path / "plan.json"


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda fast: fast(X),
            r"the plan has an input 'mask', float32 of shape \[4, 8\], this call has none",
        ),
        (lambda fast: fast(X, MASK, True), r"the inputs are equal, but .*flip.* the plan .*linear"),
        (
            lambda fast: fast(X[:2], flip=True),
            r"the input 'x' is float32 of shape \[2, 8\], in the plan .*\[4, 8\]",
        ),
    ],
)
@torch.no_grad()
def test_what_differs_is_said(planned: Path, call: Callable[[Any], Any], text: str) -> None:
    fast = autopar.compile(Masked(), ["cpu*2"], plan=planned)
    with pytest.raises(
        autopar.PlanError, match=rf"another graph: .*{text}.*fast\.plan\.save.*leave plan= out"
    ):
        call(fast)


@torch.no_grad()
def test_the_same_call_of_another_size_or_type_takes_the_plan(planned: Path) -> None:
    for rows, dtype in ((4, torch.float32), (6, torch.float32), (4, torch.float64)):
        model, x = Masked().to(dtype), torch.randn(rows, 8, dtype=dtype)
        fast = autopar.compile(model, ["cpu*2"], plan=planned)
        torch.testing.assert_close(fast(x, torch.ones_like(x)), model(x, torch.ones_like(x)))


@torch.no_grad()
def test_a_plan_keeps_its_clusters_whatever_the_costs_of_the_moment(planned: Path) -> None:
    fast = autopar.compile(Masked(), ["cpu*2"], plan=planned)
    fast(X, MASK)
    fused, graph = fast.plan, fast.plan.costed.graph
    single = replan(unfused(fused.costed), schedule(unfused(fused.costed)))
    assert len(single.placed) > len(fused.placed)
    for given, priced in ((fused, single.costed), (single, fused.costed)):
        taken = follow_user_plan(graph, lambda _, priced=priced: priced, given, "full")
        assert {step.cluster: step.lane for step in taken.placed} == {s.cluster: s.lane for s in given.placed}
        assert taken.costed.cluster_of == given.costed.cluster_of
        assert problems(taken) == []
