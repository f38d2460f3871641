"""Two lanes of one accelerator: a model of parallel chains on two of its streams, which one CUDA graph can record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import rig
import torch
from rig import FIRST, KIND
from torch import nn

import autopar
from autopar.session.compiled import Compiled

pytestmark = pytest.mark.gpu


class Towers(nn.Module):
    """Two chains of linear layers and norms over one input, and the sum of their results."""

    def __init__(self) -> None:
        super().__init__()
        self.towers = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 32)) for _ in range(2)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([tower(x) for tower in self.towers]).sum(0)


@pytest.fixture
def model() -> Iterator[Towers]:
    torch.manual_seed(0)
    with torch.no_grad():
        yield Towers().eval().to(FIRST)


def on_two_lanes(model: Towers, x: torch.Tensor) -> Compiled:
    machine = rig.machine(1)
    two = [replace(device, lanes=2) for device in machine.devices if device.name == FIRST]
    alone = autopar.Machine(tuple(two))
    fast = autopar.compile(model, alone, policy="heft", split=None, outputs="as_placed", example_inputs=(x,))
    assert {task.lane for task in fast.plan.placed} == {f"{FIRST}/0", f"{FIRST}/1"}
    return fast


def test_lanes_of_one_accelerator_wait_for_each_other_alone(model: Towers) -> None:
    """The host waits for nothing, or no graph could record the call."""
    inputs = [torch.randn(16, 32).to(FIRST) for _ in range(6)]
    expected = [model(x) for x in inputs]
    fast = on_two_lanes(model, inputs[0])
    fast(inputs[0])
    rig.synchronize()
    module = torch.get_device_module(KIND)
    module.set_sync_debug_mode("error")
    try:
        found = [fast(x) for x in inputs]
    finally:
        module.set_sync_debug_mode("default")
    assert rig.error(found, expected) < 1e-5
    fast.close()


@pytest.mark.skipif(KIND != "cuda", reason="CUDA alone has graphs")
def test_a_cuda_graph_records_a_call_on_two_lanes(model: Towers) -> None:
    x = torch.randn(16, 32, device=FIRST)
    fast = on_two_lanes(model, x)
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream(FIRST)
    side.wait_stream(torch.cuda.current_stream(FIRST))
    with torch.cuda.stream(side):
        for _ in range(3):
            fast(x)
    torch.cuda.current_stream(FIRST).wait_stream(side)
    # Other threads feed the other streams, and may allocate.
    with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
        y = fast(x)
    for _ in range(3):
        x.normal_()
        graph.replay()
        torch.testing.assert_close(y, model(x), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(fast(x), model(x), rtol=1e-5, atol=1e-5)
    fast.close()
