"""Calls straight to the program: only while everything is as it was, and no others."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from compilers import Folding, alone, compiled, mlp, using
from shortcuts import long_calls, warm
from torch import Tensor, nn
from torch.nn.modules import module as modules
from torch.utils.flop_counter import FlopCounterMode

import autopar
from autopar.bench import stacks

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with alone(tmp_path, monkeypatch):
        using(monkeypatch, Folding(), fastest="folding")
        yield


@pytest.fixture(params=["eager", "auto"])
def kernels(request: pytest.FixtureRequest) -> str:
    return str(request.param)


mostly_auto = pytest.mark.parametrize("kernels", ["auto", pytest.param("eager", marks=pytest.mark.release)])
"""For tests of the model or of its surroundings, for which both sorts of kernels take the same way."""


class Many(nn.Module):
    """Reads an attribute and a global number, and returns what it is told to."""

    def __init__(self, form: Callable[..., Any]) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.scale, self.form = 2.0, form

    def forward(self, x: Tensor, y: Tensor) -> Any:
        a = self.first(x) * self.scale + SHIFT
        return self.form(a, self.second(y))


SHIFT = 1.0


def tagged(a: Tensor, b: Tensor) -> Tensor:
    made = a + b
    made.tag = 3  # type: ignore[attr-defined]
    return made


@mostly_auto
@pytest.mark.parametrize(
    ("form", "short"),
    [
        (lambda a, b: a + b, True),
        (lambda a, b: (b, a), True),
        (lambda a, b: [a, b], True),
        (lambda a, b: {"a": a, "b": b}, True),
        (lambda a, b: {"a": a, "b": 3}, False),
        (lambda a, b: (a, 3), False),
        (lambda a, b: tagged(a, b), False),
    ],
    ids=["tensor", "tuple", "list", "dict", "dict with a number", "number", "attribute"],
)
def test_what_a_model_returns(kernels: str, form: Callable[..., Any], short: bool) -> None:
    args = torch.randn(3, 8), torch.randn(3, 8)
    fast = warm(kernels, Many(form), *args)
    assert long_calls(fast, *args) == (0 if short else 2)
    assert getattr(fast(*args), "tag", 0) == getattr(form(*args), "tag", 0)


@mostly_auto
def test_arguments_by_keyword(kernels: str) -> None:
    model, x, y = Many(lambda a, b: a - b), torch.randn(3, 8), torch.randn(3, 8)
    fast = autopar.compile(model, ["cpu"], kernels=kernels)  # type: ignore[arg-type]
    for _ in range(2):
        fast(x, y=y)
        fast.wait()
    for _ in range(6):
        torch.testing.assert_close(fast(x, y=y), model(x, y))
    assert long_calls(fast, x, y=y) == 0
    assert long_calls(fast, x, y) == 2
    assert long_calls(fast, y=y, x=x) == 2


class Marked(nn.Module):
    """Sets attributes of itself and of another object."""

    def __init__(self, other: Any) -> None:
        super().__init__()
        self.layer, self.other = nn.Linear(8, 8), other
        self.seen: Any = None
        self.calls = 0

    def forward(self, x: Tensor, count: bool = False) -> Tensor:
        self.seen = self.other.seen = True
        if count:
            self.calls += 1
        return self.layer(x).relu()


@mostly_auto
def test_an_attribute_that_is_set_already_is_no_reason_to_go_the_long_way(kernels: str) -> None:
    class Other:
        seen = False

    model, x = Marked(Other()), torch.randn(3, 8)
    fast = warm(kernels, model, x)
    assert long_calls(fast, x) == 0
    model.other.seen = model.seen = False
    assert fast(x) is not None and model.seen is True and model.other.seen is True
    assert long_calls(fast, x) == 0
    other, model.other = model.other, Other()
    fast(x)
    assert model.other.seen is True and other.seen is True
    before = model.calls
    for _ in range(4):
        fast(x, True)
    assert model.calls == before + 4


class Box(dict[str, int]):
    """A dict with an attribute."""

    seen = False


class Boxed(nn.Module):
    """Sets an attribute and an item of a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.box = nn.Linear(8, 8), Box()

    def forward(self, x: Tensor) -> Tensor:
        self.box.seen = True
        self.box["x"] = 1
        return self.layer(x).relu()


