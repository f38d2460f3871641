"""A declared clock whose slow-down is left open runs slower once a recorded call shows that it was too fast."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

import autopar
from autopar.costs import detect
from autopar.runtime.lanes.emulated_clock import TOLERANCE

MOST = 60
"""Calls within which a clock that starts as fast as the chips must have become slow enough, on a busy machine too."""


@pytest.fixture(autouse=True)
def hasty(monkeypatch):
    """The clock that is chosen first is one that no machine without these chips can keep."""
    monkeypatch.setattr(detect, "slow_down_for", lambda plan, stand_in: 1.0)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(256, 512), nn.Tanh(), nn.Linear(512, 8))


def machine(**more) -> autopar.Machine:
    return autopar.Machine.emulate("cpu-16", "t4", "t4", **more)


def until_it_counts(timeline, call) -> None:
    for _ in range(MOST):
        if timeline.counted:
            return
        call()


def on_one_clock(timeline, plan) -> None:
    assert timeline.counted, [each.label for each in timeline.calls]
    assert timeline.calls[0].needs_slow_down > 1
    assert plan.costed.machine.slow_down >= timeline.calls[0].needs_slow_down
    assert f"× {plan.costed.machine.slow_down:g}" in timeline.median.label
    assert not timeline.median.needs_slow_down
    found, predicted = timeline.median.makespan, timeline.median.predicted.makespan
    assert plan.lower_bound * predicted / plan.makespan <= found
    # Threads that come late take the host and the buses in another order, which may be a little quicker.
    assert predicted <= (1 + TOLERANCE) * found


@torch.no_grad()
def test_calls():
    net, x = model().eval(), torch.randn(64, 256)
    fast = autopar.compile(net, machine(), split=2)
    fast(x)
    with fast.record() as timeline:
        fast(x)
        assert "record it again" in fast.explain()
        until_it_counts(timeline, lambda: fast(x))
    on_one_clock(timeline, fast.plan)
    assert "refused" not in fast.explain()
    torch.testing.assert_close(fast(x), net(x))
    fast.close()


@pytest.mark.slow
def test_training_steps():
    net, x, y = model(), torch.randn(64, 256), torch.randint(0, 8, (64,))
    step = autopar.train_step(
        net, nn.CrossEntropyLoss(), torch.optim.SGD(net.parameters(), 0.01), machine(), split=2
    )
    losses = [step(x, y), step(x, y)]
    with step.record() as timeline:
        until_it_counts(timeline, lambda: losses.append(step(x, y)))
    on_one_clock(timeline, step.plan)
    assert all(later < earlier for earlier, later in itertools.pairwise(losses))
    step.close()


@pytest.mark.slow
def test_a_loop_of_ones_own():
    net, x = model(), torch.randn(64, 256)
    fast = autopar.compile(net, machine(), split=2)
    fast(x).sum().backward()
    with fast.record() as timeline:
        until_it_counts(timeline, lambda: fast(x).sum().backward())
        # What counted was the forward alone until its backward had ended.
        until_it_counts(timeline, lambda: fast(x).sum().backward())
    on_one_clock(timeline, fast.plan)
    fast.close()


@torch.no_grad()
def test_a_clock_that_the_user_set_stays():
    net, x = model().eval(), torch.randn(64, 256)
    fast = autopar.compile(net, machine(slow_down=2.0), split=2)
    fast(x)
    with fast.record() as timeline:
        for _ in range(3):
            fast(x)
    assert fast.plan.costed.machine.slow_down == 2
    assert all(each.needs_slow_down for each in timeline.calls) and not timeline.counted
    assert "needs slow_down ≥" in fast.explain()
    fast.close()
