"""Guards that are checked by the versions of dicts: each change of a module is seen, and few guards are left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from compilers import Folding, alone, using
from torch import Tensor, nn

import autopar
from autopar.capture import steady
from autopar.system import cpython, memory

pytestmark = pytest.mark.skipif(not cpython.versioned(), reason="dicts have no versions in this Python")


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with alone(tmp_path, monkeypatch):
        using(monkeypatch, Folding(), fastest="folding")
        yield


HALF = 0.5


def bent(x: Tensor, by: float = 1.0) -> Tensor:
    return x.abs() * by


class Block(nn.Module):
    """Reads attributes of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm, self.drop = nn.Linear(4, 4), nn.LayerNorm(4), nn.Dropout(0.5)
        self.scale, self.shifts, self.act, self.sizes = 2.0, [0.5, 1.5], torch.tanh, (1, 2)
        self.register_buffer("offset", torch.ones(4))
        self.extra: dict[str, float] = {}

    def forward(self, x: Tensor) -> Tensor:
        made = self.drop(self.act(self.inner(self.norm(x)))) * self.scale + self.offset + self.shifts[0]
        for more in self.extra.values():
            made = made + more
        made = bent(made) * HALF
        return made * self.sizes[1] if hasattr(self, "twice") else made


class Shifted(Block):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1


def compiled(model: nn.Module, x: Tensor) -> Any:
    fast: Any = autopar.compile(model, ["cpu"], kernels="auto")
    for _ in range(6):
        fast(x)
        fast.wait()
    return fast


def check_of(fast: Any, x: Tensor) -> steady._SteadyCheck:
    """The check of a model's shortcut."""
    holds = fast._placement.direct._search((x,), {}, False).shortcut._holds
    cells = dict(zip(holds.__code__.co_freevars, holds.__closure__))
    found = cells["check"].cell_contents
    assert isinstance(found, steady._SteadyCheck)
    return found


def a_linear(seed: int) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(4, 4)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "an attribute": lambda block: setattr(block, "scale", 3.0),
    "an attribute of a module inside": lambda block: setattr(block.norm, "eps", 10.0),
    "an attribute through its dict": lambda block: vars(block).update(scale=4.0),
    "a new attribute": lambda block: setattr(block, "twice", True),
    "a tuple, and a new attribute": lambda block: vars(block).update(twice=True, sizes=(1, 5)),
    "an item of a list": lambda block: block.shifts.__setitem__(0, 7.0),
    "an item of a dict that was empty": lambda block: block.extra.update(a=2.0),
    "a function": lambda block: setattr(block, "act", torch.sin),
    "a module": lambda block: setattr(block, "inner", a_linear(5)),
    "a module through its dict": lambda block: block._modules.update(norm=nn.Identity()),
    "a parameter": lambda block: setattr(block.inner, "weight", nn.Parameter(torch.ones(4, 4))),
    "a parameter that is gone": lambda block: setattr(block.inner, "bias", None),
    "a buffer": lambda block: block._buffers.update(offset=torch.zeros(4)),
    "a class": lambda block: setattr(block, "__class__", Shifted),
    "a class of a module inside": lambda block: setattr(block.norm, "__class__", nn.Identity),
    "all attributes": lambda block: object.__setattr__(block, "__dict__", {**vars(block), "scale": 9.0}),
    "a parametrization": lambda block: nn.utils.parametrizations.weight_norm(
        block.inner
    ).parametrizations.weight.original0.mul_(2),
    "the default of a function": lambda block: setattr(bent, "__defaults__", (2.0,)),
    "the code of a function": lambda block: setattr(bent, "__code__", (lambda x, by: x - by).__code__),
    "a global": lambda block: globals().update(HALF=0.25),
    "a function of torch": lambda block: setattr(nn.functional, "linear", lambda x, *_: x),
    "a hook": lambda block: block.inner.register_forward_hook(lambda module, given, made: made * 2),
}


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("change", CHANGES, ids=lambda name: name.replace(" ", "-"))
def test_a_change_is_seen(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for owner, name in ((bent, "__code__"), (bent, "__defaults__"), (nn.functional, "linear")):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    monkeypatch.setitem(globals(), "HALF", HALF)
    torch.manual_seed(0)
    model, x = nn.Sequential(Block(), nn.ReLU(), Block()).eval(), torch.randn(3, 4)
    fast = compiled(model, x)
    assert check_of(fast, x)._steady is not None and torch.equal(fast(x), model(x))
    before = model(x)
    CHANGES[change](model[2])
    for _ in range(3):
        torch.testing.assert_close(fast(x), model(x))
    assert not torch.equal(before, model(x)), "this changes nothing"


@torch.no_grad()
def test_few_guards_are_left_and_come_back_after_a_change_that_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = nn.Sequential(
        *(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.LayerNorm(4)) for _ in range(20))
    ).eval()
    x = torch.randn(3, 4)
    fast = compiled(model, x)
    check: Any = check_of(fast, x)
    assert check._steady is not None
    few = len([*steady.managers(check._steady[1].__self__)])
    assert few < len([*steady.managers(check._root)]) / 4
    counted, before = [], check._all

    def counting(values: dict[str, Any]) -> bool:
        counted.append(values)
        return bool(before(values))

    check._all = counting
    fast(x)
    assert not counted
    vars(model[3])["unread"] = 0
    for _ in range(3):
        fast(x)
    assert len(counted) == 2 and check._steady is not None


@torch.no_grad()
def test_what_changes_again_and_again_is_left_to_dynamo() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(10))).eval()
    x = torch.randn(3, 4)
    fast = compiled(model, x)
    check: Any = check_of(fast, x)
    check._renewals = lambda make: make()
    few = len([*steady.managers(check._steady[1].__self__)])
    for turn in range(steady.RESTLESS + 1):
        assert check._steady is not None
        vars(model[3])["unread"] = turn
        assert torch.equal(fast(x), model(x))
    kept = check._steady
    vars(model[3])["unread"] = -1
    assert torch.equal(fast(x), model(x)) and check._steady is kept
    left, total = (len([*steady.managers(root)]) for root in (kept[1].__self__, check._root))
    assert few < left < total / 2
    model[3][0].weight = nn.Parameter(torch.ones(4, 4))
    torch.testing.assert_close(fast(x), model(x))


@torch.no_grad()
def test_a_model_that_changes_in_each_call_is_checked_in_full() -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval(), torch.randn(3, 4)
    fast = compiled(model, x)
    check: Any = check_of(fast, x)
    check._renewals, renewals = lambda make: None, check._renewals
    for turn in range(3):
        vars(model)["unread"] = turn
        assert torch.equal(fast(x), model(x)) and check._steady is None
    check._renewals = renewals
    fast(x)
    assert check._steady is not None
    model[0].weight = nn.Parameter(torch.ones(4, 4))
    torch.testing.assert_close(fast(x), model(x))


def test_what_is_left_for_later_is_done_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    seldom, made = memory.seldom(), []

    def make() -> int:
        now[0] += 1.0
        made.append(now[0])
        return len(made)

    assert seldom(make) == 1 and seldom(make) is None
    now[0] += 200.0
    assert seldom(make) == 2 and len(made) == 2
