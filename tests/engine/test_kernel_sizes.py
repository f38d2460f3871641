"""Kernels that serve calls of all sizes: compiled once, right for each, and dropped where they are not."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from compilers import Folding, Here, alone, using
from sized_kernels import SIZES, Attention, Open, alike, executors, ids, ready
from torch import nn

import autopar
from autopar.costs.clustering import fuse
from autopar.ir.costed import CostedGraph
from autopar.pipeline import kernel_calls, kernel_choice, stages
from autopar.pipeline.kernel_verdict import signature
from autopar.runtime import trial, tuned
from autopar.runtime.kernels import STACKS, Compilation, Stack

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with alone(tmp_path, monkeypatch):
        yield


def test_one_kernel_serves_all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    stack = Open()
    using(monkeypatch, stack, fastest="folding")
    model = Attention().eval()
    fast = ready(model)
    built = stack.built
    for sizes in (*SIZES, *SIZES):
        alike(fast, model, sizes)
    assert stack.built == built
    found = executors(fast)
    assert len(found) == len(SIZES) and {each.serving for each in found} == {"folding"}
    assert "which are compiled for all sizes" in fast.explain()


def test_no_kernels_are_compiled_for_a_graph_that_one_for_all_sizes_has_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stack = Open()
    using(monkeypatch, stack, fastest="folding")
    model = Attention().eval()
    fast = autopar.compile(model, ["cpu"], kernels="auto")
    for sizes in SIZES[:2]:
        alike(fast, model, sizes)
    fast.wait()
    fixed, open = fast._placement.backend.served
    assert not fixed.programs and len(open.programs) == 1
    for sizes in SIZES:
        alike(fast, model, sizes)
    assert not fixed.programs and fast.serving == "folding"


def test_calls_of_any_size_let_it_be_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    stack = Open()
    using(monkeypatch, stack, fastest="folding")
    model = Attention().eval()
    fast = autopar.compile(model, ["cpu"], kernels="auto")
    for sizes in SIZES:
        alike(fast, model, sizes)
    fast.wait()
    assert {each.serving for each in executors(fast)} == {"folding"}
    for sizes in SIZES:
        alike(fast, model, sizes)


def test_axes_that_are_too_short_have_programs_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    using(monkeypatch, Open(), fastest="folding")
    model = Attention().eval()
    fast = ready(model)
    for sizes in ((1, 5), (5, 1), (1, 1), (0, 3)):
        alike(fast, model, sizes)


def test_weights_that_change_are_seen_in_all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    using(monkeypatch, Open(), fastest="folding")
    model = Attention().eval()
    fast = ready(model)
    for sizes in SIZES[1:6]:
        alike(fast, model, sizes)
        model.out.weight.mul_(1.5)
        alike(fast, model, sizes)
    for sizes in SIZES[1:6]:
        alike(fast, model, sizes)
    fast.wait()
    # The calls that were to be replaced had other sizes than the one compiled for.
    assert {each.serving for each in executors(fast)} == {"folding"}
    alike(fast, model, SIZES[7])


def test_kernels_of_weights_that_have_changed_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of sizes that are not called again."""
    using(monkeypatch, Open(), fastest="folding")
    model = Attention().eval()
    fast = ready(model)
    (executor,) = executors(fast)
    old = weakref.ref(executor.chosen)
    assert old() is not None
    for sizes in SIZES[2:5]:
        alike(fast, model, sizes)
    model.out.weight.mul_(1.5)
    for sizes in SIZES[5:9]:
        alike(fast, model, sizes)
    fast.wait()
    gc.collect()
    assert old() is None and executor.serving == "folding"


class Gaps(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.float() * 2).relu()[:, 1:, None].expand(-1, -1, 3) + 1


def test_layouts_of_any_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    using(monkeypatch, Open(), fastest="folding")
    model = Gaps()
    fast = ready(model)
    for sizes in SIZES:
        x = ids(sizes)
        ours, right = fast(x), model(x)
        assert torch.equal(ours, right) and ours.stride() == right.stride()


def test_each_of_some_sizes_has_its_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    def passed() -> float:
        """Each call takes a second, however busy the machine is."""
        clock[0] += 1.0
        return clock[0]

    class Slow(Open):
        """Kernels that are slow for one size."""

        def load(self, work: Compilation) -> Callable[..., Any]:
            call = super().load(work)

            def slow(*tensors: torch.Tensor) -> Any:
                if any(tensor.shape[:2] == SIZES[3] for tensor in tensors):
                    clock[0] += 1.0
                return call(*tensors)

            return slow

    using(monkeypatch, Slow(), fastest="folding")
    for name, value in (("CALLS", 4), ("SPAN_S", 0.0), ("TURN_S", 0.0), ("SETTLE_S", 0.0), ("WORTH", 0.0)):
        monkeypatch.setattr(trial, name, value)
    monkeypatch.setattr(tuned, "time", SimpleNamespace(perf_counter=passed, monotonic=time.monotonic))
    model = Attention().eval()
    fast = ready(model)
    for sizes in (SIZES[1], SIZES[2], SIZES[3]):
        for _ in range(60):
            alike(fast, model, sizes)
    assert [each.serving for each in executors(fast)] == ["folding", "folding", "eager"]


