"""What forward reads besides tensors may change between calls, and the next call sees it."""

from __future__ import annotations

import dataclasses
import enum
import math
import types
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
import torch
from pairs import alike, compiled, gradients
from torch import nn

pytestmark = pytest.mark.slow

FACTOR = 2.0
SHIFT = torch.tensor(0.5)
TABLE = {"gain": 1.5}


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def halve(x: torch.Tensor) -> torch.Tensor:
    return x / 2


class Mode(enum.Enum):
    SINE = 1
    SQUARE = 2


@dataclasses.dataclass
class Settings:
    gain: float = 1.0
    bias: bool = False


class Base(nn.Module):
    slope: ClassVar[float] = 0.1

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.gains = [1.0, 2.0]
        self.nested: dict[str, Any] = {"deep": {"gain": 1.0}}
        self.pair = (1.0, 3)
        self.chosen = {"square"}
        self.settings = Settings()
        self.space = types.SimpleNamespace(gain=1.0)
        self.mode = Mode.SINE
        self.name = "sine"
        self.activation: Callable[[torch.Tensor], torch.Tensor] = torch.relu
        self.tensors = [torch.ones(6)]
        self.extra: torch.Tensor | None = None
        self.steps = 1
        self.debug = False
        self._level = 1.0

    @property
    def level(self) -> float:
        return self._level * 2


