"""Hundreds of training steps by either door: memory stays flat, losses stay the plain loop's."""

import copy
import gc
import resource
import threading

import pytest
import torch
from machines import machine
from models import eager_step, mlp
from torch import nn

import autopar

pytestmark = pytest.mark.slow

STEPS = 240
WARM = 80


def alive():
    """How many tensors Python still knows."""
    gc.collect()
    return sum(issubclass(type(item), torch.Tensor) for item in gc.get_objects())


def peak():
    """The most memory this process ever had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def doors(model, optimizer):
    fast = autopar.compile(model, machine(), split=2, policy="round_robin")

    def own(x, y):
        loss = eager_step(fast, nn.functional.mse_loss, optimizer, x, y)
        return loss.detach()

    step = autopar.train_step(
        model, nn.functional.mse_loss, optimizer, machine(), split=2, policy="round_robin"
    )
    return {"drop-in": (own, fast), "step": (step, step)}


@pytest.mark.release
@pytest.mark.parametrize("door", ["drop-in", "step"])
def test_hundreds_of_steps(door):
    torch.manual_seed(0)
    model = mlp(torch.float64)
    plain = copy.deepcopy(model)
    ours, theirs = (torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9) for m in (model, plain))
    take, owner = doors(model, ours)[door]
    batches = [(torch.randn(8, 6).double(), torch.randn(8, 3).double()) for _ in range(10)]
    marks = {}
    for turn in range(STEPS):
        x, y = batches[turn % len(batches)]
        mine = take(x, y)
        loss = eager_step(plain, nn.functional.mse_loss, theirs, x, y)
        if turn in (WARM, STEPS - 1):
            marks[turn] = alive(), peak(), threading.active_count()
    assert mine.item() == pytest.approx(loss.item(), rel=1e-9)
    first, last = marks[WARM], marks[STEPS - 1]
    assert last[0] <= first[0] + 2
    assert last[1] <= first[1] + (4 << 20)
    assert last[2] == first[2]
    owner.close()
