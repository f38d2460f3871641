"""Kernels on accelerators: those of a backend of `torch.compile`, CUDA graphs and inductor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import rig
import torch
from compilers import Folding, using
from rig import FIRST
from torch import nn

import autopar
from autopar.ir.program import Piece
from autopar.session.compiled import Compiled

pytestmark = pytest.mark.gpu

CUDA = pytest.mark.skipif(rig.KIND != "cuda", reason="CUDA alone has it")
KERNELS = [
    "aot_eager",
    *(pytest.param(name, marks=CUDA) for name in ("cudagraphs", "inductor")),
]


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Without verdicts of other tests, and without gradients."""
    monkeypatch.setenv("AUTOPAR_CACHE", str(tmp_path))
    with torch.no_grad():
        yield


def built(model: nn.Module, x: torch.Tensor, kernels: str, **options: Any) -> Compiled:
    fast = autopar.compile(model, kernels=kernels, example_inputs=(x,), **options)
    assert fast.serving == kernels, fast.explain()
    return fast


def devices_of_pieces(fast: Compiled) -> set[str]:
    (executor,) = fast._placement.session.with_kernels()
    lanes = executor.selection.candidate.executor._program.lanes
    return {lane.device for lane in lanes for step in lane.steps if isinstance(step, Piece)}


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("where", ["cpu", FIRST])
def test_the_lane_of_an_accelerator_runs_kernels(kernels: str, where: str) -> None:
    torch.manual_seed(0)
    model, x = rig.Towers().to(where), torch.randn(rig.ROWS, 32, device=where)
    fast = built(model, x, kernels, devices=["cpu", FIRST], policy=f"single {FIRST}")
    assert devices_of_pieces(fast) == {FIRST}
    for _ in range(3):
        given = torch.randn(rig.ROWS, 32, device=where)
        torch.testing.assert_close(fast(given), model(given), rtol=1e-5, atol=1e-5)
    fast.close()


def test_lanes_of_several_devices_run_kernels() -> None:
    torch.manual_seed(0)
    model, x = rig.Towers(), torch.randn(rig.ROWS, 32)
    pins = {"left": "cpu", "right": FIRST}
    fast = built(model, x, "aot_eager", devices=["cpu", FIRST], pins=pins, split=None)
    assert devices_of_pieces(fast) == {"cpu", FIRST}
    found = [fast(x + turn) for turn in range(4)]
    for turn, own in enumerate(found):
        torch.testing.assert_close(own, model(x + turn), rtol=1e-5, atol=1e-5)
    fast.close()


def test_a_library_for_cpus_compiles_their_lanes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    folding = Folding(devices=frozenset({"cpu"}))
    using(monkeypatch, folding, fastest="folding")
    torch.manual_seed(0)
    model, x = rig.Towers(), torch.randn(rig.ROWS, 32)
    pins = {"left": "cpu", "right": FIRST}
    fast = autopar.compile(model, ["cpu", FIRST], pins=pins, split=None, kernels="auto", example_inputs=(x,))
    assert fast.serving == "folding" and devices_of_pieces(fast) == {"cpu"}
    torch.testing.assert_close(fast(x), model(x), rtol=1e-5, atol=1e-5)
    fast.close()
    alone = autopar.compile(model.to(FIRST), [FIRST], kernels="auto", example_inputs=(x.to(FIRST),))
    assert alone.serving == "eager"
    torch.testing.assert_close(alone(x.to(FIRST)), model(x.to(FIRST)), rtol=1e-5, atol=1e-5)
    alone.close()


@pytest.mark.parametrize("kernels", KERNELS)
def test_changed_weights_are_seen(kernels: str) -> None:
    torch.manual_seed(0)
    model, x = rig.MLP().to(FIRST), torch.randn(rig.ROWS, 32, device=FIRST)
    fast = built(model, x, kernels, devices=[FIRST])
    for _ in range(3):
        model.fc1.weight.mul_(1.5)
        torch.testing.assert_close(fast(x), model(x), rtol=1e-5, atol=1e-5)
    fast.close()