@mostly_auto
def test_other_side_effects_go_the_long_way(kernels: str) -> None:
    model, x = Boxed(), torch.randn(3, 8)
    fast = warm(kernels, model, x)
    assert long_calls(fast, x) == 2
    model.box.clear()
    fast(x)
    assert model.box == {"x": 1} and model.box.seen


def changes() -> dict[str, Callable[[Any, pytest.MonkeyPatch], None]]:
    def attribute(model: Any, _: Any) -> None:
        model.scale = 3.0

    def number(_: Any, patch: pytest.MonkeyPatch) -> None:
        patch.setitem(globals(), "SHIFT", 2.0)

    def module(model: Any, _: Any) -> None:
        model.first = nn.Linear(8, 8)

    def parameter(model: Any, _: Any) -> None:
        model.first.weight = nn.Parameter(torch.randn(8, 8))

    def dtype(model: Any, _: Any) -> None:
        model.first.weight.data = torch.randn(8, 8).double().float()

    def value(model: Any, _: Any) -> None:
        model.first.bias.data.add_(1)

    def hook(model: Any, _: Any) -> None:
        model.second.register_forward_hook(lambda module, args, made: made * 2)

    def forward(model: Any, _: Any) -> None:
        model.second.forward = lambda y: y - 1

    def everywhere(_: Any, patch: pytest.MonkeyPatch) -> None:
        handle = modules.register_module_forward_hook(lambda module, args, made: made)
        patch.setattr(pytest, "handle", handle, raising=False)

    return {each.__name__: each for each in (
        attribute, number, module, parameter, dtype, value, hook, forward, everywhere
    )}  # fmt: skip


@pytest.mark.parametrize(
    ("kernels", "change"),
    [
        pytest.param(kernels, change, id=f"{kernels}-{name}", marks=() if often else pytest.mark.release)
        for name, change in changes().items()
        for kernels, often in (("auto", True), ("eager", name in ("dtype", "number", "value")))
    ],
)
def test_what_changes_is_seen(
    kernels: str, change: Callable[[Any, pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, args = Many(lambda a, b: a + b), (torch.randn(3, 8), torch.randn(3, 8))
    fast = warm(kernels, model, *args)
    assert long_calls(fast, *args) == 0
    try:
        change(model, monkeypatch)
        # Only kernels hold values of weights.
        kept = kernels == "eager" and change.__name__ in ("dtype", "value")
        assert long_calls(fast, *args) == (0 if kept else 2)
    finally:
        if hasattr(pytest, "handle"):
            pytest.handle.remove()


@mostly_auto
def test_other_calls_go_the_long_way(kernels: str) -> None:
    model, x, y = Many(lambda a, b: a + b), torch.randn(3, 8), torch.randn(3, 8)
    fast = warm(kernels, model, x, y)
    assert long_calls(fast, x, y=y) == 2
    assert long_calls(fast, x, x) == 2
    assert long_calls(fast, torch.randn(5, 8), y[:1]) == 2
    assert long_calls(fast, x.T.contiguous().T, y) == 2
    with torch.enable_grad():
        assert long_calls(fast, x, y) == 2
    with fast.record() as recording:
        assert long_calls(fast, x, y) == 2
    assert len(recording.calls) == 2
    assert long_calls(fast, torch.randn(3, 8), y) == 0


@mostly_auto
def test_a_last_batch_of_fewer_rows_takes_no_shortcut_away(kernels: str) -> None:
    """It is captured for all sizes, by another graph."""
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU()), torch.randn(6, 8)
    fast = warm(kernels, model, x)
    with torch.no_grad():
        assert long_calls(fast, x) == 0
        assert long_calls(fast, x[:5]) == 2
        assert long_calls(fast, x) == 0


CONTEXTS: dict[str, Callable[[], Any]] = {
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "inference mode": torch.inference_mode,
    "gradients": torch.enable_grad,
    "saved-tensor hooks": lambda: torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x),
    "dispatch mode": lambda: FlopCounterMode(display=False),
}


@mostly_auto
@pytest.mark.parametrize("context", CONTEXTS.values(), ids=list(CONTEXTS))
def test_what_is_active_is_seen(kernels: str, context: Callable[[], Any]) -> None:
    model, x = mlp(), torch.randn(5, 8)
    fast = warm(kernels, model, x)
    with context():
        found, expected = fast(x), model(x)
        torch.testing.assert_close(found, expected)
        assert found.requires_grad == expected.requires_grad
        assert found.is_inference() == expected.is_inference()
    fast(x)
    assert long_calls(fast, x) == 0


def test_a_call_under_a_dispatch_mode_is_the_only_one_that_is_not_placed() -> None:
    model, x = mlp(), torch.randn(5, 8)
    fast = autopar.compile(model, ["cpu"])
    fast(x)
    counted = FlopCounterMode(display=False)
    with counted:
        fast(x)
    assert counted.get_total_flops() > 0
    before = fast._placement.backend.calls
    fast(x)
    assert fast._placement.backend.calls == before + 1
    assert "FlopCounterMode, a TorchDispatchMode, is active" in fast.explain()


@torch.enable_grad()
def test_calls_to_be_differentiated(kernels: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    twin, x = copy.deepcopy(model), torch.randn(5, 8)
    fast = autopar.compile(model, ["cpu"], kernels=kernels)  # type: ignore[arg-type]
    ours, theirs = (torch.optim.SGD(each.parameters(), 0.1, momentum=0.9) for each in (model, twin))

    def steps(number: int, x: Tensor) -> None:
        for _ in range(number):
            for call, optimizer in ((fast, ours), (twin, theirs)):
                optimizer.zero_grad()
                call(x).square().sum().backward()
                optimizer.step()
            for mine, other in zip(model.parameters(), twin.parameters()):
                torch.testing.assert_close(mine, other)

    steps(6, x)
    assert long_calls(fast, x) == 0
    steps(3, x)
    assert long_calls(fast, x.clone().requires_grad_()) == 2
    model[0].weight.requires_grad_(False)
    twin[0].weight.requires_grad_(False)
    steps(2, x)
    model[0].weight.requires_grad_(True)
    twin[0].weight.requires_grad_(True)
    steps(4, x)
    (first,) = torch.autograd.grad(fast(x).square().sum(), model[0].weight, create_graph=True)
    (wanted,) = torch.autograd.grad(twin(x).square().sum(), twin[0].weight, create_graph=True)
    second, right = (
        torch.autograd.grad(g.sum(), m[2].weight)[0] for g, m in ((first, model), (wanted, twin))
    )
    torch.testing.assert_close(second, right)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), twin(x))


