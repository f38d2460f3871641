"""Calls that change buffers or draw random numbers."""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from turns import by_turns

import autopar
from autopar.errors import RunError


class Mean(nn.Module):
    """A running mean, the last input's first row (which only writes), and a count of rows as a tensor."""

    mean: Tensor
    last: Tensor
    rows: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("last", torch.zeros(4))
        self.register_buffer("rows", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        self.last.copy_(x[0])
        self.rows.add_(x.shape[0])
        return self.linear(x - self.mean)


class Assigned(Mean):
    """A buffer that is assigned to its own attribute, and returned with an argument."""

    def forward(self, x: Tensor) -> Any:
        self.rows += x.shape[0]
        return self.linear(x) * self.rows, self.rows, x


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x + torch.randn_like(x))


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.3))


MODELS = (Mean, Noisy, normed)


def twins(made: Any, devices: tuple[str, ...] = ("cpu",)) -> tuple[Any, Any]:
    """Return a compiled model after a few calls, and its twin in the same state."""
    model = made()
    fast = autopar.compile(model, devices)
    for _ in range(6):
        fast(torch.randn(3, 4))
    return fast, copy.deepcopy(model)


def alike(fast: Any, twin: nn.Module, x: Tensor) -> None:
    """Check that a call and its random numbers are those of eager."""
    state = torch.get_rng_state()
    found, ours = fast(x), torch.get_rng_state()
    torch.set_rng_state(state)
    assert torch.equal(found, twin(x)) and torch.equal(ours, torch.get_rng_state())
    same(fast, twin)


def same(fast: Any, twin: nn.Module) -> None:
    for name, held in twin.state_dict().items():
        assert torch.equal(fast.state_dict()[name], held), name


@by_turns("made, mode", MODELS, [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_each_call_changes_what_eager_changes(made: Any, mode: Any) -> None:
    with mode():
        fast, twin = twins(made)
        for rows in (3, 3, 5, 3, 2, 3):
            alike(fast, twin, torch.randn(rows, 4))


def test_frozen_weights_in_a_call_with_gradients() -> None:
    fast, twin = twins(lambda: Mean().requires_grad_(False))
    for _ in range(3):
        alike(fast, twin, torch.randn(3, 4))
    assert all(not each.requires_grad for each in fast.buffers())


@pytest.mark.parametrize("devices", [("cpu",), ("cpu", "emulated:0")])
def test_a_buffer_that_is_assigned_and_returned(devices: tuple[str, ...]) -> None:
    with torch.no_grad():
        fast, twin = twins(Assigned, devices)
        for rows in (3, 3, 5, 3, 3, 3):
            x = torch.randn(rows, 4)
            (found, count, given), right = fast(x), twin(x)
            assert torch.equal(found, right[0]) and count is fast.rows and given is x
            same(fast, twin)
    fast.close()


def replaced(model: Any) -> None:
    model.mean = torch.randn(4)


def loaded(model: Any) -> None:
    model.load_state_dict({name: value + 1 for name, value in model.state_dict().items()})


def assigned(model: Any) -> None:
    model.load_state_dict({name: value + 1 for name, value in model.state_dict().items()}, assign=True)


def reset(model: Any) -> None:
    model.mean.zero_()
    model.last.data.add_(1)


def stepped(model: Any) -> None:
    with torch.no_grad():
        model.linear.weight.add_(0.1)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from((replaced, loaded, assigned, reset, stepped, None)), max_size=8))
def test_changes_between_calls_are_seen(changes: list[Any]) -> None:
    with torch.no_grad():
        fast, twin = twins(Mean)
        for change in changes:
            if change is not None:
                for model in (fast, twin):
                    torch.manual_seed(0)
                    change(model)
            alike(fast, twin, torch.randn(3, 4))


@pytest.mark.parametrize("shape", [(1, 4), (4,)])
def test_an_argument_may_be_the_state_itself(shape: tuple[int, ...]) -> None:
    class Shifted(Mean):
        def forward(self, x: Tensor) -> Tensor:
            self.mean.add_(1)
            return self.linear(x) + self.mean

    model = Shifted()
    fast = autopar.compile(model, ["cpu"])
    with torch.no_grad():
        for _ in range(6):
            fast(torch.randn(shape))
        twin = copy.deepcopy(model)
        alike(fast, twin, torch.randn(shape))
        for _ in range(2):
            assert torch.equal(fast(fast.mean.view(shape)), twin(twin.mean.view(shape)))
            same(fast, twin)
        assert torch.equal(fast(fast.mean), twin(twin.mean))
        same(fast, twin)


def test_a_call_that_fails_changes_nothing() -> None:
    class Looked(Mean):
        def forward(self, x: Tensor) -> Tensor:
            self.mean.add_(1)
            return nn.functional.embedding(x.long(), self.linear.weight)

    with torch.no_grad():
        fast = autopar.compile(Looked(), ["cpu"])
        for _ in range(6):
            fast(torch.zeros(3, 4))
        before = fast.mean.clone()
        with pytest.raises(RunError, match="index out of range"):
            fast(torch.full((3, 4), 9.0))
        assert torch.equal(fast.mean, before)
        fast(torch.zeros(3, 4))
        assert torch.equal(fast.mean, before + 1)


@pytest.mark.parametrize("devices", [("cpu",), ("cpu", "emulated:0")])
def test_no_change_is_lost_between_threads(devices: tuple[str, ...]) -> None:
    class Adding(Mean):
        def forward(self, x: Tensor) -> Tensor:
            self.rows += 1
            return self.linear(x)

    calls, failed = 200, []
    with torch.no_grad():
        fast, _ = twins(Adding, devices)
        before = int(fast.rows)

        def work(rows: int) -> None:
            try:
                with torch.no_grad():
                    for _ in range(calls):
                        fast(torch.randn(rows, 4))
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=work, args=(rows,)) for rows in (2, 3, 3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed and int(fast.rows) == before + 3 * calls
    fast.close()


@pytest.mark.parametrize("made", [Mean, Assigned])
def test_planning_changes_nothing(made: Any) -> None:
    with torch.no_grad():
        fast, twin = twins(made)
        state = torch.get_rng_state()
        fast.prepare(torch.randn(3, 4, generator=torch.Generator()))
        assert torch.equal(torch.get_rng_state(), state)
        same(fast, twin)


class Viewed(Mean):
    """Reads a buffer that may share its memory with one that it changes."""

    def __init__(self, shared: bool = False) -> None:
        super().__init__()
        self.register_buffer("view", self.mean.view(4) if shared else torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        self.mean.add_(1)
        return self.linear(x) + self.view


@by_turns("calls, shared", [0, 1, 2, 8], [True, False])
def test_state_that_begins_or_ends_to_share_memory(shared: bool, calls: int) -> None:
    model, twin = Viewed(shared), Viewed(shared)
    twin.load_state_dict(model.state_dict())
    fast = autopar.compile(model, ["cpu"])
    with torch.no_grad():
        for other in (shared, not shared, shared):
            for each in (model, twin):
                each.view = each.mean.view(4) if other else torch.ones(4)
            for _ in range(calls + 1):
                alike(fast, twin, torch.randn(3, 4))


@pytest.mark.parametrize("made", [Mean, Viewed])
def test_state_that_was_replaced_is_freed(made: Any) -> None:
    with torch.no_grad():
        fast, _ = twins(made)
        old = weakref.ref(fast.mean)
        fast.load_state_dict({name: value.clone() for name, value in fast.state_dict().items()}, assign=True)
        for _ in range(2):
            fast(torch.randn(3, 4))
        gc.collect()
        assert old() is None
