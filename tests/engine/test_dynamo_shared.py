"""What torch.compile keeps by code, which several modules of a model share, and several models."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch
from torch import nn

import autopar

pytestmark = pytest.mark.slow


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        twice = torch.cat((x, x)).view(len(x) * 2, 2, 2).transpose(1, 2).reshape(len(x) * 2, 4)
        return self.norm(self.linear(twice[: len(x)])).relu() + x


class Blocks(nn.Module):
    """Each block is a function of its own to torch.compile, since the loop around them is broken."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            torch._dynamo.graph_break()
            x = block(x)
        return x


@pytest.mark.parametrize("devices", [["cpu", "emulated:0"], pytest.param(["cpu"], marks=pytest.mark.release)])
def test_each_keeps_its_weights(devices):
    torch.manual_seed(0)
    model = Blocks()
    weights = {name: (id(p), p.detach().clone()) for name, p in model.named_parameters()}
    twin = copy.deepcopy(model)
    fast = autopar.compile(model, devices, policy="round_robin", split=None)
    with torch.no_grad():
        for rows in (5, 6, 7, 9):
            x = torch.randn(rows, 4)
            assert torch.allclose(fast(x), twin(x), atol=1e-6)
    for name, parameter in model.named_parameters():
        assert (id(parameter), True) == (weights[name][0], torch.equal(parameter, weights[name][1])), name
    for ours, theirs in zip(model.buffers(), twin.buffers()):
        assert torch.allclose(ours, theirs)
    assert _modules(fast) == {"blocks.0.linear", "blocks.1.linear", "blocks.2.linear"}
    fast.close()


@pytest.mark.parametrize("devices", [["cpu", "emulated:0"], pytest.param(["cpu"], marks=pytest.mark.release)])
def test_each_is_trained(devices):
    torch.manual_seed(0)
    model = Blocks()
    twin = copy.deepcopy(model)
    fast = autopar.compile(model, devices, policy="round_robin", split=None)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, twin)]
    for rows in (5, 6, 7, 9):
        x = torch.randn(rows, 4)
        for called, optimizer in zip((fast, twin), optimizers):
            optimizer.zero_grad()
            called(x).pow(2).sum().backward()
            optimizer.step()
    for ours, theirs in zip(model.state_dict().values(), twin.state_dict().values()):
        assert torch.allclose(ours, theirs, atol=1e-5)
    assert _modules(fast) == {"blocks.0.linear", "blocks.1.linear", "blocks.2.linear"}
    fast.close()


def test_a_weight_put_in_the_place_of_another_is_read():
    torch.manual_seed(0)
    model = Blocks().eval()
    fast = autopar.compile(model, ["cpu", "emulated:0"], policy="round_robin", split=None)
    x = torch.randn(5, 4)
    with torch.no_grad():
        for step in range(6):
            block = model.blocks[step % 3]
            block.linear.weight = nn.Parameter(torch.randn(4, 4))
            model.blocks[0].linear, model.blocks[1].linear = model.blocks[1].linear, model.blocks[0].linear
            assert torch.allclose(fast(x), copy.deepcopy(model)(x), atol=1e-6)
    assert len(fast._placement.backend.served) < 8
    fast.close()


def test_a_layer_that_was_replaced_is_kept_for_nobody():
    """Its weights are freed and its program is not reported, but one that somebody still has may come back."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    fast = autopar.compile(model, ["cpu"])
    with torch.no_grad():
        for rows in (3, 4, 5):
            assert torch.equal(fast(x := torch.randn(rows, 4)), model(x))
        kept, gone = nn.Linear(4, 2), weakref.ref(model[2].weight)
        for again in (True, False, True, False):
            model[2] = kept if again else nn.Linear(4, 2)
            for rows in (5, 6):
                assert torch.equal(fast(x := torch.randn(rows, 4)), model(x))
            gc.collect()
            assert gone() is None
    # One for `kept`, one for the last.
    assert sum(bool(each.programs) for each in fast._placement.backend.served) == 2
    fast.close()


def _modules(fast: autopar.Compiled) -> set[str]:
    """The modules of all products that are planned."""
    tasks = [task for plan in fast._placement.backend.plans() for task in plan.costed.graph.tasks]
    return {task.module for task in tasks if "linear" in task.target or "addmm" in task.target}
