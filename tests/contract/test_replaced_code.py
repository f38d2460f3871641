"""Code that is replaced after a model was compiled: forwards and methods of the classes of the model, its layers and
other objects, and the classes themselves. Each call computes what the plain model computes now."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autopar

CALLS = 5
"""Calls before and after a replacement: the first is captured, and later ones take shorter paths."""
DEVICES = ["cpu", "emulated:0"]


class Scale:
    def of(self, x: Tensor) -> Tensor:
        return x * 3


class Layer(nn.Module):
    """Its methods are found in two classes, and `forward` by a subclass in its base."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.activated(self.linear(x))

    def activated(self, x: Tensor) -> Tensor:
        return x.tanh()


class Special(Layer):
    factor = 2.0

    def activated(self, x: Tensor) -> Tensor:
        return super().activated(x) * self.factor


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.scale = Special(), Layer(), Scale()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.scale.of(self.first(x)))

    def features(self, x: Tensor) -> Tensor:
        return self.first(x)


def times(number: float) -> Callable[[Layer, Tensor], Tensor]:
    """Functions of one code, told apart by what they enclose."""
    return lambda layer, x: layer.linear(x) * number


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Within the block, `owner.name` is `value`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, value, raising=False)
        yield


REPLACED: dict[str, Callable[[Model], tuple[Any, str, Any]]] = {
    "forward of the model": lambda model: (Model, "forward", lambda self, x: self.last(x) * 5),
    "forward of a layer": lambda model: (Layer, "forward", lambda self, x: self.linear(x)),
    "forward that hides the base's": lambda model: (Special, "forward", lambda self, x: self.linear(x) + 1),
    "forward of a layer of torch": lambda model: (nn.Linear, "forward", lambda self, x: x @ self.weight),
    "call of a layer": lambda model: (Special, "__call__", lambda self, x: self.forward(x) - 2),
    "code of a forward": lambda model: (Layer.forward, "__code__", (lambda self, x: self.linear(x)).__code__),
    "method": lambda model: (Special, "activated", lambda self, x: x - 1),
    "method of the base": lambda model: (Layer, "activated", lambda self, x: x.relu()),
    "method of another object": lambda model: (Scale, "of", lambda self, x: x - 4),
    "constant of a class": lambda model: (Special, "factor", -1.0),
    "class of a layer": lambda model: (model.first, "__class__", Layer),
    "forward of one layer": lambda model: (model.first, "forward", lambda x: x * 2),
}


@torch.no_grad()
def same(fast: Callable[..., Any], model: nn.Module, x: Tensor, calls: int = CALLS) -> None:
    """Compare calls with eager."""
    for _ in range(calls):
        torch.testing.assert_close(fast(x), model(x))


def gradients(model: nn.Module, x: Tensor) -> list[Tensor]:
    return [*torch.autograd.grad(model(x).sum(), [*model.parameters()])]


@pytest.mark.parametrize("kind", REPLACED)
def test_calls_run_what_was_put_in_place_and_again_what_was_before(kind: str) -> None:
    model, x = Model(), torch.randn(3, 4)
    fast = autopar.compile(model, ["cpu"], check="never")
    same(fast, model, x)
    before = model(x)
    with replaced(*REPLACED[kind](model)):
        assert not torch.equal(before, model(x))
        same(fast, model, x)
    same(fast, model, x, 1)
    fast.close()


def test_a_second_closure_of_the_same_code_is_another_function() -> None:
    model, x = Layer(), torch.randn(3, 4)
    fast = autopar.compile(model, ["cpu"], check="never")
    for number in (2.0, 3.0):
        with replaced(Layer, "forward", times(number)):
            same(fast, model, x)
    fast.close()


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"policy": "round_robin", "split": None}, {"split": 2}])
def test_on_several_devices(options: dict[str, Any]) -> None:
    model, x = Model(), torch.randn(4, 4)
    fast = autopar.compile(model, DEVICES, check="never", **options)
    same(fast, model, x)
    with replaced(Layer, "forward", lambda self, x: self.linear(x)):
        same(fast, model, x)
    fast.close()


@pytest.mark.slow
def test_in_calls_with_gradients() -> None:
    model, x = Model(), torch.randn(3, 4)
    fast = autopar.compile(model, ["cpu"], check="never")
    for forward in (Layer.forward, times(2.0), Layer.forward):
        with replaced(Layer, "forward", forward):
            for _ in range(CALLS):
                torch.testing.assert_close(gradients(fast, x), gradients(model, x))
    fast.close()


@pytest.mark.slow
def test_in_a_training_step() -> None:
    model, x, y = Model(), torch.randn(4, 4), torch.randn(4, 4)
    plain = copy.deepcopy(model)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    step = autopar.train_step(model, nn.MSELoss(), sgd, ["cpu"], check="never")
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)

    def stepped() -> None:
        for _ in range(3):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(plain(x), y)
            loss.backward()
            optimizer.step()
            torch.testing.assert_close(step(x, y).detach(), loss.detach())

    stepped()
    with replaced(Layer, "forward", lambda self, x: self.linear(x)):
        stepped()
    stepped()
    torch.testing.assert_close(model.state_dict(), plain.state_dict())


@pytest.mark.slow
def test_in_data_parallel_and_as_a_backend_of_torch() -> None:
    model, x = Model(), torch.randn(4, 4)
    fast = autopar.DataParallel(model, DEVICES, output_device="cpu", check="never")
    other = torch.compile(model, backend="autopar", options={"devices": ["cpu"], "check": "never"})
    same(fast, model, x)
    same(other, model, x)
    with replaced(Special, "activated", lambda self, x: x - 1):
        same(fast, model, x)
        same(other, model, x)
    fast.close()


def test_methods_and_wrappers_of_the_compiled_module_find_what_was_put_in_place() -> None:
    model, x = Model(), torch.randn(3, 4)
    fast: Any = autopar.compile(model, ["cpu"])
    with replaced(Model, "features", lambda self, x: self.last(x)), torch.no_grad():
        assert torch.equal(fast.features(x), model.features(x))
    inner = fast.forward
    with replaced(Model, "forward", lambda self, x: self.first(x)), torch.no_grad():
        fast.forward = lambda x: inner(x) + 1
        assert torch.equal(fast(x), model.first(x) + 1)
        del fast.forward
    fast.close()


class Kept:
    """A cache as of language models."""

    def __init__(self) -> None:
        self.keys: list[torch.Tensor] = []

    def update(self, key: torch.Tensor) -> torch.Tensor:
        self.keys.append(key)
        return key * len(self.keys)


class Keeping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, Kept]:
        kept = Kept()
        return kept.update(self.layer(x)), kept


def test_a_call_that_returns_an_object_which_it_has_made_is_planned():
    model, x = Keeping(), torch.randn(3, 4)
    assert autopar.plan(model, ["cpu"], example_inputs=(x,)).makespan > 0
    fast = autopar.compile(model, ["cpu"])
    for _ in range(2):
        y, kept = fast(x)
        torch.testing.assert_close(y, model(x)[0])
        assert kept.update(y).equal(y * 2)
    assert "ran as written" not in str(fast.explain())
    fast.close()
