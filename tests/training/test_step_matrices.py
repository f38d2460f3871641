"""A model that solves for a matrix of its own: trained as by the plain loop; a singular matrix is an error."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from plain_loop import Pair, batches
from torch import nn
from torch.optim import SGD

import autopar

pytestmark = pytest.mark.slow


class Whitened(nn.Module):
    """Rows times the inverse of a matrix that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.mixing = nn.Parameter(torch.eye(12) + 0.1 * torch.randn(12, 12))
        self.head = nn.Linear(12, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(torch.linalg.solve(self.mixing, x, left=False)))


def test_a_singular_matrix_is_an_error_and_the_next_step_is_right():
    pair = Pair(Whitened, partial(SGD, lr=0.1))
    pair.same(batches(3))
    before = pair.model.mixing.detach().clone()
    with torch.no_grad():
        pair.model.mixing.zero_()
    with pytest.raises(autopar.RunError, match="singular"):
        pair.step(*batches(1)[0])
    with torch.no_grad():
        pair.model.mixing.copy_(before)
    pair.same(batches(3))
