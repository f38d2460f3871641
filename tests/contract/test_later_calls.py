"""After many equal calls, a change of the model, of its surroundings or of the form of the call is seen at once."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as modules
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

import autopar

CALLS = 5
SHIFT = 1.0


class Two(nn.Module):
    """Reads an attribute and a global number; `form` makes its output of two tensors."""

    def __init__(self, form: Callable[..., Any] = torch.add) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.scale, self.form = 2.0, form

    def forward(self, x: Tensor, y: Tensor) -> Any:
        return self.form(self.first(x) * self.scale + SHIFT, self.second(y))


def warm(model: nn.Module, *args: Any) -> Any:
    """Return a compiled model after a few calls."""
    fast = autopar.compile(model, ["cpu"])
    for _ in range(CALLS):
        assert_close(fast(*args), model(*args))
    return fast


def tagged(a: Tensor, b: Tensor) -> Tensor:
    total = a + b
    total.tag = 3  # type: ignore[attr-defined]
    return total


FORMS: dict[str, Callable[..., Any]] = {
    "tuple": lambda a, b: (b, a),
    "list": lambda a, b: [a, b],
    "dict": lambda a, b: {"a": a, "b": b},
    "number": lambda a, b: (a, 3),
    "attribute": tagged,
}


@pytest.mark.parametrize("form", FORMS.values(), ids=list(FORMS))
def test_outputs_have_the_form_that_they_have_in_eager(form: Callable[..., Any]) -> None:
    args = torch.randn(3, 8), torch.randn(3, 8)
    model = Two(form)
    fast = warm(model, *args)
    assert type(fast(*args)) is type(model(*args))
    assert getattr(fast(*args), "tag", 0) == getattr(model(*args), "tag", 0)


class Marked(nn.Module):
    """Sets attributes of itself and of another object, and an item of a dict."""

    def __init__(self, other: Any) -> None:
        super().__init__()
        self.layer, self.other, self.box = nn.Linear(8, 8), other, dict[str, int]()
        self.seen, self.calls = False, 0

    def forward(self, x: Tensor, count: bool = False) -> Tensor:
        self.seen = self.other.seen = True
        self.box["x"] = 1
        if count:
            self.calls += 1
        return self.layer(x).relu()


def test_side_effects_happen_in_each_call() -> None:
    class Other:
        seen = False

    model, x = Marked(Other()), torch.randn(3, 8)
    fast = warm(model, x)
    model.other.seen = model.seen = False
    model.box.clear()
    fast(x)
    assert model.seen and model.other.seen and model.box == {"x": 1}
    previous, model.other = model.other, Other()
    previous.seen = False
    fast(x)
    assert model.other.seen and not previous.seen
    for _ in range(CALLS):
        fast(x, True)
    assert model.calls == CALLS


def attribute(model: Any, _: Any) -> None:
    model.scale = 3.0


def number(_: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setitem(globals(), "SHIFT", 2.0)


def layer(model: Any, _: Any) -> None:
    model.first = nn.Linear(8, 8)


def hook(model: Any, _: Any) -> None:
    model.second.register_forward_hook(lambda module, args, output: output * 2)


def forward(model: Any, _: Any) -> None:
    model.second.forward = lambda y: y - 1


def hook_of_all_modules(_: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(modules, "_global_forward_hooks", {1: lambda module, args, output: output + 1})
    patch.setattr(modules, "_has_any_global_hook", lambda: True)


def dynamo_forgets(*_: Any) -> None:
    torch._dynamo.reset()


CHANGES = (attribute, number, layer, hook, forward, hook_of_all_modules, dynamo_forgets)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_change_is_seen(change: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    model, args = Two(), (torch.randn(3, 8), torch.randn(3, 8))
    fast = warm(model, *args)
    change(model, monkeypatch)
    for _ in range(2):
        assert_close(fast(*args), model(*args))


def test_other_forms_of_a_call() -> None:
    model, x, y = Two(), torch.randn(3, 8), torch.randn(3, 8)
    fast = warm(model, x, y)
    for args, kwargs in (
        ((x,), {"y": y}),
        ((), {"y": y, "x": x}),
        ((x, x), {}),
        ((torch.randn(5, 8), y[:1]), {}),
        ((x.T.contiguous().T, y), {}),
        ((x[:0], y[:0]), {}),
    ):
        for _ in range(CALLS):
            assert_close(fast(*args, **kwargs), model(*args, **kwargs))


CONTEXTS: dict[str, Callable[[], Any]] = {
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "inference mode": torch.inference_mode,
    "no gradients": torch.no_grad,
    "saved-tensor hooks": lambda: torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x),
    "dispatch mode": lambda: FlopCounterMode(display=False),
}


@pytest.mark.parametrize("context", CONTEXTS.values(), ids=list(CONTEXTS))
def test_what_is_active_in_a_call_is_seen(context: Callable[[], Any]) -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU()), torch.randn(5, 8)
    fast = warm(model, x)
    with context():
        ours, eager = fast(x), model(x)
    assert_close(ours, eager)
    assert (ours.requires_grad, ours.is_inference()) == (eager.requires_grad, eager.is_inference())
    assert_close(fast(x), model(x))


def test_only_the_call_under_a_dispatch_mode_is_not_placed() -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU()), torch.randn(5, 8)
    fast = warm(model, x)
    with FlopCounterMode(display=False) as counter:
        fast(x)
    assert counter.get_total_flops() > 0
    with fast.record() as recording:
        fast(x)
    assert len(recording.calls) == 1
    assert "1 call ran as written: _FlopCounterMode, a TorchDispatchMode, is active" in fast.explain()


def test_weights_are_frozen_and_trained_again() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    twin, x = copy.deepcopy(model), torch.randn(5, 8)
    fast = autopar.compile(model, ["cpu"])
    ours, theirs = (torch.optim.SGD(each.parameters(), 0.1, momentum=0.9) for each in (model, twin))
    for frozen in (False, True, False):
        for each in (model, twin):
            each[0].weight.requires_grad_(not frozen)
        for _ in range(3):
            for call, optimizer in ((fast, ours), (twin, theirs)):
                optimizer.zero_grad()
                call(x).square().sum().backward()
                optimizer.step()
            for trained, right in zip(model.parameters(), twin.parameters()):
                assert_close(trained, right)
    model.requires_grad_(False)
    assert not fast(x).requires_grad


def test_transforms() -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU()), torch.randn(5, 8)
    fast = warm(model, x)
    assert_close(torch.vmap(fast)(torch.stack([x, x]))[1], model(x))
    other = {name: value * 2 for name, value in model.state_dict().items()}
    assert_close(
        torch.func.functional_call(fast, other, (x,)), torch.func.functional_call(model, other, (x,))
    )
    assert_close(fast(x), model(x))


def test_hooks_of_a_layer_in_a_plain_list() -> None:
    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.others = nn.Linear(8, 8), [nn.Linear(8, 8)]

        def forward(self, x: Tensor) -> Tensor:
            return self.others[0](self.first(x))

    model, x = Listed(), torch.randn(3, 8)
    fast = warm(model, x)
    for module in (model.others[0], model.first):
        handle = module.register_forward_hook(lambda module, args, output: output * 2)
        assert_close(fast(x), model(x))
        handle.remove()
        assert_close(fast(x), model(x))


def test_a_model_goes_with_its_compiled_form() -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU()), torch.randn(5, 8)
    fast, gone = warm(model, x), weakref.ref(model)
    del model, fast
    gc.collect()
    assert gone() is None