def test_transforms_go_the_long_way(kernels: str) -> None:
    model, x = mlp(), torch.randn(5, 8)
    fast = warm(kernels, model, x)
    torch.testing.assert_close(torch.vmap(fast)(torch.stack([x, x]))[1], model(x))
    other = {name: value * 2 for name, value in model.state_dict().items()}
    torch.testing.assert_close(
        torch.func.functional_call(fast, other, (x,)), torch.func.functional_call(model, other, (x,))
    )
    # The weights are the same tensors again.
    assert long_calls(fast, x) == 0


def test_hooks_that_were_there_are_seen_to_go() -> None:
    model, x = mlp(), torch.randn(5, 8)
    handle = model[0].register_forward_hook(lambda module, args, made: made * 2)
    fast = compiled(model, x)
    for _ in range(6):
        torch.testing.assert_close(fast(x), model(x))
    handle.remove()
    torch.testing.assert_close(fast(x), model(x))


@mostly_auto
def test_dynamo_forgets(kernels: str) -> None:
    model, x = mlp(), torch.randn(5, 8)
    fast = warm(kernels, model, x)
    assert long_calls(fast, x) == 0
    torch._dynamo.reset()
    assert long_calls(fast, x) == 2


@mostly_auto
def test_a_model_goes_with_its_compiled_form(kernels: str) -> None:
    model, x = mlp(), torch.randn(5, 8)
    fast, gone = warm(kernels, model, x), weakref.ref(model)
    assert long_calls(fast, x) == 0
    del model, fast
    gc.collect()
    assert gone() is None


@mostly_auto
def test_outputs_with_fields(kernels: str) -> None:
    pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    models, ids = stacks.library("transformers"), torch.randint(50, (2, 5))
    model = models.BertModel(models.BertConfig(vocab_size=50, **sizes)).eval()
    fast = warm(kernels, model, ids)
    assert type(fast(ids)) is type(model(ids))
    # Kernels that take weights as arguments are called through Dynamo's guards on these.
    assert kernels != "eager" or long_calls(fast, ids) == 0
    more, right = (each(ids, output_hidden_states=True) for each in (fast, model))
    torch.testing.assert_close(more.hidden_states, right.hidden_states)
