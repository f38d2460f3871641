"""The whole path on a CPU and an accelerator; skipped without one. On what, `--accelerator` in `conftest.py` says."""

from __future__ import annotations

import copy
import threading

import pytest
import rig
import torch
from models import eager_step
from rig import FIRST
from torch import nn
from torch.utils import _pytree as pytree

import autopar
from autopar.runtime.lanes import accelerator
from autopar.session import compare as equal

pytestmark = pytest.mark.gpu

DEVICES = ["cpu", FIRST]
SLEEP = 0.01
"""Seconds: far more than it takes the host to get ahead."""


class Net(nn.Module):
    """Two towers, a buffer that changes and a view: a task for every device and a copy each way."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(width, width), nn.Linear(width, width)
        self.norm = nn.BatchNorm1d(width)
        self.out = nn.Linear(2 * width, 10)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        left, right = self.left(x), self.right(x).tanh()
        for _ in range(3):
            left, right = torch.relu(left + right), right * 0.5 + left.flip(0)
        both = torch.cat([self.norm(left), right], 1)
        return self.out(both), both[:, ::2]


def in_turn(costed) -> dict[str, str]:
    """Runs of tasks on the CPU and the accelerator by turns: as many hand-offs as there can be."""
    names = [device.name for device in costed.machine.devices]
    return {run.name: names[place % len(names)] for place, run in enumerate(costed.clusters)}


def alike(found, expected) -> bool:
    return all(equal.error(a, b) <= equal.limit(b) for a, b in zip(found, expected, strict=True))


@pytest.fixture
def slow(monkeypatch):
    """Every copy starts late on its stream and everything that hands off sleeps: what does not wait is wrong."""
    to_host, to_device = accelerator.to_host, accelerator.to_device

    def late_to_host(value):
        rig.sleep(SLEEP)
        return to_host(value)

    def late_to_device(value, device):
        rig.sleep(SLEEP)
        made = to_device(value, device)
        rig.sleep(SLEEP)
        return made

    monkeypatch.setattr(accelerator, "to_host", late_to_host)
    monkeypatch.setattr(accelerator, "to_device", late_to_device)


@pytest.mark.parametrize("where", DEVICES)
@torch.no_grad()
def test_late_copies_are_waited_for(slow, where):
    """Input, parameters and result on either side, several calls in flight, nothing synchronised in between."""
    model = Net().eval()
    reference = copy.deepcopy(model)
    fast = autopar.compile(model.to(where), DEVICES, policy=in_turn, split=None, check="never")
    inputs = [torch.randn(32, 64) for _ in range(4)]
    found = [fast(x.to(where)) for x in inputs]
    for x, outputs in zip(inputs, found, strict=True):
        assert all(tensor.device.type == torch.device(where).type for tensor in outputs)
        assert alike([tensor.cpu() for tensor in outputs], reference(x))
    fast.close()


@torch.no_grad()
def test_a_result_may_be_dropped_while_the_caller_still_computes_with_it():
    """Its memory must not go back to the lane's stream before the caller's stream is done."""
    model = Net(256).eval().to(FIRST)
    fast = autopar.compile(model, DEVICES, policy="round_robin", split=2)
    x = torch.randn(256, 256, device=FIRST)
    expected = [tensor.sum() for tensor in fast(x)]
    sums = []
    for _ in range(20):
        made = fast(x)
        rig.sleep(SLEEP / 10)
        sums.append([tensor.sum() for tensor in made])
        del made
    assert all(alike(found, expected) for found in sums)
    fast.close()


@torch.no_grad()
def test_pinned_input_may_be_overwritten_after_the_call(slow):
    model = Net().eval()
    fast = autopar.compile(
        model, DEVICES, policy=f"single {FIRST}", split=None, check="never", outputs="as_placed"
    )
    x = torch.randn(32, 64).pin_memory()
    expected = model(x)
    found = fast(x)
    x.fill_(float("nan"))
    assert alike([tensor.cpu() for tensor in found], expected)
    fast.close()


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.bool, torch.bfloat16], ids=str)
def test_a_large_input_is_staged_in_chunks(slow, monkeypatch, dtype):
    monkeypatch.setattr(accelerator, "CHUNK", 1000)
    whole = torch.randn(64, 63).to(dtype)
    for x in (whole, whole.t(), whole[:, 1:], whole[1:], whole.conj(), whole.view(8, 8, 9, 7)):
        fast = autopar.compile(lambda x: (x.clone(), x[0]), rig.machine(1), policy=f"single {FIRST}")
        for found, expected in zip(fast(x), (x, x[0]), strict=True):
            assert torch.equal(found, expected)
        fast.close()


@torch.no_grad()
def test_conjugate_views_come_back_right(slow):
    """Torch conjugates on the host without waiting for the copy."""

    def function(x):
        return (x * 2).conj(), torch.imag((x * 3).conj())

    fast = autopar.compile(function, DEVICES, policy=f"single {FIRST}", split=None, check="never")
    x = torch.randn(512, 512, dtype=torch.complex64)
    assert alike(fast(x), function(x))
    fast.close()


@torch.no_grad()
def test_a_parameter_of_the_other_device_comes_with_the_call():
    """A program of one copy and nothing else."""
    weight = nn.Parameter(torch.randn(2048, 2048, device=FIRST), requires_grad=False)

    class Weight(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = weight

        def forward(self, x):
            return self.weight.t(), x

    fast = autopar.compile(Weight(), DEVICES, split=None, check="never")
    for _ in range(3):
        rig.sleep(SLEEP)
        weight.add_(1)
        assert torch.equal(fast(torch.ones(2))[0].cpu(), weight.t().cpu())
    fast.close()


@torch.no_grad()
def test_changed_parameters_are_seen():
    model = Net().eval()
    fast = autopar.compile(model, DEVICES, policy=in_turn, split=None)
    x = torch.randn(16, 64)
    fast(x)
    model.left.weight.mul_(2)
    assert alike(fast(x), model(x))
    model.right.weight.data.mul_(2)
    fast.refresh()
    assert alike(fast(x), model(x))
    fast.close()


@torch.no_grad()
def test_recorded():
    fast = autopar.compile(Net().eval(), DEVICES, policy=in_turn, split=None)
    x = torch.randn(512, 64)
    with fast.record() as timeline:
        for _ in range(3):
            fast(x)
    last = timeline.last
    assert {f"{FIRST}/0", f"{FIRST}/in", "cpu/0"} <= {span.lane for span in last.spans}
    assert all(0 <= span.start <= span.end for span in last.spans)
    # Host and device clocks are two, read one after the other: on a busy machine a thread's turn lies in between.
    assert max(span.end for span in last.spans) <= last.makespan + 0.1
    assert not last.label
    fast.close()


@torch.no_grad()
def test_nothing_synchronises_in_secret_on_one_accelerator():
    model = Net().eval().to(FIRST)
    fast = autopar.compile(model, DEVICES, policy=f"single {FIRST}", split=None)
    x = torch.randn(32, 64, device=FIRST)
    fast(x)
    rig.synchronize()
    module = torch.get_device_module(rig.KIND)
    if not hasattr(module, "set_sync_debug_mode"):
        pytest.skip(f"torch.{rig.KIND} cannot tell when an operator makes the host wait")
    module.set_sync_debug_mode("error")
    try:
        found = fast(x)
    finally:
        module.set_sync_debug_mode("default")
    assert alike(found, model(x))
    fast.close()


@pytest.mark.parametrize("where", DEVICES)
@torch.no_grad()
def test_memory_is_flat_over_100_calls(where):
    model = Net(256).eval().to(where)
    fast = autopar.compile(model, DEVICES, policy="round_robin", split=2)
    x = torch.randn(256, 256, device=where)

    def after(calls: int) -> tuple[int, int]:
        for _ in range(calls):
            fast(x)
        rig.synchronize()
        return torch.accelerator.memory_allocated(), torch.accelerator.memory_reserved()

    after(20)
    allocated, reserved = after(5)
    later = after(100)
    assert later[0] <= allocated and later[1] <= reserved + (32 << 20)
    fast.close()


@torch.no_grad()
def test_callers_on_streams_of_their_own():
    model = Net().eval().to(FIRST)
    fast = autopar.compile(model, DEVICES, policy=in_turn, split=None)
    wrong: list[object] = []

    def caller(seed: int) -> None:
        with torch.no_grad(), torch.Stream(device=FIRST):
            for turn in range(10):
                x = torch.full((32, 64), float(seed + turn), device=FIRST) / 50
                rig.sleep(SLEEP / 20)
                x = x + torch.linspace(0, 1, 64, device=FIRST)
                if not alike(fast(x), model(x)):
                    wrong.append((seed, turn))

    fast(torch.randn(32, 64, device=FIRST))
    threads = [threading.Thread(target=caller, args=(seed,)) for seed in (1, 20, 40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    fast.close()


@torch.no_grad()
def test_the_callers_device_and_stream_are_as_before():
    model = Net().eval()
    fast = autopar.compile(model, DEVICES, policy=in_turn, split=None)
    x = torch.randn(8, 64)
    with torch.Stream(device=FIRST):
        before = torch.accelerator.current_device_index(), torch.accelerator.current_stream()
        assert alike(fast(x), model(x))
        assert (torch.accelerator.current_device_index(), torch.accelerator.current_stream()) == before
    fast.close()


@torch.no_grad()
def test_a_call_that_fails_on_the_accelerator_changes_nothing():
    """A call needs more memory than there is: every stream is drained, and the next call works."""

    def function(x, much):
        return (x.tanh() * 2).expand(much.shape[0], -1).contiguous().sum(0)

    fast = autopar.compile(function, DEVICES, policy=f"single {FIRST}", split=None, check="never")
    x, (free, total) = torch.ones(1, 1 << 20), torch.accelerator.get_memory_info(0)
    if rig.KIND == "strict":
        torch.strict.set_poison(False)  # which would touch all of it
    held = torch.empty(max(0, free - total * 3 // 10), dtype=torch.uint8, device=FIRST)
    with pytest.raises(autopar.RunError, match="out of memory"):
        fast(x, torch.empty(total * 6 // 10 // x.nbytes, 0))
    del held
    torch.accelerator.empty_cache()
    assert alike([fast(x, torch.empty(2, 0))], [function(x, torch.empty(2, 0))])
    fast.close()


@torch.no_grad()
def test_one_lane_is_called_in_the_callers_thread_on_its_streams() -> None:
    model = Net().to(FIRST).eval()
    fast = autopar.compile(model, [FIRST], split=None)
    inputs = [torch.randn(32, 64).to(FIRST) for _ in range(4)]
    found = [fast(x) for x in inputs]
    (prepared,) = fast._placement.session.graphs[0].programs.values()
    assert [lane.name for lane in prepared.program.lanes] == [f"{FIRST}/0"]
    for own, x in zip(found, inputs):
        assert alike(own, model(x))
    fast.close()


class Moving(nn.Module):
    """Takes inputs from anywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x.to(self.linear.weight.device))


