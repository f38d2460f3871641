"""`autopar.DataParallel` takes what `nn.DataParallel` takes and answers as the plain model does."""

from __future__ import annotations

import copy
import logging

import pytest
import torch
from torch import nn

import autopar
from autopar import CaptureError, DataParallel, DeviceError, PlanError

TWO = ["emulated:0", "emulated:1"]
no_accelerator = pytest.mark.skipif(torch.accelerator.is_available(), reason="about a machine without one")


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 3))


def used(fast: DataParallel) -> set[str]:
    """Devices that compute parts of the batch."""
    part = {task.name: task.part for task in fast.plan.costed.graph.tasks}
    clusters = fast.plan.costed.cluster_of
    return {fast.plan.place[clusters[name]].device for name, rows in part.items() if rows}


@torch.no_grad()
@pytest.mark.parametrize("rows", [7, 1])
def test_answers_as_the_plain_model_with_its_keys(rows):
    plain = net().eval()
    fast = DataParallel(plain, device_ids=TWO)
    x = torch.randn(rows, 10)
    assert torch.allclose(fast(x), plain(x), rtol=1e-5, atol=1e-6)
    assert torch.allclose(fast.forward(x), plain(x), rtol=1e-5, atol=1e-6)
    assert list(fast.state_dict()) == list(plain.state_dict()) and fast.module is plain
    assert isinstance(fast, nn.Module) and isinstance(fast, autopar.Compiled)
    if rows > 1:
        assert used(fast) == {*TWO} and fast.plan.costed.graph.split.startswith("2 parts")
    fast.close()


@torch.no_grad()
def test_the_axis_of_the_batch_may_be_another():
    lstm = nn.LSTM(8, 8)
    fast = DataParallel(lstm, device_ids=TWO, dim=1)
    x = torch.randn(5, 6, 8)
    y, (h, c) = fast(x)
    expected, (eh, ec) = lstm(x)
    for found, reference in ((y, expected), (h, eh), (c, ec)):
        assert torch.allclose(found, reference, atol=1e-6)
    assert fast.plan.costed.graph.split == "2 parts: 3 + 3"
    fast.close()


@torch.no_grad()
@pytest.mark.parametrize("dim, words", [(1, "dim=0"), (5, "2 axes"), (-5, "2 axes")])
def test_another_axis_than_the_batch_is_refused(dim, words):
    fast = DataParallel(net(), device_ids=TWO, dim=dim)
    with pytest.raises(PlanError, match=words):
        fast(torch.randn(8, 10))
    fast.close()


@torch.no_grad()
def test_shares_caps_and_other_options_of_compile():
    fast = DataParallel(
        net(), TWO, split={"emulated:0": 0.25, "emulated:1": 0.75}, memory={"emulated:0": "1MiB"}
    )
    fast(torch.randn(8, 10))
    assert fast.plan.costed.graph.split == "2 parts: 2 + 6"
    assert fast.machine.device["emulated:0"].memory_bytes == 1 << 20
    fast.close()


@torch.no_grad()
def test_outputs_go_to_the_output_device():
    fast = DataParallel(net(), TWO, output_device="emulated:1")
    assert fast.output_device == "emulated:1" and fast.device_ids == TWO and fast.dim == 0
    y = fast(torch.randn(4, 10))
    assert y.device.type == "cpu"
    meta = DataParallel(net(), ["cpu"], output_device="cpu")
    object.__setattr__(meta, "_deliver", torch.device("meta"))
    assert meta(torch.randn(4, 10)).device.type == "meta"
    fast.close(), meta.close()


@no_accelerator
@torch.no_grad()
def test_without_accelerators_it_is_the_plain_model_on_the_cpu_as_in_torch(caplog):
    x = torch.randn(4, 10)
    with caplog.at_level(logging.WARNING, "autopar"):
        assert [*DataParallel(net()).machine.device] == ["cpu"] and not caplog.records
        fast = DataParallel(net(), device_ids=[0, 1])
    assert [*fast.machine.device] == ["cpu"] and "emulated:0" in caplog.text
    assert torch.equal(fast(x), net()(x)), "on the CPU alone nothing is rounded differently"
    fast.close()


@pytest.mark.parametrize(
    "arguments, error, words",
    [
        ({"device_ids": []}, DeviceError, "empty"),
        ({"device_ids": 0}, DeviceError, r"\[0\]"),
        ({"device_ids": [True]}, DeviceError, "True"),
        ({"device_ids": [0.5]}, DeviceError, "0.5"),
        ({"device_ids": ["cpu*2"]}, DeviceError, r"autopar.compile\(module, \['cpu\*2'\], split=2\)"),
        ({"device_ids": ["emulated:0", "emulated:0"]}, DeviceError, "twice"),
        ({"device_ids": ["emulated:0", "nonsense"]}, DeviceError, "nonsense"),
        ({"device_ids": TWO, "output_device": "nonsense"}, DeviceError, "nonsense"),
        ({"device_ids": TWO, "output_device": "emulated:5"}, DeviceError, "not among device_ids"),
        ({"device_ids": TWO, "dim": "rows"}, PlanError, "rows"),
        ({"device_ids": TWO, "splt": 3}, TypeError, r"DataParallel\(\) .* 'splt'"),
        ({"module": torch.relu}, CaptureError, "nn.Module"),
    ],
)
def test_nonsense_is_refused(arguments, error, words):
    with pytest.raises(error, match=words):
        DataParallel(**{"module": net(), **arguments})


def test_it_is_built_and_used_as_torchs_is():
    plain = net()
    positional = DataParallel(plain, TWO, None, 0)
    assert positional.training and not positional.eval().training and not plain.training
    wrapped = nn.DataParallel(net())
    with torch.no_grad():
        for parameter in wrapped.parameters():
            parameter.add_(1.0)
    positional.load_state_dict(wrapped.state_dict() if "module.0.weight" in wrapped.state_dict() else {
        f"module.{key}": value for key, value in wrapped.state_dict().items()})  # fmt: skip
    assert torch.equal(plain[0].weight, net()[0].weight + 1)
    positional.load_state_dict(net().state_dict())
    assert torch.equal(plain[0].weight, net()[0].weight)
    twin = copy.deepcopy(positional)
    assert isinstance(twin, DataParallel) and twin.device_ids == TWO and twin.module is not plain
    assert "DataParallel" in repr(twin) and "emulated:1" in repr(twin)
