"""Accelerators of any kind by name: nothing is asked of a device's module that some do not have, and probes end."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from rig import FIRST, KIND, error, in_turn, machine

import autopar
from autopar.costs import calibrate as probe
from autopar.costs import detect
from autopar.errors import RunError
from autopar.runtime import flat_transfer as flat
from autopar.runtime.lanes import accelerator

SECOND = f"{KIND}:1"


def test_a_module_that_tells_nothing(monkeypatch):
    module = SimpleNamespace()
    with monkeypatch.context() as patch:
        patch.setattr(torch, "get_device_module", lambda kind: module)
        assert detect._title("mtia:0") == "mtia" and detect._memory("mtia:0") is None
        module.recommended_max_memory = lambda: 5
        assert detect._memory("mps:0") == 5
        module.mem_get_info = lambda device: (3, 7)
        assert detect._memory("xpu:0") == 7
        module.get_device_properties = lambda device: SimpleNamespace(total_memory=9)
        assert detect._memory("cuda:1") == 9


@pytest.mark.parametrize("rate", [1e8, 1e10, 1e15])
def test_a_slow_device_is_measured_by_small_products(rate, monkeypatch):
    """The products it is measured by last no longer than a few times what is enough, whatever it is."""
    lasted = []

    def best(call, device, times):
        lasted.append(2 * call.args[0].shape[0] ** 3 / rate)
        return lasted[-1]

    monkeypatch.setattr(probe, "best", best)
    assert math.isclose(probe._product("cpu", torch.float32, 256, 4096), rate)
    assert max(lasted) <= max(8 * probe.ENOUGH_S, 2 * 256**3 / rate)
    assert all(seconds <= probe.ENOUGH_S for seconds in lasted[:-1])
    assert lasted[-1] > probe.ENOUGH_S or 2 * 4096**3 / rate == lasted[-1]


def test_a_dtype_that_a_device_has_not_is_left_out(monkeypatch):
    """Mps raises TypeError for float64."""

    def refuse(*args, **kwargs):
        raise TypeError("no such dtype")

    monkeypatch.setattr(torch, "ones", refuse)
    assert probe._product("cpu", torch.float64, 256, 4096) is None


@pytest.mark.gpu
@pytest.mark.skipif(torch.accelerator.device_count() < 2, reason="needs two accelerators")
@torch.no_grad()
def test_detected_by_name_with_the_least_that_a_backend_has(monkeypatch, tmp_path):
    """By name, measured, without properties, memory and pinned host memory."""
    module = torch.get_device_module(torch.device(FIRST).type)
    for method in ("get_device_properties", "get_device_name", "mem_get_info", "memory_allocated", "_sleep"):
        monkeypatch.delattr(module, method, raising=False)
    monkeypatch.setenv("AUTOPAR_CACHE", str(tmp_path))
    for where in (probe, accelerator, flat):
        monkeypatch.setattr(where, "pins_memory", lambda: False)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
    fast = autopar.compile(model, ["cpu", FIRST, SECOND], policy=in_turn, split=None, check="always")
    xs = [torch.randn(4, 8) for _ in range(4)]
    assert error([fast(x) for x in xs], [model(x) for x in xs]) < 1e-5
    assert fast.plan.costed.machine.device[FIRST].memory_bytes is None
    fast.close()


@pytest.mark.gpu
@pytest.mark.skipif(torch.accelerator.device_count() < 2, reason="needs two accelerators")
@torch.no_grad()
def test_an_error_that_comes_late_is_not_blamed_on_the_step_that_met_it():
    """An index out of range on a device is found by a kernel, which reports it to whoever looks next."""

    def model(x, index):
        return torch.relu(torch.index_select(torch.sin(x), 0, index)) * 2

    fast = autopar.compile(
        model, machine(), policy=lambda costed: {run.name: SECOND for run in costed.clusters}, check="never"
    )
    x = torch.randn(64, 4)
    assert error(fast(x, torch.tensor([1, 2])), model(x, torch.tensor([1, 2]))) < 1e-5
    if torch.device(FIRST).type == "cuda":
        pytest.skip("an assertion on the device ends the process's use of it")
    with pytest.raises(RunError, match="report errors late") as told:
        fast(x, torch.tensor([1, 1000]))
    assert "index_select" in str(told.value) and SECOND in str(told.value)
    assert error(fast(x, torch.tensor([1, 2])), model(x, torch.tensor([1, 2]))) < 1e-5
    fast.close()
