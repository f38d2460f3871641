"""A model's own buffer or parameter as its argument, whole or a view of it, read or changed: eager's answer, always."""

from __future__ import annotations

import copy
import logging

import pytest
import torch
from torch import nn
from turns import by_turns

import autopar

pytestmark = pytest.mark.slow


class Own(nn.Module):
    def __init__(self, call) -> None:
        super().__init__()
        self.register_buffer("buf", torch.arange(4.0))
        self.weight, self.linear = nn.Parameter(torch.ones(4)), nn.Linear(4, 4)
        self.loose = torch.ones(4)
        self.call = call

    def forward(self, x):
        return self.call(self, x)


def argument(self, x):
    x.add_(1)
    return self.buf * 2 + self.loose


def buffer(self, x):
    self.buf.add_(1)
    return x * 2


def between(self, x):
    y = x * 2
    self.buf.add_(1)
    return y + x


def both(self, x):
    self.buf.add_(1)
    x.mul_(3)
    return self.linear(self.buf) + x


def weight(self, x):
    with torch.no_grad():
        self.weight.add_(1)
    return x * 2


def through(self, x):
    with torch.no_grad():
        x.add_(1)
    return self.weight * 2 + self.buf


def replaced(self, x):
    self.buf = self.buf + 1
    return x * 2


def read(self, x):
    return self.linear(self.buf) + x * self.weight


GIVEN = {
    "buffer": lambda model: model.buf,
    "other axes": lambda model: model.buf.view(1, 4),
    "weight": lambda model: model.weight,
    "weight.data": lambda model: model.weight.data,
    "row of a weight": lambda model: model.linear.weight[0],
    "loose": lambda model: model.loose,
}
CALLS = {
    argument: (("buffer", "other axes", "weight.data", "loose"), ("buffer", "row of a weight")),
    buffer: (("buffer", "other axes", "weight.data"), ("buffer", "weight")),
    between: (("buffer", "other axes"), ("buffer",)),
    both: (("buffer", "other axes"), ("buffer", "row of a weight")),
    weight: (("buffer", "weight.data"), ("buffer", "weight")),
    through: (("buffer", "weight.data"), ("weight",)),
    replaced: (("buffer", "other axes"), ("buffer",)),
    read: (("buffer", "weight.data", "loose"), ("buffer", "weight", "row of a weight")),
}
"""What is given to each call, without and with gradients: what it reads or changes itself, and something else."""


def calls(run, model, give, grad):
    """The results of calls, an ordinary one before and after those with own tensors, and the gradients they leave."""
    found = []
    for own in (False, True, True):
        x = give(model) if own else torch.full((4,), 2.0).expand_as(give(model)).clone()
        with torch.set_grad_enabled(grad):
            out = run(x)
            found.append(out.detach().clone())
            if grad and out.requires_grad:
                out.sum().backward()
    return found, [(p.grad if p.grad is None else p.grad.clone()) for p in model.parameters()]


@by_turns("call, grad", CALLS, [False, True])
def test_as_eager(call, grad, caplog):
    caplog.set_level(logging.ERROR, "autopar")
    for gift in CALLS[call][grad]:
        eager, give = Own(call), GIVEN[gift]
        ours = copy.deepcopy(eager)
        try:
            expected = calls(eager, eager, give, grad)
        except RuntimeError:
            continue  # what eager refuses, such as to change a leaf that requires grad
        fast = autopar.compile(ours, ["cpu", "emulated:0"], policy="round_robin", split=None, check="never")
        try:
            found = calls(fast, ours, give, grad)
        except autopar.CaptureError as error:
            assert "in place" in str(error), gift
            continue
        for one, other in zip((*found[0], *found[1]), (*expected[0], *expected[1])):
            assert (one is None) == (other is None), gift
            assert one is None or torch.allclose(one, other, rtol=1e-5), gift
        state = zip(ours.state_dict().items(), eager.state_dict().values())
        assert all(torch.allclose(one, other) for (_, one), other in state), gift
        fast.close()


@torch.no_grad()
def test_buffers_that_share_memory():
    """Two buffers in one memory, of which one is changed."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            whole = torch.arange(8.0)
            self.register_buffer("whole", whole)
            self.register_buffer("part", whole[:4])

        def forward(self, x):
            self.part.add_(x)
            return self.whole * 2

    eager = Two()
    ours = Two()
    fast = autopar.compile(ours, ["cpu", "emulated:0"], policy="round_robin", split=None, check="never")
    for _ in range(3):
        assert torch.equal(fast(torch.ones(4)), eager(torch.ones(4)))
        assert torch.equal(ours.whole, eager.whole) and torch.equal(ours.part, eager.part)
    fast.close()