class Reader(Base):
    """Reads one thing, by name."""

    def __init__(self, what: Callable[[Base, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.what = what

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.what(self, self.inner(x))


def with_default(x: torch.Tensor, by: float = 1.0) -> torch.Tensor:
    return x * by


def counted(x: torch.Tensor) -> torch.Tensor:
    return x * counted.by  # type: ignore[attr-defined]


counted.by = 1.0  # type: ignore[attr-defined]


def _closure() -> tuple[Callable[..., Any], Callable[..., Any]]:
    by = 1.0

    def read(_: Base, x: torch.Tensor) -> torch.Tensor:
        return x * by

    def change(_: Base) -> None:
        nonlocal by
        by = 4.0

    return read, change


def _by_mode(model: Base, x: torch.Tensor) -> torch.Tensor:
    return x.sin() if model.mode is Mode.SINE else x * x


def _repeated(model: Base, x: torch.Tensor) -> torch.Tensor:
    for _ in range(model.steps):
        x = torch.tanh(x)
    return x


def _global(name: str, value: Any) -> Callable[[Base], None]:
    return lambda _: globals().__setitem__(name, value)


CASES: dict[str, tuple[Callable[[Base, torch.Tensor], torch.Tensor], Callable[[Base], Any]]] = {
    "item of a list": (lambda m, x: x * m.gains[0], lambda m: m.gains.__setitem__(0, 5.0)),
    "length of a list": (lambda m, x: x * sum(m.gains), lambda m: m.gains.append(3.0)),
    "nested dict": (lambda m, x: x * m.nested["deep"]["gain"], lambda m: m.nested["deep"].update(gain=3.0)),
    "key of a dict": (lambda m, x: x * 2 if "new" in m.nested else x, lambda m: m.nested.update(new=1)),
    "tuple": (lambda m, x: x * m.pair[0], lambda m: setattr(m, "pair", (7.0, 3))),
    "set": (lambda m, x: x * x if "square" in m.chosen else x, lambda m: m.chosen.clear()),
    "dataclass": (lambda m, x: x * m.settings.gain, lambda m: setattr(m.settings, "gain", 3.0)),
    "namespace": (lambda m, x: x * m.space.gain, lambda m: setattr(m.space, "gain", 3.0)),
    "enum": (_by_mode, lambda m: setattr(m, "mode", Mode.SQUARE)),
    "string": (lambda m, x: getattr(torch, m.name)(x) if m.name != "sine" else x,
               lambda m: setattr(m, "name", "cosh")),
    "function attribute": (lambda m, x: m.activation(x), lambda m: setattr(m, "activation", torch.sigmoid)),
    "tensor in a list": (lambda m, x: x * m.tensors[0], lambda m: m.tensors.__setitem__(0, torch.zeros(6))),
    "tensor in a list, in place": (lambda m, x: x * m.tensors[0], lambda m: m.tensors[0].mul_(3)),
    "None that becomes a tensor": (lambda m, x: x if m.extra is None else x + m.extra,
                                   lambda m: setattr(m, "extra", torch.ones(6))),
    "number of steps": (_repeated, lambda m: setattr(m, "steps", 4)),
    "flag": (lambda m, x: -x if m.debug else x, lambda m: setattr(m, "debug", True)),
    "property": (lambda m, x: x * m.level, lambda m: setattr(m, "_level", 3.0)),
    "class attribute": (lambda m, x: nn.functional.leaky_relu(x, m.slope),
                        lambda m: setattr(Base, "slope", 0.7)),
    "closure": _closure(),
    "global number": (lambda _, x: x * FACTOR, _global("FACTOR", 7.0)),
    "global tensor": (lambda _, x: x + SHIFT, _global("SHIFT", torch.tensor(9.0))),
    "global dict": (lambda _, x: x * TABLE["gain"], lambda _: TABLE.update(gain=9.0)),
    "global function": (lambda _, x: double(x), _global("double", halve)),
    "default of a parameter": (lambda _, x: with_default(x),
                               lambda _: setattr(with_default, "__defaults__", (8.0,))),
    "attribute of a function": (lambda _, x: counted(x), lambda _: setattr(counted, "by", 8.0)),
    "constant of a module": (lambda _, x: x * math.tau, lambda _: setattr(math, "tau", 1.0)),
    "module replaced": (lambda m, x: m.inner(x), lambda m: setattr(m, "inner", nn.Linear(6, 6))),
    "parameter replaced": (lambda m, x: x @ m.inner.weight,
                           lambda m: setattr(m.inner, "weight", nn.Parameter(torch.ones(6, 6)))),
    "dtype by default": (lambda _, x: x * torch.ones(6).to(x.dtype) * torch.finfo(torch.get_default_dtype()).bits,
                         lambda _: torch.set_default_dtype(torch.float64)),
}  # fmt: skip


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = (
        {"FACTOR": FACTOR, "SHIFT": SHIFT, "double": double},
        Base.slope,
        math.tau,
        torch.get_default_dtype(),
    )
    yield
    globals().update(before[0])
    Base.slope, math.tau = before[1:3]  # type: ignore[misc]
    torch.set_default_dtype(before[3])
    TABLE.update(gain=1.5)
    with_default.__defaults__ = (1.0,)
    counted.by = 1.0  # type: ignore[attr-defined]


@pytest.mark.parametrize(("what", "training"), [(what, at % 2 > 0) for at, what in enumerate(CASES)])
def test_a_change_is_seen_at_the_next_call(what: str, training: bool):
    read, change = CASES[what]
    torch.manual_seed(0)
    model = Reader(read)
    fast, x = compiled(model), torch.randn(4, 6)

    def same() -> torch.Tensor:
        with torch.set_grad_enabled(training):
            found, expected = fast(x), model(x)
        assert alike(found, expected)
        if training:
            ours, theirs = (gradients(model, lambda c=call: c(x).pow(2).sum()) for call in (fast, model))
            assert alike(ours, theirs)
        return expected

    before = same()
    with torch.no_grad():
        change(model)
    assert not torch.allclose(before, same(), rtol=1e-3), "the case changes nothing"
    same()
    fast.close()


def test_forward_replaced_on_the_model_and_on_its_child():
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU()).eval()
    fast, x = compiled(model), torch.randn(4, 6)
    with torch.no_grad():
        fast(x)
        model[1].forward = torch.sigmoid
        assert alike(fast(x), model(x))
        first = model[0].forward
        model[0].forward = lambda x: first(x) * 3
        assert alike(fast(x), model(x))
        model.forward = lambda x: x + 1
        assert alike(fast(x), x + 1)


def test_modules_added_and_taken_away():
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6)).eval()
    fast, x = compiled(model), torch.randn(4, 6)
    with torch.no_grad():
        fast(x)
        model.append(nn.ReLU())
        assert alike(fast(x), model(x))
        del model[1]
        assert alike(fast(x), model(x))


def test_a_function_of_tensors_sees_what_it_reads():
    by = {"gain": 2.0}

    def function(x: torch.Tensor, power: int = 2) -> torch.Tensor:
        return x**power * by["gain"] * FACTOR

    fast, x = compiled(function), torch.randn(4, 6)
    assert alike(fast(x), function(x))
    by["gain"] = 5.0
    assert alike(fast(x), function(x))
    globals()["FACTOR"] = 11.0
    assert alike(fast(x), function(x))
    assert alike(fast(x, power=3), function(x, power=3))


def test_train_and_eval_of_one_child():
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 6)).eval()
    fast, x = compiled(model), torch.randn(4, 6)
    with torch.no_grad():
        fast(x)
        model[1].train()
        twin = nn.Sequential(model[0], nn.BatchNorm1d(6), model[2])
        assert alike(fast(x), twin(x))
        assert alike(model[1].running_mean, twin[1].running_mean)
        model[1].eval()
        assert alike(fast(x), model(x))
