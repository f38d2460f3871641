"""`backend="autopar"` in torch.compile and in `Module.compile`."""

from __future__ import annotations

import copy
import gc
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
from pairs import alike, gradients
from torch import nn

from autopar import DeviceError, PlanError
from autopar import torch_backend as entry

DEVICES = ["cpu", "emulated:0"]
OPTIONS: dict[str, Any] = {"devices": DEVICES, "policy": "round_robin", "split": None}


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Softmax(-1), nn.Linear(8, 6))


@pytest.fixture(autouse=True, scope="module")
def named() -> None:
    """The name is registered, as installing the package does."""
    if "autopar" not in torch._dynamo.list_backends(exclude_tags=()):
        torch._dynamo.register_backend(entry.autopar, "autopar")


def test_the_package_declares_the_name():
    declared = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert (
        '[project.entry-points.torch_dynamo_backends]\nautopar = "autopar.torch_backend:autopar"' in declared
    )
    for point in entry_points(group="torch_dynamo_backends", name="autopar"):
        assert point.load() is entry.autopar


@pytest.mark.slow
def test_torch_compile_by_name_runs_placed_and_trains():
    plain = network()
    fast = torch.compile(copy.deepcopy(plain), backend="autopar", options=OPTIONS)
    x = torch.randn(4, 6)
    with torch.no_grad():
        assert alike(fast(x), plain(x))
    for size in (4, 3):
        expected = gradients(plain, lambda s=size: plain(x[:s]).sum())
        found = gradients(fast._orig_mod, lambda s=size: fast(x[:s]).sum())
        assert alike(found, expected)
    served = entry.backend(OPTIONS).graphs
    assert len(served) >= 2 and all(graph.plans and not graph.written for graph in served)


def test_a_module_is_compiled_in_place():
    class Own(nn.Module):  # of a class of torch's own, torch.compile takes no graph here
        def __init__(self) -> None:
            super().__init__()
            self.inner = network()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)

    plain = Own().eval()
    model = copy.deepcopy(plain)
    model.compile(backend="autopar", options=OPTIONS)
    x, backend = torch.randn(4, 6), entry.backend(OPTIONS)
    before = backend.calls
    with torch.no_grad():
        assert type(model) is Own and alike(model(x), plain(x))
    assert backend.calls == before + 1


@pytest.mark.slow
def test_graphs_of_equal_options_share_a_backend_while_they_live():
    first = entry.backend(OPTIONS)
    assert entry.backend({**OPTIONS, "devices": list(DEVICES)}) is first
    assert entry.backend({**OPTIONS, "check": "never"}) is not first
    held = id(first), len(entry._backends)
    del first
    gc.collect()
    entry.backend(OPTIONS)
    assert len(entry._backends) < held[1]


@pytest.mark.parametrize(
    ("options", "kind", "sentence"),
    [
        ({"device": ["cpu"]}, PlanError, "no option 'device'; it has devices, "),
        ({"devices": ["cpu", "cuda:97"]}, DeviceError, "no device 'cuda:97' here"),
        ({"devices": ["cpu"], "policy": "fastest"}, PlanError, "policy='fastest' is not known"),
        ({"fullgraph": True}, PlanError, "no option 'fullgraph'"),
    ],
)
def test_wrong_options_are_errors(options, kind, sentence):
    with pytest.raises(kind, match=sentence):
        entry.backend(options)
    model = torch.compile(network(), backend="autopar", options=options)
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=sentence):
        model(torch.randn(4, 6))


def test_modes_are_those_of_another_backend():
    model = torch.compile(network(), backend="autopar", mode="max-autotune")
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="no mode='max-autotune'"):
        model(torch.randn(4, 6))