@torch.no_grad()
def test_an_input_on_another_device_is_moved() -> None:
    model = Moving().to(FIRST).eval()
    fast = autopar.compile(model, [FIRST], split=None)
    for _ in range(5):
        for x in (torch.randn(32, 64), torch.randn(32, 64).to(FIRST)):
            assert alike([fast(x)], [model(x)])
    fast.close()


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.AdamW])
def test_large_weights_are_updated_in_place(make) -> None:
    model = rig.MLP(512).to(FIRST)
    other = copy.deepcopy(model)
    step = autopar.train_step(model, nn.CrossEntropyLoss(), make(model.parameters(), lr=0.01), [FIRST])
    rival = make(other.parameters(), lr=0.01)
    for _ in range(4):
        x, y = torch.randn(16, 32).to(FIRST), torch.randint(10, (16,)).to(FIRST)
        loss = step(x, y)
        expected = eager_step(other, nn.functional.cross_entropy, rival, x, y)
        assert alike([loss], [expected.detach()])
    assert "in place" in step.explain()
    assert rig.error(model.state_dict().values(), other.state_dict().values()) < 1e-4
    step.close()


@pytest.mark.skipif(rig.KIND != "cuda", reason="CUDA alone has TF32")
@torch.no_grad()
def test_a_model_of_the_cpu_runs_in_the_precision_of_the_accelerator(monkeypatch) -> None:
    """By default cuDNN rounds the factors of float32 convolutions and recurrent layers to TF32."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    torch.manual_seed(0)
    models = nn.Conv2d(64, 64, 3), nn.GRU(64, 64, batch_first=True)
    for model, x in zip(models, (torch.randn(8, 64, 16, 16), torch.randn(8, 5, 64))):
        fast = autopar.compile(model.eval(), ["cpu", FIRST], policy=f"single {FIRST}", check="always")
        found, expected = (pytree.tree_leaves(each(x))[0] for each in (fast, model))
        assert equal.error(found, expected) < 1e-2
        fast.close()
