"""An optimizer's step as tasks of the joint graph: torch's own step on a twin, bit for bit."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from twins import Make, Twins, batches, eager, nothing


def follow(make: Make, steps: int = 3, clip_norm: float | None = None, dtype: torch.dtype = torch.float32,
           frozen: str = "", between: Callable[[Optimizer], None] = nothing, nbytes: int = 0) -> None:  # fmt: skip
    """Step both, and hold them to be the same bits."""
    twins = Twins(make, dtype, frozen)
    stepping = twins.stepping(clip_norm, nbytes)
    for batch in batches(steps, dtype):
        mine, theirs = stepping(batch), eager(twins.twin, twins.rival, batch, clip_norm)
        assert torch.equal(mine, theirs)
        twins.are_equal()
        between(twins.optimizer)
        between(twins.rival)


ways = st.sampled_from([{}, {"foreach": True}, {"foreach": False}, {"fused": True}])
rates = st.floats(1e-4, 0.5)
decays = st.sampled_from([0.0, 0.01, 0.3])
clips = st.sampled_from([None, 0.1, 1e6])
sizes = st.sampled_from([0, 300, 1 << 20])
dtypes = st.sampled_from([torch.float32, torch.float64, torch.bfloat16])
quick = settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.slow
@quick
@given(rates, st.sampled_from([0.0, 0.9]), st.sampled_from([0.0, 0.2]), decays, st.booleans(), st.booleans(), ways,
       clips, dtypes, sizes)  # fmt: skip
def test_sgd(lr, momentum, dampening, decay, nesterov, maximize, way, clip_norm, dtype, nbytes):
    nesterov = nesterov and momentum > 0 and dampening == 0
    if way.get("fused") and momentum and dtype == torch.bfloat16:
        way = {}  # an obstacle
    follow(
        lambda model: SGD(
            model.parameters(), lr, momentum, dampening, decay, nesterov, maximize=maximize, **way
        ),
        clip_norm=clip_norm,
        dtype=dtype,
        nbytes=nbytes,
    )


@pytest.mark.slow
@quick
@given(st.sampled_from([Adam, AdamW]), rates, st.tuples(st.floats(0.1, 0.95), st.floats(0.5, 0.999)),
       st.sampled_from([1e-8, 1e-3]), decays, st.booleans(), st.booleans(), ways, clips, dtypes,
       sizes)  # fmt: skip
def test_adam(kind, lr, betas, eps, decay, amsgrad, maximize, way, clip_norm, dtype, nbytes):
    follow(
        lambda model: kind(model.parameters(), lr, betas, eps, decay, amsgrad, maximize=maximize, **way),
        clip_norm=clip_norm,
        dtype=dtype,
        nbytes=nbytes,
    )


def grouped(model: nn.Module) -> Optimizer:
    biases = [p for p in model.parameters() if p.ndim < 2]
    weights = [p for p in model.parameters() if p.ndim >= 2]
    return AdamW(
        [{"params": biases, "weight_decay": 0.0, "lr": 0.1}, {"params": weights, "amsgrad": True}], lr=0.01
    )


@pytest.mark.parametrize("nbytes", [0, 1 << 20])
def test_groups_with_their_own_hyperparameters(nbytes):
    follow(grouped, clip_norm=1.0, nbytes=nbytes)


@pytest.mark.parametrize("nbytes", [0, 1 << 20])
@pytest.mark.parametrize("kind", [SGD, Adam, AdamW])
def test_a_learning_rate_that_is_a_tensor(kind, nbytes):
    def fill(optimizer: Optimizer) -> None:
        optimizer.param_groups[0]["lr"].fill_(0.02)

    follow(lambda model: kind(model.parameters(), lr=torch.tensor(0.05)), between=fill, nbytes=nbytes)


@pytest.mark.parametrize("schedule", ["LambdaLR", "CosineAnnealingLR", "OneCycleLR"])
def test_schedulers_go_on_and_do_not_warn(schedule):
    twins = Twins(lambda model: SGD(model.parameters(), 0.1, 0.9))
    arguments = {
        "LambdaLR": (lambda epoch: 0.5**epoch,), "CosineAnnealingLR": (5,), "OneCycleLR": (0.2, 10),
    }[schedule]  # fmt: skip
    kind = getattr(torch.optim.lr_scheduler, schedule)
    mine, theirs = kind(twins.optimizer, *arguments), kind(twins.rival, *arguments)
    stepping = twins.stepping()
    for batch in batches(4):
        stepping(batch)
        eager(twins.twin, twins.rival, batch)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            mine.step()
            theirs.step()
        twins.are_equal()


def test_autocast_around_the_call_does_not_reach_the_step():
    twins = Twins(lambda model: Adam(model.parameters()), torch.bfloat16)
    stepping = twins.stepping(0.1)
    values = stepping.executed(twins.batch, 10**6)
    with torch.autocast("cpu", torch.float16):
        again = stepping.executed(twins.batch, 10**6)
    for task in stepping.captured.graph.tasks:
        if task.phase == "update":
            for name in task.outputs:
                assert again[name].dtype == values[name].dtype and torch.equal(again[name], values[name]), (
                    task.where
                )
