"""Floats and counts that change from call to call: captured once more for all of their values, or for each value where
torch cannot do with a symbol what Python does with a number; and right for each."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from compilers import alone, using
from sized_kernels import Open
from torch import nn
from torch.utils.checkpoint import checkpoint
from varying import VALUES, Scaled, alike, captures

import autopar

pytestmark = pytest.mark.slow

PLACES = (["cpu"], ["cpu", "emulated:0"])


class Turned(torch.autograd.Function):
    """Gradient reversal: the backward reads a float."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, t: float) -> torch.Tensor:
        ctx.t = t
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return -ctx.t * gradient, None


Call = Callable[[Any, torch.Tensor, Any], Any]


def model_of(call: Call) -> nn.Module:
    """A model with a linear layer, whose forward is `call`."""

    class Calling(Scaled):
        """Its state changes in each call."""

        def __init__(self) -> None:
            super().__init__()
            self.calls, self.rate, self.rows = 0, 1.0, 0

        def forward(self, x: torch.Tensor, t: Any) -> Any:
            return call(self, x, t)

    return Calling()


def trained(made: Any, model: nn.Module) -> torch.Tensor:
    """The gradient of the weight by the first result of a call."""
    model.zero_grad()
    output = made[0] if isinstance(made, tuple) else made
    output.square().sum().backward()
    gradient: torch.Tensor = model.linear.weight.grad
    return gradient


def compared(
    model: nn.Module, values: Any, rows: Any = (3, 5), training: bool = False, **options: Any
) -> int:
    """Compare calls of a compiled model with those of a copy, in values and numbers; return the number of captures."""
    twin, fast = copy.deepcopy(model), autopar.compile(model, options.pop("devices", ["cpu"]), **options)
    with torch.set_grad_enabled(training):
        for value in values:
            for count in rows:
                x = torch.randn(count, 4)
                ours, right = fast(x, value), twin(x, value)
                alike(*(each if isinstance(each, tuple) else (each,) for each in (ours, right)))
                if training:
                    torch.testing.assert_close(trained(ours, model), trained(right, twin))
    for name in ("calls", "rate", "rows"):
        assert getattr(model, name, 0) == getattr(twin, name, 0)
    assert not fast._placement.session.unplaced
    count = captures(fast)
    fast.close()
    return count


def _changed(model: Any, x: torch.Tensor, t: float) -> torch.Tensor:
    model.calls += 1
    model.rate *= 0.9
    made: torch.Tensor = model.linear(x) * model.rate + model.calls
    return made


def _counted(model: Any, x: torch.Tensor, number: int) -> tuple[Any, ...]:
    model.calls += 1
    model.rows += x.shape[0]
    return model.linear(x), 3 - number * 2, number + model.calls, x.shape[0]


def _doubled(model: Any, x: torch.Tensor, number: int) -> tuple[Any, ...]:
    for _ in range(40):
        number = number + number - 3
    return model.linear(x), number


