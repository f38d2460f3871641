"""A training step that raises leaves parameters, buffers, optimizer state and gradients as they were."""

from __future__ import annotations

import functools
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from plain_loop import Pair, batches, mlp
from torch import library, nn
from torch.autograd import grad_mode
from torch.optim import SGD, Adagrad, Adam
from torch.utils.flop_counter import FlopCounterMode

import autopar

pytestmark = pytest.mark.slow

MOMENTUM = functools.partial(SGD, lr=0.1, momentum=0.9)


@library.custom_op("autopar_tests::fragile", mutates_args=())
def fragile(x: torch.Tensor, in_backward: bool) -> torch.Tensor:
    if not in_backward and x.abs().max() > 1e3:
        raise ValueError("too much ahead")
    return x.clone()


@library.custom_op("autopar_tests::fragile_back", mutates_args=())
def fragile_back(gradient: torch.Tensor, x: torch.Tensor, in_backward: bool) -> torch.Tensor:
    if in_backward and x.abs().max() > 1e3:
        raise ValueError("too much back")
    return gradient.clone()


fragile.register_fake(lambda x, in_backward: torch.empty_like(x))
fragile_back.register_fake(lambda gradient, x, in_backward: torch.empty_like(gradient))


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(inputs[0])
    ctx.in_backward = inputs[1]


fragile.register_autograd(
    lambda ctx, gradient: (fragile_back(gradient, ctx.saved_tensors[0], ctx.in_backward), None),
    setup_context=_keep,
)


class Fragile(nn.Module):
    """Fails where its input is large, ahead or in the backward; keeps statistics."""

    def __init__(self, in_backward: bool) -> None:
        super().__init__()
        # A bias in front of the norm would have a gradient of nothing but rounding.
        self.first, self.norm, self.last = nn.Linear(12, 16, bias=False), nn.BatchNorm1d(16), nn.Linear(16, 5)
        self.in_backward = in_backward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        held = fragile(self.norm(self.first(x)) + x.sum(1, keepdim=True), self.in_backward)
        return self.last(held.tanh())


def snapshot(pair: Pair) -> dict[str, Any]:
    found = {name: tensor.clone() for name, tensor in pair.model.state_dict().items()}
    for index, entries in pair.optimizer.state_dict()["state"].items():
        found |= {f"{index} {key}": torch.as_tensor(value).clone() for key, value in entries.items()}
    for name, parameter in pair.model.named_parameters():
        found[f"{name} grad"] = None if parameter.grad is None else parameter.grad.clone()
    return found


def equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(
        (a is None and other[name] is None) or torch.equal(a, other[name]) for name, a in one.items()
    )


ADAM, ADAGRAD = functools.partial(Adam, lr=0.01), functools.partial(Adagrad, lr=0.1)


@pytest.mark.parametrize(
    ("optimizer", "accumulated", "in_backward"),
    [
        pytest.param(ADAM, False, True, id="adam-False-back"),
        pytest.param(ADAM, True, False, id="adam-True-ahead"),
        pytest.param(ADAGRAD, False, False, id="adagrad-False-ahead"),
        pytest.param(ADAGRAD, True, True, id="adagrad-True-back"),
        pytest.param(ADAM, False, False, id="adam-False-ahead", marks=pytest.mark.release),
        pytest.param(ADAM, True, True, id="adam-True-back", marks=pytest.mark.release),
        pytest.param(ADAGRAD, False, True, id="adagrad-False-back", marks=pytest.mark.release),
        pytest.param(ADAGRAD, True, False, id="adagrad-True-ahead", marks=pytest.mark.release),
    ],
)
def test_a_failed_step_leaves_everything_as_it_was(in_backward, accumulated, optimizer):
    pair = Pair(lambda: Fragile(in_backward), optimizer)
    data = batches(6)
    pair.same(data[:3])
    bad = data[0][0] * 1e5
    if accumulated:
        pair.step(*data[3], accumulate=True)
    before = snapshot(pair)
    with pytest.raises(autopar.RunError, match=r"too much.*") as caught:
        pair.step(bad, data[0][1])
    assert "fragile" in str(caught.value)
    assert equal(before, snapshot(pair))
    if accumulated:
        pair.optimizer.zero_grad()
        for ours, theirs in zip(pair.model.buffers(), pair.plain.buffers()):
            ours.copy_(theirs)
    pair.same(data[3:])
    pair.step.close()


def test_a_failed_first_step_leaves_everything_as_it_was():
    pair = Pair(mlp, MOMENTUM)
    x, y = batches(1)[0]
    before = snapshot(pair)
    with pytest.raises((autopar.AutoparError, IndexError)):
        pair.step(x, y + 100)
    assert equal(before, snapshot(pair))
    pair.same(batches(4))


