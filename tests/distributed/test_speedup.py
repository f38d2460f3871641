"""Processes with several devices are planned as fast as autopar predicts the model on all of them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from autopar.distributed.pipeline.profile import share
from autopar.distributed.pipeline.units import units
from autopar.ir.machine import Machine

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
