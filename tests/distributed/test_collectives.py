"""Models with collectives of their own: the calls run as written, in the order in which the user wrote them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from helpers.ranks import ranks
from helpers.replicas_of import SETS, averaged, batches, loss_of, own, same, trained, values
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import autopar

pytestmark = pytest.mark.slow

STEPS = 3
UNLIKE = ("lanes", "mixed")
"""Devices of the two ranks, whose plans have no order in common."""


def _normed(norm: type[nn.Module]) -> nn.Module:
    """A convolution, a norm and a head: alike on every rank."""
    torch.manual_seed(0)
    front = nn.Conv2d(3, 6, 3, bias=False), norm(6), nn.ReLU()
    return nn.Sequential(*front, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4)).double()


def _synced(rank: int) -> Any:
    from helpers.sync_norm import SyncNorm, stand_in

    kernels = stand_in()
    network = _normed(SyncNorm)
    fast = autopar.compile(network, **SETS[UNLIKE[rank]])
    ddp = DistributedDataParallel(fast)
    losses = trained(ddp, (own(batch, rank, 2) for batch in batches("normed", STEPS)), "normed")
    notes, calls = fast._placement.session.notes(), fast._placement.session.calls
    fast.close()
    del kernels
    return losses, values(network), notes, calls


def test_sync_batch_norm_is_batch_norm_of_the_whole_batch():
    alone = _normed(nn.BatchNorm2d)
    expected = trained(alone, batches("normed", STEPS), "normed")
    answers = ranks(2, _synced)
    assert averaged([losses for losses, *_ in answers]) == pytest.approx(expected, abs=1e-9)
    for _, state, notes, calls in answers:
        same(state, values(alone))
        assert calls > STEPS and any("graph break" in note and "SyncBatchNorm" in note for note in notes)


class _Sum(torch.autograd.Function):
    """The sum over all ranks, and its derivative, which is one too."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        total = grads[0].clone()
        dist.all_reduce(total)
        return total


class Centred(nn.Module):
    """Two branches that each take off the mean over all rows of all ranks; neither waits for the other."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.left, self.right, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(16, 4)
        self.how = how

    def everywhere(self, x: torch.Tensor) -> torch.Tensor:
        if self.how == "alone":
            return x
        if self.how == "function":
            return _Sum.apply(x) / 2
        found = [torch.empty_like(x) for _ in range(2)]
        dist.all_gather(found, x.detach())
        return (found[0] + found[1]) / 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left, right = self.left(x), torch.tanh(self.right(x))
        left = left - self.everywhere(left.mean(0))
        return self.head(torch.cat([left, right - self.everywhere(right.mean(0))], 1))


def _centred(rank: int, how: str, steps: int) -> Any:
    torch.manual_seed(0)
    network = Centred(how).double()
    fast = autopar.compile(network, **SETS[UNLIKE[rank]])
    ddp = DistributedDataParallel(fast)
    losses = trained(ddp, (own(batch, rank, 2) for batch in batches("mlp", steps)), "mlp")
    with torch.no_grad():
        x, _ = own(next(iter(batches("mlp", 1))), rank, 2)
        alike = torch.equal(fast(x), network(x))
    found = losses, values(network), fast._placement.session.notes(), alike
    fast.close()
    return found


def test_a_graph_with_collectives_runs_as_written_and_says_where():
    torch.manual_seed(0)
    alone = Centred("alone").double()
    expected = trained(alone, batches("mlp", STEPS), "mlp")
    answers = ranks(2, _centred, "function", STEPS)
    assert averaged([losses for losses, *_ in answers]) == pytest.approx(expected, abs=1e-9)
    for _, state, notes, alike in answers:
        same(state, values(alone))
        assert alike
        assert any("all_reduce" in note and "test_collectives.py" in note for note in notes)
    for _, _, notes, alike in ranks(2, _centred, "gather", 0):
        assert alike and any("all_gather" in note for note in notes)


def _refused(rank: int) -> str:
    network = Centred("function").double()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    step = autopar.train_step(network, loss_of("mlp"), optimizer, ["cpu"])
    try:
        step(*next(iter(batches("mlp", 1))))
    except autopar.CaptureError as error:
        return str(error)
    finally:
        step.close()
    return ""


def test_a_training_step_refuses_collectives_and_says_what_runs_them():
    for text in ranks(2, _refused):
        assert "all_reduce" in text and "autopar.compile" in text