@pytest.mark.parametrize("scaled", [False, True])
def test_a_hook_of_the_optimizer_that_raises_leaves_the_gradients_as_they_were(scaled):
    ours, theirs = (torch.amp.GradScaler("cpu", 2.0**10) if scaled else None for _ in range(2))
    pair = Pair(mlp, MOMENTUM, scaler=ours, clip_norm=0.1)
    pair.same(batches(2), scaler=theirs, clip_norm=0.1)

    def refuse(*_: Any) -> None:
        raise ValueError("not now")

    handle = pair.optimizer.register_step_pre_hook(refuse)
    before = snapshot(pair)
    with pytest.raises(ValueError, match="not now"):
        pair.step(*batches(1)[0])
    assert equal(before, snapshot(pair))
    assert ("scaler" if scaled else "refuse") in pair.step.explain()
    handle.remove()
    pair.same(batches(4), scaler=theirs, clip_norm=0.1)


class Refusing(SGD):
    """Steps by itself, and not when it is told to refuse."""

    refuses = False

    def step(self, closure: Any = None) -> Any:
        if self.refuses:
            raise ValueError("not now")
        return super().step(closure)


@pytest.mark.parametrize("way", ["optimizer", "hook", "accumulating"])
def test_an_error_after_the_backward_leaves_buffers_unchanged(way):
    pair = Pair(lambda: Fragile(False), functools.partial(Refusing, lr=0.1))
    pair.same(batches(3))
    before = snapshot(pair)

    def refuse(*_: Any) -> None:
        raise ValueError("not now")

    pair.optimizer.refuses = True
    handles = [] if way == "optimizer" else [pair.model.first.weight.register_hook(refuse)]
    with pytest.raises(ValueError, match="not now"):
        pair.step(*batches(4)[3], accumulate=way == "accumulating")
    assert equal(before, snapshot(pair))
    pair.optimizer.refuses = False
    for handle in handles:
        handle.remove()
    pair.same(batches(5)[3:])
    pair.step.close()


def test_wrong_gradients_are_refused_by_name(monkeypatch):
    from autopar.session import compiled_graph

    captured_at = compiled_graph.captured_at

    def bent(*arguments: Any) -> Any:
        found = captured_at(*arguments)
        graph = found.graph
        tasks = tuple(
            replace(task, target="aten.sigmoid_backward.default")
            if task.target == "aten.tanh_backward.default"
            else task
            for task in graph.tasks
        )
        return replace(found, graph=replace(graph, tasks=tasks))

    monkeypatch.setattr(compiled_graph, "captured_at", bent)
    pair = Pair(mlp, MOMENTUM)
    before = snapshot(pair)
    with pytest.raises(autopar.DifferenceError, match=r"gradient of \S*0\.weight is not eager's.*task '"):
        pair.step(*batches(1)[0])
    assert equal(before, snapshot(pair))
    monkeypatch.undo()
    pair.same(batches(3))


class Chaotic(nn.Module):
    """Doubles the distance of neighbours thirty times over."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.sigmoid(self.norm(x))
        for _ in range(30):
            x = 4 * x * (1 - x)
        return x


def test_rounding_that_the_model_makes_large_is_no_difference():
    # What rounding does depends on how many threads share a sum.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        Pair(Chaotic, MOMENTUM).step(*batches(1)[0])
    finally:
        torch.set_num_threads(threads)


def test_a_step_under_a_dispatch_mode_is_refused_and_the_next_one_is_taken():
    model = torch.nn.Linear(4, 2)
    step = autopar.train_step(model, torch.nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1), ["cpu"])
    x, y = torch.randn(3, 4), torch.randn(3, 2)
    step(x, y)
    before = model.weight.detach().clone()
    with FlopCounterMode(display=False), pytest.raises(autopar.CaptureError, match="FlopCounterMode"):
        step(x, y)
    assert torch.equal(before, model.weight)
    step(x, y)
    assert not torch.equal(before, model.weight)


class Interrupted(BaseException):
    pass


@pytest.mark.parametrize("grad", [False, True])
def test_an_interrupt_leaves_the_grad_mode_as_it_was(grad):
    """A trace raises where a signal handler may, and where most can go wrong: where torch's contexts begin or end."""
    pair, (x, y) = Pair(mlp, MOMENTUM), batches(1)[0]
    pair.same(batches(3))
    left, interrupts = 0, 0

    @torch.compiler.disable
    def trace(frame: Any, event: str, _result: Any) -> Any:
        nonlocal left
        left -= event in ("call", "return") and frame.f_code.co_filename == grad_mode.__file__
        if left == 0:
            raise Interrupted
        return trace

    with torch.set_grad_enabled(grad):
        while left <= 0:
            interrupts += 1
            left = interrupts
            try:
                sys.settrace(trace)
                pair.step(x, y)
            except Interrupted:
                pass
            finally:
                sys.settrace(None)
            assert torch.is_grad_enabled() is grad, interrupts
    assert interrupts > 20
    pair.step.close()
