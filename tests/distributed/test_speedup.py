"""Processes with several devices are planned as fast as autopar predicts the model on all of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from autopar.distributed import distribute
from autopar.distributed.pipeline.profile import share
from autopar.distributed.pipeline.units import units
from autopar.ir.hosts import Host, Hosts
from autopar.ir.machine import Machine
from autopar.planner.pipelines import Chain, distribution

pytestmark = pytest.mark.slow

ROWS, WIDTH = 256, 512


class Forked(nn.Module):
    """Layers with two branches each, which two devices can compute at the same time."""

    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        self.left, self.right = (
            nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(layers)) for _ in range(2)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for left, right in zip(self.left, self.right):
            x = left(x).relu() + right(x).tanh()
        return x


ONE, TWO = Machine.emulate("t4"), Machine.emulate("t4", "t4", bus="nvlink4")


def _of(machine: Machine) -> float:
    x = torch.ones(ROWS, WIDTH)
    return share(units(Forked(), (x,), {}), [x], machine, trained=False)


def test_a_second_device_shortens_what_can_be_divided():
    assert _of(ONE) == 1.0
    assert 0.4 < _of(TWO) < 0.9


def test_caps_that_only_the_whole_model_exceeds_do_not_count():
    assert _of(TWO.limited(dict.fromkeys(TWO.device, "1MiB"))) < 0.9


def test_a_model_without_a_plan_counts_as_on_the_first_device(monkeypatch):
    from autopar import PlanError
    from autopar.distributed.pipeline import profile

    def refuse(*_, **__):
        raise PlanError("no plan")

    monkeypatch.setattr(profile, "plan", refuse)
    assert _of(TWO) == 1.0


def _chain(machine: Machine) -> Chain:
    hosts = Hosts((Host("rank 0", machine, 1e12, 0.0),)).check()
    x = torch.ones(distribute.MANY * ROWS, WIDTH)
    model = Forked()
    return distribute._chain(
        lambda rows: units(model, (x[:rows],), {}), ((x,), {}), hosts, None, machine, False
    )


def test_the_host_with_two_devices_gets_more_units(monkeypatch):
    monkeypatch.setattr(distribute, "profile", lambda own, *_: [(1e-5 * own.rows, 0.0, 0)] * len(own.nodes))
    one, two = _chain(ONE), _chain(TWO)
    parts = {b.forward[0].per_row_s / a.forward[0].per_row_s for a, b in zip(one.units, two.units)}
    assert max(parts) == pytest.approx(min(parts)) and max(parts) < 0.9
    hosts = Hosts((Host("one", ONE, 1e12, 0.0), Host("two", TWO, 1e12, 0.0)))
    both = Chain("forked", ("one", "two"), tuple(
        replace(a, forward=(*a.forward, *b.forward), backward=(*a.backward, *b.backward))
        for a, b in zip(one.units, two.units)
    ))  # fmt: skip
    plan = distribution(both, hosts, ROWS, objective="throughput", stages=2, replicas=1)
    counts = {
        plan.ranks[0][plan.position(at)]: stage.stop - stage.first for at, stage in enumerate(plan.stages)
    }
    assert counts["two"] > counts["one"]