def test_a_verdict_holds_for_sizes_of_a_magnitude(monkeypatch: pytest.MonkeyPatch) -> None:
    using(monkeypatch, Open(), fastest="folding")
    model = Attention().eval()

    def key(first: tuple[int, int], second: tuple[int, int]) -> str:
        torch._dynamo.reset()
        fast = autopar.compile(model, ["cpu"], kernels="auto")
        fast(ids(first))
        fast(ids(second))
        (executor,) = executors(fast)
        return signature(executor._choice.choose.form)

    usual = key((4, 18), (5, 20))
    assert usual == key((4, 18), (6, 21))
    assert usual != key((4, 18), (40, 200))
    # As if tasks took longer or shorter: other clusters, in another order.
    cost = stages.cost
    for shortest_s in (0.0, 1.0):

        def clustered(*args: Any, shortest_s: float = shortest_s, **options: Any) -> CostedGraph:
            made = cost(*args, **options)
            return replace(made, clusters=fuse(made.graph, made.machine, made.costs, shortest_s=shortest_s))

        monkeypatch.setattr(stages, "cost", clustered)
        assert usual == key((4, 18), (5, 20))


@pytest.mark.parametrize("door", ["loop", "step"])
def test_training_with_one_kernel_for_all_sizes(door: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Lifted(Open):
        frozen = False

    stack = Lifted("lifted")
    using(monkeypatch, stack, fastest="lifted")
    found: dict[str, list[Any]] = {}
    for kind in ("eager", "auto"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        criterion = nn.MSELoss()
        with torch.enable_grad():
            found[kind] = _losses(door, kind, model, optimizer, criterion)
        if kind == "auto":
            # For each of the first four sets of sizes, forward and backward would be eight, beside the first capture's.
            assert 0 < stack.built < 10
    torch.testing.assert_close(found["eager"], found["auto"])


def _losses(door: str, kind: str, model: nn.Module, optimizer: Any, criterion: nn.Module) -> list[Any]:
    """Losses of steps of many sizes, and the weights after them."""
    if door == "step":
        step = autopar.train_step(model, criterion, optimizer, ["cpu"], kernels=kind)
        wait: Any = step.wait
    else:
        fast = autopar.compile(model, ["cpu"], kernels=kind)
        wait = fast.wait
    losses = []
    for sizes in (*SIZES, *SIZES, *SIZES):
        generator = torch.Generator().manual_seed(len(losses))
        x, y = (torch.randn(*sizes, width, generator=generator) for width in (8, 4))
        if door == "step":
            losses.append(step(x, y).item())
        else:
            optimizer.zero_grad()
            loss = criterion(fast(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        if len(losses) in (5, 9):
            wait()
    return [*losses, *(parameter.detach() for parameter in model.parameters())]


# Inductor takes half a minute for each, and OpenVINO 15 s.
@pytest.mark.parametrize(
    "stack",
    [
        stack if stack.name == "onnxruntime" else pytest.param(stack, marks=pytest.mark.release)
        for stack in STACKS
        if stack.open
    ],
    ids=lambda stack: stack.name,
)
def test_each_library_compiles_for_all_sizes(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    if missing := stack.missing():
        pytest.skip(missing)
    monkeypatch.setattr(kernel_choice, "CompilerProcess", Here)
    compared: list[Any] = []
    off = kernel_calls._off
    monkeypatch.setattr(kernel_calls, "_off", lambda *given: compared.append(off(*given)) or compared[-1])
    torch.manual_seed(1)
    model = Attention().eval()
    fast = autopar.compile(model, ["cpu"], kernels=stack.name)
    for sizes in SIZES[:3]:
        alike(fast, model, sizes)
    fast.wait()
    for sizes in (*SIZES, *SIZES):
        alike(fast, model, sizes)
    found = executors(fast)
    assert len(found) == len(SIZES) and {each.serving for each in found} == {stack.name}, fast.explain()
    assert len(compared) > kernel_calls.COMPARED and max(compared) <= 1


def test_the_report_says_for_which_sizes_kernels_were_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    using(monkeypatch, Open(), fastest="folding")
    model = Attention().eval()
    fast = autopar.compile(model, ["cpu"], kernels="auto")
    fast(ids(SIZES[0]))
    fast.wait()
    assert "; for ids [3, 4]\n" in fast.explain()
    text = ready(model).explain()
    assert "; for ids" not in text and "; for all sizes from 2 on, chosen with ids [4, 6]\n" in text
    using(monkeypatch, Folding(), fastest="folding")
    fast = autopar.compile(model, ["cpu"], kernels="auto", dynamic=True)
    for sizes in SIZES[:2]:
        fast(ids(sizes))
        fast.wait()
    text = fast.explain()
    assert all(f"; for ids {list(sizes)}\n" in text for sizes in SIZES[:2])


def test_the_report_counts_sizes_for_which_kernels_were_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    using(monkeypatch, Open(), fastest="folding")
    fast = ready(Attention().eval())
    for sizes in SIZES:
        fast(ids(sizes))
    own, *others = [each for each in executors(fast) if each.chosen is not None]
    assert own.note and "other sets of sizes" not in own.note
    for executor, ratio in zip(others[:2], (1.5, 1.25)):
        executor._refute(executor.chosen, ratio)
    assert (
        "eager serves 2 other sets of sizes, for which kernels took up to 1.50 of its time" in fast.explain()
    )