def _summed(model: Any, x: torch.Tensor, t: float) -> tuple[Any, ...]:
    n = x.shape[0]
    made = (t * 0.1 * 10, t + 0.1 + 0.2, (t * n + n // 2) / 7.7, math.sin(t), -t % 0.3, int(t * 10 * 10))
    return *made, *(x * number for number in made)


OPEN: dict[str, tuple[Call, Any]] = {
    "operators, arithmetic, results": (Scaled.forward, VALUES),
    "read first within a checkpoint": (
        lambda model, x, t: checkpoint(lambda x: model.linear(x) * t, x, use_reentrant=False) + t,
        VALUES,
    ),
    "read first within a function": (lambda model, x, t: Turned.apply(model.linear(x), t) * t, VALUES),
    "read within both": (
        lambda model, x, t: checkpoint(lambda x: Turned.apply(model.linear(x), t), x, use_reentrant=False),
        VALUES,
    ),
    "changed by the model": (_changed, range(9)),
    "a count that no task reads": (_counted, range(5, 13)),
    "a count that a task reads": (
        lambda model, x, number: (model.linear(x) * number, number, torch.arange(number)),
        range(5, 13),
    ),
    "many sums": (_doubled, (5, 6, 4, 7)),
    "rates of a count": (
        lambda model, x, n: (model.linear(x) * (0.1 * n - n / 3), 0.1 * n * n - n, n / 7 + n * 0.2),
        range(2, 9),
    ),
    "quotients of a count": (
        lambda model, x, n: (model.linear(x), 100 // n, n % 7, n**2),
        (5, 6, -8, 9, 13),
    ),
}


@pytest.mark.parametrize("way", OPEN)
@pytest.mark.parametrize("training", [False, True])
def test_all_values_of_a_number_are_captured_once_more(way: str, training: bool) -> None:
    call, values = OPEN[way]
    # The first value, the first rows, and all of both.
    assert compared(model_of(call), values, training=training) <= 4


@pytest.mark.parametrize("training", [False, pytest.param(True, marks=pytest.mark.release)])
@pytest.mark.parametrize("call", [Scaled.forward, _counted])
def test_on_two_devices(call: Call, training: bool) -> None:
    values = range(5, 13) if call is _counted else VALUES
    assert compared(model_of(call), values, training=training, devices=PLACES[1], check="always") <= 4


def test_arithmetic_with_a_float_is_that_of_python() -> None:
    values = (0.1, 0.2, 1.0, 2.5, 0.29, 0.57, 3.0, -0.0, 1e10)
    assert compared(model_of(_summed).double(), values, (4, 5)) <= 3


def test_counts_and_rows_may_be_alike() -> None:
    assert compared(model_of(_counted), (5, 6, 4, 3, 7, 3, 6, 5), (3, 4, 5, 6)) <= 4


ALONE: dict[str, tuple[Call, Any]] = {
    "a text": (lambda model, x, t: model.linear(x) * len(f"{t:.3g}"), VALUES[:3]),
    "a complex number": (lambda model, x, t: torch.exp(1j * t * model.linear(x)).real, VALUES[:3]),
    "divmod": (lambda model, x, t: model.linear(x) * divmod(t, 0.25)[1], VALUES[:3]),
    "a branch by a function": (
        lambda model, x, t: model.linear(x) if t // 0.1 > 9 else -model.linear(x),
        (0.3, 0.7, 1.0, 0.1, 2.0, 3.0),
    ),
    "whole quotients": (
        lambda model, x, t: model.linear(x) * (t // 0.2) + 1.0 // t + x.shape[0] // 0.1 + (t // 0.5) % 3,
        (0.3, 0.7, 1.0, 0.1, 2.0, 3.0),
    ),
    "an attribute read within a function": (
        lambda model, x, t: (setattr(model, "rate", t), Turned.apply(model.linear(x), model.rate))[1],
        VALUES[:3],
    ),
    "a power's derivative": (
        lambda model, x, t: torch.pow(abs(t) + 1, model.linear(x)) * math.sin(t),
        VALUES[:3],
    ),
    "a count as an exponent": (lambda model, x, n: model.linear(x) ** n, (2, 3, 4)),
}


@pytest.mark.parametrize("way", ALONE)
@pytest.mark.parametrize("training", [False, True])
def test_what_torch_cannot_do_with_a_symbol_is_right_for_each_value(way: str, training: bool) -> None:
    call, values = ALONE[way]
    assert compared(model_of(call), values, (3,), training, check="never") <= len(values)


def test_a_branch_by_the_rows_that_torch_computes_otherwise_runs_as_written() -> None:
    model = model_of(lambda model, x, t: model.linear(x) if x.shape[0] // 0.1 > 29 else -x)
    fast = autopar.compile(model, ["cpu"], check="never")
    with torch.no_grad():
        for rows in (2, 4, 5, 3, 2):
            x = torch.randn(rows, 4)
            assert torch.equal(fast(x, 0), model(x, 0))
        assert "`//` of a float" in str(fast.explain())
        fast.close()
        whole = autopar.compile(model, ["cpu"], fullgraph=True)
        whole(torch.randn(2, 4), 0)
        with pytest.raises(autopar.CaptureError, match=r"`//` of a float"):
            whole(torch.randn(3, 4), 0)


def test_special_values_are_right() -> None:
    model = model_of(lambda model, x, t: (*Scaled.forward(model, x, t), t - t, x + t * 0.0))
    fast, x = autopar.compile(model, ["cpu"]), torch.randn(3, 4)
    with torch.no_grad():
        for value in (0.1, 0.2, 0.3, math.inf, -math.inf, math.nan, 0.4):
            for one, other in zip(fast(x, value), model(x, value), strict=True):
                torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
    fast.close()


def test_a_float_of_any_magnitude_is_no_size() -> None:
    """It lets no tensor grow."""
    model = model_of(lambda model, x, t: model.linear(x) * t)
    values = (1e-3, 1e-5, 1e5, 1e300, 5e-324)
    assert compared(model, values, (3,), memory={"cpu": "1MiB"}) == 2


def test_floats_are_constants_if_no_size_is_open() -> None:
    model = model_of(lambda model, x, t: model.linear(x) * (t if math.isfinite(t) else 0.0))
    assert compared(model, VALUES[:3], (3,), dynamic=False) == 3


def test_arguments_that_nothing_reads_are_not_captured_for_themselves() -> None:
    model = nn.Linear(4, 4)
    model.forward = lambda x, *others, scale, **more: nn.functional.linear(x, model.weight) * scale
    fast, x, grown = autopar.compile(model, ["cpu"]), torch.randn(3, 4), []
    with torch.no_grad():
        for value in VALUES[:5]:
            grown.append(value)
            right = model(x, [*grown], 2.0, scale=value, other={*grown})
            assert torch.equal(fast(x, [*grown], 2.0, scale=value, other={*grown}), right)
    assert captures(fast) <= 3
    fast.close()


def test_what_no_graph_can_hold_is_not_captured_for_each_value() -> None:
    class Sparse(nn.Module):
        """A layer with a sparse gradient."""

        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(9, 4, sparse=True)

        def forward(self, ids: torch.Tensor, t: float) -> torch.Tensor:
            made: torch.Tensor = self.words(ids) * t
            return made

    model, ids = Sparse(), torch.arange(6)
    fast = autopar.compile(model, ["cpu"])
    for value in (0.1, 0.2, 0.3, 0.4):
        assert torch.equal(fast(ids, value), model(ids, value))
    assert len(fast._placement.session.graphs) == 2
    fast.close()


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("read", [True, False])
def test_a_number_that_is_not_defined_is_an_error_of_its_call_alone(training: bool, read: bool) -> None:
    def quotient(model: Any, x: torch.Tensor, given: Any) -> Any:
        t, n = given
        number = t / n * math.sqrt(t)
        return (model.linear(x) * number) if read else (model.linear(x), number)

    model = model_of(quotient)
    fast, x = autopar.compile(model, ["cpu"]), torch.randn(3, 4)
    with torch.set_grad_enabled(training):
        for given in ((0.1, 1), (0.2, 2), (0.3, 3)):
            torch.testing.assert_close(fast(x, given), model(x, given), rtol=0, atol=0)
        with pytest.raises(ZeroDivisionError):
            fast(x, (0.4, 0))
        with pytest.raises(ValueError, match=r"domain|nonnegative"):
            fast(x, (-1.0, 5))
        torch.testing.assert_close(fast(x, (0.6, 6)), model(x, (0.6, 6)), rtol=0, atol=0)
    assert captures(fast) <= 3
    fast.close()


STEPS: dict[str, tuple[Call, Any]] = {
    "a float": (lambda model, x, t: (model(x) * t).square().mean(), VALUES),
    "a float of a function": (lambda model, x, t: (Turned.apply(model(x), t) * t).square().mean(), VALUES),
    "divmod": (lambda model, x, t: (model(x) * divmod(t, 0.25)[1]).square().mean(), VALUES[:3]),
    "a power's derivative": (lambda model, x, t: torch.pow(abs(t) + 1, model(x)).mean(), VALUES[:3]),
}


@pytest.mark.parametrize("way", STEPS)
def test_a_training_step_takes_a_float_that_varies(way: str) -> None:
    (loss, values), model = STEPS[way], nn.Linear(4, 4)
    twin = copy.deepcopy(model)
    made, plain = (torch.optim.SGD(each.parameters(), 0.01) for each in (model, twin))
    step = autopar.train_step(model, None, made, ["cpu"], step_fn=loss)
    for value in values:
        x = torch.randn(3, 4)
        plain.zero_grad()
        right = loss(twin, x, value)
        right.backward()
        plain.step()
        torch.testing.assert_close(step(x, value), right)
    torch.testing.assert_close(model.weight, twin.weight)
    step.close()


def test_a_training_step_counts_its_calls() -> None:
    model = model_of(_counted)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    step = autopar.train_step(
        model, None, optimizer, ["cpu"], step_fn=lambda model, x, t: model(x, t)[0].square().mean()
    )
    for number in range(5, 13):
        step(torch.randn(3, 4), number)
    assert (model.calls, model.rows) == (8, 24)
    step.close()


def test_kernels_serve_all_values_and_the_float_stays_eager(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with alone(tmp_path, monkeypatch):
        library = Open()
        using(monkeypatch, library, fastest="folding")
        model = model_of(lambda model, x, t: (model.linear(x).relu() * t).tanh())
        fast = autopar.compile(model, ["cpu"], kernels="auto")
        with torch.no_grad():
            for value in VALUES[:2]:
                x = torch.randn(3, 4)
                torch.testing.assert_close(fast(x, value), model(x, value))
            built = len(library.built)
            for value in VALUES:
                x = torch.randn(3, 4)
                torch.testing.assert_close(fast(x, value), model(x, value))
            assert len(library.built) == built and fast.serving == "folding"
        fast.close()


def test_a_float_that_varies_in_a_plain_torch_compile() -> None:
    model = Scaled()
    fast = torch.compile(model, backend="autopar")
    with torch.no_grad():
        for value in VALUES[:4]:
            x = torch.randn(3, 4)
            alike(fast(x, value), model(x, value))
