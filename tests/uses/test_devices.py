"""Devices by the names that torch has for them, and options that are refused before the first call."""

from __future__ import annotations

import pytest
import torch
from pairs import alike, compiled
from torch import nn

import autopar
from autopar import DeviceError, PlanError
from autopar.costs import calibrate, detect

HERE = ("cpu", *detect.accelerators())


@pytest.mark.slow
def test_all_devices_where_none_are_named():
    model, x = nn.Linear(4, 4), torch.randn(2, 4)
    for fast in (autopar.compile(model), autopar.compile(model, "auto"), autopar.compile(model, ["auto"])):
        assert tuple(fast.machine.device) == HERE
        assert alike(fast(x), model(x))
    more = autopar.compile(model, ["auto", "emulated:0"])
    assert tuple(more.machine.device) == (*HERE, "emulated:0")
    assert tuple(autopar.plan(model, example_inputs=(x,)).costed.machine.device) == HERE


@pytest.mark.slow
def test_a_default_device_for_new_tensors_is_the_users_alone():
    model, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.ones(3, 4)
    fast = autopar.compile(model, ["cpu"])
    with torch.device("meta"):
        torch.testing.assert_close(fast(x), model(x))
        assert fast.double() is fast
        torch.testing.assert_close(fast(x.double()), model(x.double()))
        assert calibrate.memcpy()["bytes_per_s"] < 1e12


def test_a_type_alone_is_the_current_device_of_that_type(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 3)
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 2)
    assert detect._present(detect._parse("cuda")).name == "cuda:2"
    assert detect.accelerators() == ("cuda:0", "cuda:1", "cuda:2")
    with pytest.raises(
        DeviceError, match=r"no device 'mps:0' here; this machine has cpu, cuda:0, cuda:1, cuda:2"
    ):
        detect._present(detect._parse("mps"))


@pytest.mark.parametrize("name", ["cuda", "mps", "xpu"])
def test_a_type_that_is_not_here_is_an_error_that_says_what_is(name):
    if any(device.startswith(name) for device in HERE):
        pytest.skip(f"there is a device of type {name} here")
    for devices in (name, [name], ["cpu", name]):
        with pytest.raises(DeviceError, match=rf"no device '{name}:0' here; this machine has cpu"):
            autopar.compile(nn.Linear(4, 4), devices)


@pytest.mark.parametrize(
    ("options", "kind", "sentence"),
    [
        (
            {"policy": "fastest"},
            PlanError,
            "policy='fastest' is not known; give one of auto, single, single cpu",
        ),
        ({"policy": "single cuda:9"}, PlanError, "policy='single cuda:9' is not known"),
        ({"split": 0}, PlanError, "split=0: the number of parts is at least 1"),
        ({"split": "even"}, PlanError, "split='even' is not known"),
        ({"split": {"cuda:9": 1.0}}, DeviceError, "no device 'cuda:9' in this machine"),
        ({"split": {"cpu": -1.0}}, PlanError, "must be finite numbers, none negative"),
        ({"pins": {"nope": "cpu"}}, PlanError, "'nope' names no module, parameter or buffer"),
        ({"pins": {"*.head": "cpu"}}, PlanError, r"'\*.head' names no module"),
        ({"pins": {"0": "cuda:9"}}, DeviceError, "the pin '0': no device 'cuda:9'"),
        ({"memory": {"cuda:9": "1GB"}}, DeviceError, "no device 'cuda:9'"),
        ({"check": "sometimes"}, PlanError, "check='sometimes' is not known"),
        ({"plan": 3}, PlanError, "plan=3 is not a plan"),
    ],
)
def test_options_are_checked_before_any_call(options, kind, sentence):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with pytest.raises(kind, match=sentence):
        autopar.compile(model, ["cpu", "emulated:0"], **options)


def test_pins_may_name_what_is_shared_or_in_another_graph():
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
            self.alias = self.second

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.first(x)
            return self.second(y) if y.sum().item() > 0 else self.alias(-y)

    model, x = Broken(), torch.ones(4, 6)
    fast = compiled(model, pins={"first": "cpu", "second": "emulated:0", "alias": "emulated:0"})
    with torch.no_grad():
        for sign in (1, -1):
            assert alike(fast(sign * x), model(sign * x))
    assert "emulated:0" in {placed.device for placed in fast.plan.placed}
