"""Rates and operations of an accelerator that others keep busy: measured again, and the best of several counts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from rig import FIRST
from torch import nn

import autopar
from autopar.costs import calibrate, detect, measure

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOPAR_CACHE", str(tmp_path))


def in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detect, "_fresh", set())


def test_rates_of_a_busy_accelerator_do_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    slowness, calls = [100.0, 1.0, 50.0, 0.1], []

    def rates(device: str, count: int) -> dict[str, float]:
        calls.append(device)
        slow = slowness[len(calls) - 1]
        return {"float32": 1e12 / slow, "bytes_per_s": 1e11 / slow, "launch_s": 1e-5 * slow}

    monkeypatch.setattr(calibrate, "rates", rates)
    for _ in range(6):
        in_another_process(monkeypatch)
        for _ in range(2):
            machine = detect.detect([FIRST])
    found = machine.device[FIRST]
    assert calls == [FIRST] * 3, "in three processes, once in each"
    assert (found.flops_per_s("float32"), found.bytes_per_s, found.launch_s) == (1e12, 1e11, 1e-5)


def test_operations_of_a_busy_accelerator_are_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    slowness = [1e4]
    alone = measure._blocks
    monkeypatch.setattr(measure, "_blocks", lambda *given: slowness[0] * alone(*given))
    model, x = nn.Linear(64, 64).to(FIRST), torch.randn(16, 64).to(FIRST)
    makespans = []
    for slowness[0] in (1e4, 1.0):
        plan = autopar.plan(model, [FIRST], example_inputs=(x,), measure=True)
        makespans.append(plan.makespan)
    assert makespans[1] < makespans[0] / 100


def test_a_full_accelerator_keeps_the_rates_that_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> dict[str, float]:
        raise torch.OutOfMemoryError("Tried to allocate 2 GiB")

    rates = {"float32": 1e12, "bytes_per_s": 1e11, "launch_s": 1e-5}
    monkeypatch.setattr(calibrate, "rates", lambda *_: rates)
    known = detect.detect([FIRST])
    in_another_process(monkeypatch)
    monkeypatch.setattr(calibrate, "rates", full)
    assert detect.detect([FIRST]) == known
