"""Calls of many sizes on accelerators: one program serves them."""

from __future__ import annotations

import copy

import pytest
import torch
from models import eager_step
from rig import FIRST
from torch import nn
from turns import by_turns

import autopar

pytestmark = pytest.mark.gpu

SIZES = [(3, 4), (4, 6), (5, 5), (3, 9), (7, 4), (2, 20), (8, 30)]


class Paths(nn.Module):
    """Two paths whose views and new tensors have the sizes of the call."""

    def __init__(self) -> None:
        super().__init__()
        self.above, self.below, self.last = nn.Linear(8, 12), nn.Linear(8, 12), nn.Linear(12, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, _ = x.shape
        above = self.above(x).view(rows * length, 12).tanh()
        below = self.below(x).transpose(0, 1).reshape(length * rows, 12).relu()
        return self.last(above + below + x.new_ones(rows * length, 12)).view(rows, length, 4)[
            :, length // 2 :
        ]


@by_turns("where, grad", ["cpu", FIRST], [True, False])
def test_one_program_serves_all_sizes(where: str, grad: bool) -> None:
    torch.manual_seed(0)
    plain = Paths().to(where)
    fast = autopar.compile(
        copy.deepcopy(plain), ["cpu", FIRST], pins={"above": "cpu", "below": FIRST}, outputs="as_input"
    )
    with torch.set_grad_enabled(grad):
        for sizes in SIZES:
            x = torch.randn(*sizes, 8, device=where)
            for model in (plain, fast):
                model.zero_grad()
            expected, found = plain(x), fast(x)
            torch.testing.assert_close(found, expected)
            if grad:
                for made in (expected, found):
                    made.square().sum().backward()
                for one, other in zip(fast.parameters(), plain.parameters()):
                    torch.testing.assert_close(one.grad, other.grad)
    served = fast._placement.session.graphs[-1]
    assert len(served.programs) == 1 and not served.written
    (program,) = served.programs.values()
    assert {placed.device for placed in program.plan.placed} == {"cpu", FIRST}


class Scores(Paths):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).mean(1)


def test_one_program_takes_steps_of_all_sizes() -> None:
    torch.manual_seed(0)
    plain = Scores()
    model = copy.deepcopy(plain)
    ours, theirs = (torch.optim.AdamW(each.parameters(), 1e-3) for each in (model, plain))
    pins = {"above": "cpu", "below": FIRST}
    step = autopar.train_step(model, nn.functional.cross_entropy, ours, ["cpu", FIRST], pins=pins)
    for sizes in SIZES:
        x, y = torch.randn(*sizes, 8), torch.randint(4, sizes[:1])
        loss = eager_step(plain, nn.functional.cross_entropy, theirs, x, y)
        torch.testing.assert_close(step(x, y), loss.detach())
    for one, other in zip(model.parameters(), plain.parameters()):
        torch.testing.assert_close(one, other)
    kept = step._session.graphs[-1].programs
    assert len(kept) == 1
    assert {placed.device for placed in step.plan.placed} == {"cpu", FIRST}


class Rows(Paths):
    """Rows in order, which can be cut anywhere."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, _ = x.shape
        y = self.above(x).view(rows * length, 12).tanh() + self.below(x).reshape(rows * length, 12)
        return self.last(y).view(rows, length, 4)[:, length // 2 :]


@pytest.mark.parametrize("where", ["cpu", FIRST])
def test_a_split_batch_of_any_length(where: str) -> None:
    torch.manual_seed(0)
    plain = Rows().to(where)
    fast = autopar.compile(
        copy.deepcopy(plain), ["cpu", FIRST], split={"cpu": 1, FIRST: 3}, outputs="as_input"
    )
    with torch.no_grad():
        for length in (3, 6, 9, 3, 12):
            x = torch.randn(8, length, 8, device=where)
            torch.testing.assert_close(fast(x), plain(x))
    assert fast.plan.costed.graph.split == "2 parts: 2 + 6"
    assert {placed.device for placed in fast.plan.placed} == {"cpu", FIRST}
