"""Capture, cost, place, lower, check, execute: the whole chain gives eager's answers wherever the tasks are
put.
"""

from __future__ import annotations

import pytest
import torch
from machines import THREE, turns
from torch import nn
from turns import by_turns

import autopar

DEVICES = {"cpu": ["cpu"], "cpu*2": ["cpu*2"], "cpu + 2 emulated": THREE, "2 emulated": THREE[1:]}


class Net(nn.Module):
    """Layers with a buffer update, a tied weight, views, several outputs and a mutated input."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(12, 24), nn.Linear(24, 24), nn.Linear(24, 12)
        self.norm = nn.BatchNorm1d(24)
        self.drop = nn.Dropout(0.3)
        self.tied = nn.Linear(12, 24)
        self.tied.weight = self.first.weight
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x, *, scale):
        self.calls += 1
        h = self.drop(torch.relu(self.norm(self.first(x))))
        left, right = h.chunk(2, dim=1)
        h = torch.cat([right, left], 1) + self.second(h) * scale
        x.mul_(0.5)
        return {"y": self.third(h) + x, "left": left, "rows": [self.tied(x).sum(1), x.t()]}


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@by_turns("name, train", DEVICES, [False, True])
@torch.no_grad()
def test_equal_to_eager_wherever_it_runs(name, train):
    torch.manual_seed(0)
    net, eager = Net().train(train), Net().train(train)
    eager.load_state_dict(net.state_dict())
    x = torch.randn(6, 12)
    pins = turns(net, DEVICES[name]) if len(DEVICES[name]) > 1 else {}
    fast = autopar.compile(net, DEVICES[name], policy="round_robin", pins=pins, split=None, check="never")
    for seed in range(3):
        x = torch.randn(6, 12)
        theirs, ours = x.clone(), x.clone()
        torch.manual_seed(seed)
        right = eager(theirs, scale=torch.tensor(0.7))
        torch.manual_seed(seed)
        made = fast(ours, scale=torch.tensor(0.7))
        torch.testing.assert_close(made, right, rtol=0, atol=0)
        assert torch.equal(ours, theirs)
        for key, value in eager.state_dict().items():
            assert torch.equal(net.state_dict()[key], value), key
    fast.close()