@pytest.mark.parametrize("kernels", KERNELS)
def test_results_of_earlier_calls_stay(kernels: str) -> None:
    """Replays on two streams of the caller, none of which waits for the other."""
    torch.manual_seed(0)
    model = rig.MLP().to(FIRST)
    inputs = [torch.randn(rig.ROWS, 32, device=FIRST) for _ in range(6)]
    expected = [model(x) for x in inputs]
    fast = built(model, inputs[0], kernels, devices=[FIRST])
    streams = [torch.Stream(device=FIRST) for _ in range(2)]
    before = torch.accelerator.current_stream(FIRST)
    rig.synchronize()
    found = []
    for turn, x in enumerate(inputs):
        torch.accelerator.set_stream(streams[turn % 2])
        rig.sleep(0.001)
        found.append(fast(x))
    torch.accelerator.set_stream(before)
    rig.synchronize()
    for own, right in zip(found, expected, strict=True):
        torch.testing.assert_close(own, right, rtol=1e-5, atol=1e-5)
    fast.close()


@pytest.mark.parametrize("kernels", KERNELS)
def test_a_training_step_runs_kernels(kernels: str) -> None:
    torch.manual_seed(0)
    model, other = rig.MLP().to(FIRST), rig.MLP().to(FIRST)
    other.load_state_dict(model.state_dict())
    criterion = nn.CrossEntropyLoss()
    optimizer, rival = (torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (model, other))
    step = autopar.train_step(model, criterion, optimizer, [FIRST], kernels=kernels)
    for turn in range(8):
        x, y = torch.randn(rig.ROWS, 32, device=FIRST), torch.randint(10, (rig.ROWS,), device=FIRST)
        loss = step(x, y)
        with torch.enable_grad():
            rival.zero_grad()
            right = criterion(other(x), y)
            right.backward()
        rival.step()
        torch.testing.assert_close(loss, right.detach(), rtol=1e-5, atol=1e-5, msg=f"step {turn}")
    assert kernels in step.serving, step.serving
    step.close()


@CUDA
def test_auto_races_what_compiles_for_the_device() -> None:
    torch.manual_seed(0)
    model, x = rig.MLP().to(FIRST), torch.randn(rig.ROWS, 32, device=FIRST)
    fast = autopar.compile(model, [FIRST], kernels="auto", example_inputs=(x,))
    text = fast.explain()
    assert "cudagraphs" in text and "inductor" in text and "onnxruntime" not in text
    torch.testing.assert_close(fast(x), model(x), rtol=1e-5, atol=1e-5)
    fast.close()


@CUDA
def test_a_recording_reads_weights_where_they_are() -> None:
    """Changed in place they are read anew without another recording; elsewhere, they are not the recording's."""
    torch.manual_seed(0)
    model, x = rig.MLP().to(FIRST), torch.randn(rig.ROWS, 32, device=FIRST)
    fast = built(model, x, "cudagraphs", devices=[FIRST])
    for change in (lambda: model.fc1.weight.mul_(1.5), lambda: model.fc1.weight.data.mul_(1.5)):
        change()
        torch.testing.assert_close(fast(x), model(x), rtol=1e-5, atol=1e-5)
        assert fast.serving == "cudagraphs"
    model.fc1.weight.data = torch.randn_like(model.fc1.weight)
    torch.testing.assert_close(fast(x), model(x), rtol=1e-5, atol=1e-5)
    fast.close()


@CUDA
def test_a_recording_has_its_own_workspaces() -> None:
    """`torch.compile` clears those of cuBLAS that are not in use for its own recordings."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4096, 512), nn.ReLU(), nn.Linear(512, 64)).to(FIRST)
    x = torch.randn(8, 4096, device=FIRST)
    fast = built(model, x, "cudagraphs", devices=[FIRST])
    for _ in range(3):
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
        filled = [torch.full((1 << 22,), torch.nan, device=FIRST) for _ in range(8)]
        torch.testing.assert_close(fast(x), model(x), rtol=1e-5, atol=1e-5)
        assert fast.serving == "cudagraphs" and all(bool(each.isnan().all()) for each in filled)
    fast.close()


def test_a_cap_without_room_for_kernels_leaves_them_out() -> None:
    torch.manual_seed(0)
    model, x = rig.MLP(256).to(FIRST), torch.randn(rig.ROWS, 32, device=FIRST)
    peak = dict(autopar.plan(model, [FIRST], example_inputs=(x,)).peaks)[FIRST]
    for cap, serving in ((2 * peak, "eager"), (4 * peak, "aot_eager")):
        fast = autopar.compile(model, [FIRST], memory={FIRST: cap}, kernels="aot_eager", example_inputs=(x,))
        assert fast.serving == serving
        fast.close()
