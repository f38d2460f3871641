"""Steps with the same results in every call: computed once, never given away, and only within limits."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from runtime_cases import Case
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import autopar
from autopar.errors import RunError
from autopar.ir.graph import Ref
from autopar.runtime import inline_call
from autopar.runtime.bind_program import Assembly


class Masked(nn.Module):
    """Makes a causal mask anew in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def mask(self, x: Tensor) -> Tensor:
        at = torch.arange(x.shape[0])
        return (at[None] <= at[:, None]).float()

    def forward(self, x: Tensor) -> Tensor:
        return self.mask(x) @ self.linear(x)


class Returned(Masked):
    """Returns the mask and a view of it, too."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        mask, other = self.mask(x), self.mask(x) + 1
        return mask @ self.linear(x), mask, other.T


def made(fast: nn.Module, *args: Tensor) -> bool:
    """Whether a call makes positions anew."""
    with torch.no_grad(), profile(activities=[ProfilerActivity.CPU]) as found:
        fast(*args)
    return "aten::arange" in {event.key for event in found.key_averages()}


def warm(model: nn.Module, *args: Tensor) -> nn.Module:
    fast = autopar.compile(model, ["cpu"])
    with torch.no_grad():
        for _ in range(5):
            torch.testing.assert_close(fast(*args), model(*args))
    return fast  # type: ignore[return-value]


def test_constants_are_made_once() -> None:
    model, x = Masked(), torch.randn(5, 8)
    fast = warm(model, x)
    assert made(model, x)
    assert not made(fast, x)
    with torch.no_grad():
        model.linear.weight.mul_(2)
        torch.testing.assert_close(fast(-x), model(-x))
    torch.testing.assert_close(fast(x), model(x))


@pytest.mark.slow
def test_each_set_of_sizes_has_its_own() -> None:
    model = Masked()
    fast, several = warm(model, torch.randn(5, 8)), [torch.randn(rows, 8) for rows in (5, 3, 4, 7)]
    with torch.no_grad():
        for _ in range(4):
            for x in several:
                torch.testing.assert_close(fast(x), model(x))
    assert [made(fast, x) for x in several] == [False] * 4


def test_the_caller_may_write_to_results() -> None:
    model, x = Returned(), torch.randn(5, 8)
    fast = warm(model, x)
    with torch.no_grad():
        for result in fast(x):
            result.fill_(7)
        torch.testing.assert_close(fast(x), model(x))


def test_memory_shared_without_a_word() -> None:
    case = (
        Case().task("cpu/0", "c", "aten.arange.default", 4).task("cpu/0", "d", "aten.add.Tensor", Ref("c"), 1)
    )
    case.task("cpu/0", "y", "aten.type_as.default", Ref("d"), Ref("x"))
    case.outputs, case.values = ("y",), {"x": torch.ones(4, dtype=torch.int64)}
    executor = case.executor()
    for _ in range(4):
        (y,) = executor([case.values["x"]])
        assert y.tolist() == [1, 2, 3, 4]
        y.fill_(0)


def test_without_room_they_are_made_in_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(5, 8)
    monkeypatch.setattr(inline_call, "LIMIT", 5 * 5 * 4 - 1)
    assert made(warm(Masked(), x), x)
    monkeypatch.setattr(inline_call, "LIMIT", 5 * 5 * 4)
    assert not made(warm(Masked(), x), x)


def test_a_call_that_a_graph_records_makes_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inline_call._Precomputed, "_recorded", lambda _: True)
    x = torch.randn(5, 8)
    assert made(warm(Masked(), x), x)


@pytest.mark.slow
def test_the_room_is_for_all_sizes_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inline_call, "LIMIT", 300)
    model = Masked()
    fast, several = warm(model, torch.randn(4, 8)), [torch.randn(rows, 8) for rows in (5, 6, 7)]
    with torch.no_grad():
        for x in several * 4:
            torch.testing.assert_close(fast(x), model(x))
    assert [made(fast, x) for x in several] == [False, False, True]


def test_they_serve_calls_with_and_without_inference_mode() -> None:
    model, x = Masked(), torch.randn(5, 8)
    fast = autopar.compile(model, ["cpu"])
    for _ in range(5):
        with torch.inference_mode():
            torch.testing.assert_close(fast(x), model(x))
        with torch.no_grad():
            torch.testing.assert_close(fast(x), model(x))
    assert not made(fast, x)
    fast(x).sum().backward()
    assert model.linear.weight.grad is not None


def test_calls_after_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    function = Assembly.function

    def interrupted(self: Assembly, *args: Any) -> Any:
        if args[-1] == "varying":
            monkeypatch.undo()
            raise KeyboardInterrupt
        return function(self, *args)

    monkeypatch.setattr(Assembly, "function", interrupted)
    model, x, interrupts = Masked(), torch.randn(5, 8), 0
    fast = autopar.compile(model, ["cpu"])
    with torch.no_grad():
        for _ in range(8):
            try:
                torch.testing.assert_close(fast(x), model(x))
            except KeyboardInterrupt:
                interrupts += 1
    assert interrupts == 1


def test_random_numbers_are_drawn_in_each_call() -> None:
    fast = autopar.compile(lambda x: x + torch.rand(4) + torch.arange(4), ["cpu"])
    found = [fast(torch.zeros(4)) for _ in range(5)]
    assert not any(torch.equal(a, b) for a, b in itertools.pairwise(found))


def test_an_error_still_names_its_task() -> None:
    case = (
        Case()
        .task("cpu/0", "c", "aten.ones.default", (4,))
        .task("cpu/0", "d", "aten.add.Tensor", Ref("c"), 1)
    )
    case.task("cpu/0", "y", "aten.mul.Tensor", Ref("d"), Ref("x"))
    case.outputs, case.values = ("y",), {"x": torch.ones(4)}
    executor = case.executor()
    for _ in range(4):
        assert executor([case.values["x"]])[0].tolist() == [2.0] * 4
        with pytest.raises(RunError, match="'y'"):
            executor([torch.ones(3)])
