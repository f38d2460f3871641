"""Autocast on whatever accelerator is here: composites lowered as eager lowers them, and dtypes that differ told."""

from __future__ import annotations

import copy

import pytest
import torch
from onednn import eager_on_this_processor
from rig import FIRST, error, in_turn, machine
from torch import nn
from torch.nn import functional as F

import autopar

pytestmark = pytest.mark.gpu


class Attention(nn.Module):
    """A query of its own, so that only the composite is there to be lowered."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(2, 2, 5, 8))

    def forward(self, x):
        return F.scaled_dot_product_attention(self.query, x, x)


class Recurrent(nn.Module):
    """A recurrent layer and its last states."""

    def __init__(self, layer) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x):
        made, states = self.layer(x.flatten(0, 1))
        return made, states[0] if isinstance(states, tuple) else states


MODELS = {
    "attention": Attention,
    "LSTM": lambda: Recurrent(nn.LSTM(8, 4, batch_first=True)),
    "GRU": lambda: Recurrent(nn.GRU(8, 4, batch_first=True)),
    "RNN": lambda: Recurrent(nn.RNN(8, 4, batch_first=True)),
}


@pytest.mark.parametrize(
    ("make", "where", "training"),
    [
        pytest.param(make, (FIRST, "cpu")[(at + training) % 2], training, id=f"{name}-{training}")
        for at, (name, make) in enumerate(MODELS.items())
        for training in (False, True)
    ],
)
def test_dtypes_are_eagers(make, where, training) -> None:
    model = make().to(where)
    eager = copy.deepcopy(model)
    fast = autopar.compile(model, machine(), policy=in_turn, split=None, check="always")
    x = torch.randn(2, 2, 5, 8).to(where)
    with torch.set_grad_enabled(training), torch.autocast(torch.device(where).type, torch.bfloat16):
        with eager_on_this_processor():
            expected = eager(x)
        found = fast(x)
        flat, reference = (out if isinstance(out, tuple) else (out,) for out in (found, expected))
        assert [out.dtype for out in flat] == [out.dtype for out in reference]
        assert error(flat, reference) < 5e-2
    if training:
        for out in (flat, reference):
            sum(item.float().sum() for item in out).backward()
        for ours, theirs in zip(model.parameters(), eager.parameters()):
            assert ours.grad.dtype == theirs.grad.dtype and error(ours.grad, theirs.grad) < 0.2
    fast.close()
