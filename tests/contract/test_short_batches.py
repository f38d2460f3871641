"""Short batches under a split that the user asks for: they run, on fewer devices if need be, with eager's values."""

import copy

import pytest
import torch
from torch import nn

import autopar

DEVICES = ["cpu", "emulated:0", "emulated:1"]
SPLITS = [
    {"cpu": 0.1, "emulated:0": 0.1, "emulated:1": 0.8},
    {"cpu": 0.0, "emulated:1": 1.0},
    3,
]
SIZES = [[2], [16, 3, 1]]
"""Rows of the batches of a run: short from the first on, or at the end of an epoch."""


def models() -> tuple[nn.Module, nn.Module]:
    """A model in float64, and its copy for eager."""
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3)).double()
    # One row has no statistics of its own.
    model[1].eval()
    return model, copy.deepcopy(model)


def as_compiled(model, split):
    return autopar.compile(model, DEVICES, split=split)


def as_backend(model, split):
    return torch.compile(model, backend="autopar", options={"devices": DEVICES, "split": split})


def as_data_parallel(model, split):
    return autopar.DataParallel(model, DEVICES, split=split)


@pytest.mark.slow
@pytest.mark.parametrize("split", SPLITS, ids=str)
@pytest.mark.parametrize("made", [as_compiled, as_backend, as_data_parallel])
def test_outputs_and_gradients_are_eagers(made, split):
    for sizes in SIZES:
        torch.compiler.reset()
        model, eager = models()
        fast = made(model, split)
        for rows in sizes:
            x = torch.randn(rows, 6, dtype=torch.float64)
            with torch.no_grad():
                torch.testing.assert_close(fast(x), eager(x))
            fast(x).square().sum().backward()
            eager(x).square().sum().backward()
            for own, other in zip(model.parameters(), eager.parameters()):
                torch.testing.assert_close(own.grad, other.grad)


@pytest.mark.slow
@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_training_steps_are_eagers(split):
    for sizes in SIZES:
        model, eager = models()
        sgd, other = (torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.9) for each in (model, eager))
        step = autopar.train_step(model, nn.functional.mse_loss, sgd, DEVICES, split=split)
        for rows in sizes:
            x, y = torch.randn(rows, 6, dtype=torch.float64), torch.randn(rows, 3, dtype=torch.float64)
            loss = nn.functional.mse_loss(eager(x), y)
            loss.backward()
            other.step()
            other.zero_grad()
            torch.testing.assert_close(step(x, y), loss.detach())
        for own, same in zip(model.parameters(), eager.parameters()):
            torch.testing.assert_close(own, same)


def test_all_rows_go_to_the_device_whose_share_they_are():
    fast = autopar.compile(nn.Linear(6, 5), DEVICES, split={"cpu": 0.2, "emulated:1": 0.8})
    with torch.no_grad():
        fast(torch.randn(2, 6))
    assert {placed.device for placed in fast.plan.placed} == {"emulated:1"}


def test_a_batch_too_short_for_a_gain_stays_whole():
    norm = nn.LayerNorm(6)
    fast = autopar.compile(norm, DEVICES, split=2)
    for rows in (16, 2):
        x = torch.randn(rows, 6)
        torch.testing.assert_close(fast(x), norm(x))


def test_a_short_first_batch_does_not_reduce_the_parts_of_later_ones():
    fast = autopar.compile(nn.Linear(6, 5), ["cpu*4"], split=4)
    for rows in (2, 3, 16):
        fast(torch.randn(rows, 6))
    assert len({task.part for task in fast.plan.costed.graph.tasks if task.part}) == 4
