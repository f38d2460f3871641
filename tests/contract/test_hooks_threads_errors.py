"""Hooks run, threads do not disturb each other, and errors are the user's own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from machines import placed
from models import MODELS, assert_same
from torch import nn

import autopar

pytestmark = pytest.mark.slow


def _pre(model: nn.Sequential) -> Any:
    return model[0].register_forward_pre_hook(lambda _, args: (args[0] * 2,))


def _post(model: nn.Sequential) -> Any:
    return model[1].register_forward_hook(lambda _, __, output: output + 1)


def _top(model: nn.Sequential) -> Any:
    return model.register_forward_hook(lambda _, __, output: output * 3)


@pytest.mark.parametrize("where", ["cpu", "devices"])
@pytest.mark.parametrize("hook", [_pre, _post, _top], ids=lambda hook: hook.__name__.strip("_"))
def test_hooks_run_from_the_call_after_they_are_registered(
    hook: Callable[[nn.Sequential], Any], where: str
) -> None:
    model, (x,) = MODELS["mlp"].model(), MODELS["mlp"].batches([4])
    fast = autopar.compile(model, **placed(where, model))
    with torch.no_grad():
        for _ in range(3):
            without = fast(x)
        assert_same(without, model(x))
        handle = hook(model)
        for _ in range(3):
            assert_same(fast(x), model(x))
        assert not torch.equal(fast(x), without)
        handle.remove()
        for _ in range(3):
            assert_same(fast(x), without)


def test_a_hook_that_counts_is_called_in_each_call() -> None:
    model, (x,) = MODELS["mlp"].model(), MODELS["mlp"].batches([4])
    shapes: list[torch.Size] = []
    model[0].register_forward_hook(lambda _, __, output: shapes.append(output.shape))
    fast = autopar.compile(model, ["cpu"])
    with torch.no_grad():
        fast(x)
        before = len(shapes)
        for _ in range(4):
            fast(x)
    assert len(shapes) == before + 4
    assert {*shapes} == {(4, 16)}


def test_hooks_of_parameters_see_eagers_gradients() -> None:
    plain, model = (MODELS["mlp"].model() for _ in range(2))
    (x,) = MODELS["mlp"].batches([4])
    gradients: list[torch.Tensor] = []
    for net in (plain, model):
        net[0].weight.register_hook(gradients.append)
    fast = autopar.compile(model, **placed("halves", model))
    for _ in range(2):
        plain(x).sum().backward()
        fast(x).sum().backward()
    assert len(gradients) == 4
    assert_same(gradients[1::2], gradients[::2])


@pytest.mark.parametrize("where", ["cpu", "devices"])
def test_threads_get_the_results_of_their_own_calls(where: str) -> None:
    plain, model = (MODELS["branches"].model().eval() for _ in range(2))
    fast = autopar.compile(model, **placed(where, model))
    differences: list[str] = []

    def call(seed: int) -> None:
        draw = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for n in range(12):
                x = torch.randn(1 + n % 4, 6, generator=draw, dtype=torch.float64)
                try:
                    assert_same(fast(x), plain(x))
                except Exception as error:
                    differences.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=call, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not differences, differences[0]


class _Picky(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(4, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        if ids.dim() != 2:
            raise KeyError("ids")
        return self.embed(ids)


@pytest.mark.parametrize("warm", [False, True], ids=["first_call", "later"])
@pytest.mark.parametrize(
    ("ids", "error"),
    [(torch.tensor([[0, 9]]), IndexError), (torch.tensor([1]), KeyError), (torch.ones(1, 2), RuntimeError)],
    ids=["index", "users_own", "dtype"],
)
def test_errors_have_the_class_that_they_have_in_eager(
    ids: torch.Tensor, error: type[Exception], warm: bool
) -> None:
    model = _Picky()
    with pytest.raises(error):
        model(ids)
    fast = autopar.compile(model, ["cpu"])
    valid = torch.tensor([[0, 1]])
    if warm:
        fast(valid)
    with pytest.raises(error):
        fast(ids)
    assert_same(fast(valid), model(valid))
