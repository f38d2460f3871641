"""Buffers and attributes that forward assigns: new tensors each call, and the gradients that flow through them."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from pairs import alike, gradients, twins
from torch import nn
from turns import by_turns

import autopar

pytestmark = pytest.mark.slow


class Cell(nn.Module):
    """Keeps its state in a buffer; `cut` detaches it, `direct` returns the buffer itself."""

    def __init__(self, cut: bool = True, direct: bool = True) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.cut, self.direct = cut, direct
        self.register_buffer("state", torch.zeros(4, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = self.state.detach() if self.cut else self.state
        self.state = torch.tanh(self.inner(x) + before)
        return self.state if self.direct else self.state * 1


class Noted(nn.Module):
    """Leaves an auxiliary loss in a buffer, an attribute or a list."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.where = where
        if where == "buffer":
            self.register_buffer("loss", torch.zeros(()), persistent=False)
        else:
            self.loss: torch.Tensor | None = None
        self.losses: list[torch.Tensor] = []
        self.outputs: dict[str, torch.Tensor] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x)
        if self.where == "list":
            self.losses.append(y.pow(2).mean())
        elif self.where == "dict":
            self.outputs["hidden"] = y.pow(2)
        else:
            self.loss = y.pow(2).mean()
        return y.relu()

    def auxiliary(self) -> torch.Tensor:
        if self.where == "list":
            return self.losses.pop()
        if self.where == "dict":
            return self.outputs["hidden"].mean()
        assert self.loss is not None
        return self.loss


def test_each_call_returns_a_new_tensor_and_rebinds_the_buffer():
    plain, fast = twins(Cell)
    inputs = [torch.randn(4, 6) for _ in range(4)]
    with torch.no_grad():
        ours, theirs = [], []
        for x in inputs:
            kept, other = fast.state, plain.state
            ours.append(fast(x))
            theirs.append(plain(x))
            assert alike((fast.state - kept).abs().max(), (plain.state - other).abs().max())
            assert fast.module.state is ours[-1] and plain.state is theirs[-1]
    assert len({id(output) for output in ours}) == len({output.data_ptr() for output in ours}) == 4
    assert alike(ours, theirs)


@by_turns("cut, direct", [True, False, True, False], [True, False])
def test_backward_through_several_calls(cut, direct):
    plain, fast = twins(lambda: Cell(cut, direct))
    x = torch.randn(4, 6)
    for _ in range(2):
        plain.state, fast.module.state = torch.zeros(4, 6), torch.zeros(4, 6)
        expected = gradients(plain, lambda: sum(plain(k * x).sum() for k in (1, 2, 3)))
        found = gradients(fast, lambda: sum(fast(k * x).sum() for k in (1, 2, 3)))
        assert alike(found, expected)


@pytest.mark.parametrize(
    ("where", "check"),
    [
        *((where, "first") for where in ("buffer", "attribute", "list", "dict")),
        *(("buffer", check) for check in ("never", "always")),
    ],
)
def test_a_loss_left_in_the_model_trains(where, check):
    plain, fast = twins(lambda: Noted(where), check=check)
    x = torch.randn(4, 6)
    for _ in range(3):
        expected = gradients(plain, lambda: plain(x).sum() + 10 * plain.auxiliary())
        assert alike(gradients(fast, lambda: fast(x).sum() + 10 * fast.module.auxiliary()), expected)
        assert len(fast.module.losses) == 0


def test_a_check_leaves_no_trace_in_buffers():
    plain, fast = twins(lambda: Noted("buffer"), check="first")
    with torch.no_grad():
        fast(torch.randn(4, 6))
    assert fast.module.loss.grad_fn is None and not fast.module.loss.requires_grad
    copy.deepcopy(fast.module)
    with torch.no_grad():
        plain(torch.zeros(4, 6)), fast(torch.zeros(4, 6))
    assert alike(fast.module.loss, plain.loss)


Change = Callable[[nn.Module, torch.Tensor], torch.Tensor]


class Changing(nn.Module):
    """Changes a buffer, or a view of one, in place."""

    def __init__(self, change: Change) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.change = change
        self.register_buffer("bank", torch.zeros(3, 6))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.change(self, self.inner(x))


def _count(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    model.count += 1
    return x * model.count


def _row(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    model.bank[1] = x.detach().mean(0)
    return x + model.bank.sum(0)


def _queue(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    model.bank = torch.cat([model.bank[1:], x.detach()[:1]])
    return x @ model.bank.t()


def _average(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    model.bank.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
    return x - model.bank[0]


def _growing(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    model.bank = torch.cat([model.bank, x.detach()[:1]])
    return x + model.bank.sum(0)


def _data(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    model.bank.data.copy_(x.detach()[:3])
    return x + model.bank.mean(0)


def _instances(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return nn.functional.instance_norm(x.t()[None], model.bank[0], model.bank[1])[0].t()


@by_turns("change, training", [_instances, _count, _row, _queue, _average, _growing, _data], [False, True])
def test_buffers_changed_in_place_or_replaced(change, training):
    plain, fast = twins(lambda: Changing(change))
    x = torch.randn(4, 6)
    for call in range(4):
        with torch.set_grad_enabled(training):
            assert alike(fast(x + call), plain(x + call))
        assert alike(dict(fast.named_buffers()), dict(plain.named_buffers()))
    if training:
        expected = gradients(plain, lambda: plain(x).sum())
        assert alike(gradients(fast, lambda: fast(x).sum()), expected)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_cache_filled_by_a_forward_that_is_decorated(mode):
    class Cached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.cache = nn.Linear(6, 6), torch.zeros(4, 5, 6)

        @mode()
        def forward(self, x: torch.Tensor, position: int) -> torch.Tensor:
            self.cache[:, position : position + 1] = self.inner(x)[:, None]
            return self.cache[:, : position + 1].sum(1)

    plain, fast = twins(Cached)
    for position in range(5):
        x = torch.randn(4, 6)
        assert alike(fast(x, position), plain(x, position))
        assert alike(fast.cache, plain.cache)
    assert fast.plan
    assert not any(served.written for served in fast._placement.session.graphs)


@pytest.mark.parametrize("tensor", [False, True])
def test_operators_that_dynamo_computes_in_parts_are_eagers(tensor):
    class Averages(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(37))

        def forward(self, a, b):
            factor = torch.tensor(0.1) if tensor else 0.1
            self.mean.mul_(0.9).addcmul_(a, b, value=factor)
            self.mean.addcdiv_(a, b.abs() + 1, value=factor)
            self.mean.add_(a, alpha=factor)
            torch._foreach_lerp_([self.mean], [a], 0.3)
            return self.mean + torch._foreach_pow(2.0, [b])[0]

    model = Averages()
    fast, twin = autopar.compile(model, ["cpu"]), Averages()
    for _ in range(4):
        a, b = torch.randn(2, 37)
        assert torch.equal(fast(a, b), twin(a, b)) and torch.equal(model.mean, twin.mean)
