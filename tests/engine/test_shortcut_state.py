"""Calls straight to the program, after changes of what belongs to no module or requires grad."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from compilers import Folding, alone, mlp, using
from torch import Tensor, nn

import autopar

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with alone(tmp_path, monkeypatch):
        using(monkeypatch, Folding(), fastest="folding")
        yield


def short(model: nn.Module, kernels: str, *args: Any) -> Any:
    """A compiled model that has a shortcut for calls in this grad mode."""
    fast: Any = autopar.compile(model, ["cpu"], kernels=kernels)  # type: ignore[arg-type]
    for _ in range(6):
        fast(*args)
        fast.wait()
    assert fast._placement.direct._search(args, {}, torch.is_grad_enabled()).shortcut is not None
    return fast


class Headed(nn.Module):
    """A trunk; the weight of the head is an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(8, 8)

    def forward(self, x: Tensor, head: Tensor) -> Tensor:
        return (self.trunk(x) @ head).tanh()


@torch.enable_grad()
def test_parameters_given_as_arguments_take_turns():
    model, x = Headed(), torch.randn(3, 8)
    one, two = (nn.Parameter(torch.randn(8, 2)) for _ in range(2))
    fast = short(model, "eager", x, one)
    for head in (two, one, two, one):
        found, right = fast(x, head), model(x, head)
        assert torch.equal(found, right)
        for made in (found, right):
            made.sum().backward()
        assert torch.equal(head.grad / 2, torch.autograd.grad(model(x, head).sum(), head)[0])
        one.grad = two.grad = None


@torch.enable_grad()
@pytest.mark.parametrize("kernels", ["eager", "auto"])
def test_frozen_weights_are_trained_later(kernels: str):
    model, x = mlp().requires_grad_(False), torch.randn(5, 8)
    fast = short(model, kernels, x)
    model[0].weight.requires_grad_(True)
    twin = copy.deepcopy(model)
    fast(x).sum().backward()
    twin(x).sum().backward()
    torch.testing.assert_close(model[0].weight.grad, twin[0].weight.grad)
    model.requires_grad_(False)
    assert not fast(x).requires_grad


class Listed(nn.Module):
    """A layer in a plain list, which is none of the model's modules."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.others = nn.Linear(8, 8), [nn.Linear(8, 8)]

    def forward(self, x: Tensor) -> Tensor:
        return self.others[0](self.first(x))


@pytest.mark.parametrize("kernels", ["eager", "auto"])
def test_hooks_of_a_layer_in_a_plain_list_are_called(kernels: str):
    model, x = Listed(), torch.randn(3, 8)
    fast = short(model, kernels, x)
    for layer in (model.others[0], model.first):
        handle = layer.register_forward_hook(lambda module, args, made: made * 2)
        torch.testing.assert_close(fast(x), model(x))
        handle.remove()
        torch.testing.assert_close(fast(x), model(x))


@pytest.mark.parametrize("training", [False, True])
def test_another_thread_ends_its_search_for_a_shortcut_during_a_call(
    monkeypatch: pytest.MonkeyPatch, training: bool
):
    model, x = nn.Linear(8, 2), torch.randn(3, 8)
    fast: Any = autopar.compile(model, ["cpu"])
    asked: list[int] = []

    def returned(backend: Any) -> list[Any] | None:
        asked.append(1)
        return [] if len(asked) % 2 else None

    with torch.set_grad_enabled(training):
        for _ in range(2):
            fast(x)
        monkeypatch.setattr(
            type(fast._placement.backend), "returned", property(returned, lambda *_: None), raising=False
        )
        assert torch.equal(fast._placement.call(x), model(x)) and asked
