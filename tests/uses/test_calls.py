"""What people pass to a model and take from it: classes of their own, branches on values, lazy and scripted modules."""

from __future__ import annotations

import copy
import dataclasses
import logging
from collections import OrderedDict, namedtuple
from typing import Any, NamedTuple

import pytest
import torch
from pairs import alike, compiled, gradients, twins
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

import autopar
from autopar import CaptureError

pytestmark = pytest.mark.slow


@dataclasses.dataclass
class Answer:
    logits: torch.Tensor
    note: str
    hidden: list[torch.Tensor]


class Own:
    """A result of a class of the user's own."""

    def __init__(self, value: torch.Tensor, scale: float) -> None:
        self.value, self.scale = value, scale


class Named(NamedTuple):
    logits: torch.Tensor
    count: int


Pair = namedtuple("Pair", "first second")

FORMS = {
    "dataclass": lambda x: Answer(x, "fine", [x * 2]),
    "own class": lambda x: Own(x, 2.0),
    "named tuple": lambda x: Named(x, x.shape[0]),
    "old named tuple": lambda x: Pair(x, (x * 2, None)),
    "dict": lambda x: {"logits": x, "deep": {"both": (x * 2, "text")}},
    "ordered dict": lambda x: OrderedDict(b=x, a=x * 2),
    "generator of tensors": lambda x: list(x.unbind(0)),
    "nothing": lambda x: None,
    "sum as a number": lambda x: (x, x.sum().item()),
    "shape": lambda x: (x, x.shape, x.dtype),
}
TRAINED = ("dataclass", "named tuple", "dict", "sum as a number")
"""Forms that are returned with gradients too."""


def _parts(result: Any) -> Any:
    """The same of classes that pytree does not know."""
    return {**vars(result)} if isinstance(result, (Answer, Own)) else result


class Shaped(nn.Module):
    def __init__(self, form: Any) -> None:
        super().__init__()
        self.inner, self.form = nn.Linear(6, 6), form

    def forward(self, x: torch.Tensor) -> Any:
        return self.form(self.inner(x))


@pytest.mark.parametrize("form", FORMS)
def test_results_of_any_class(form):
    plain, fast = twins(lambda: Shaped(FORMS[form]))
    x = torch.randn(4, 6)
    for grad in (False, True)[: 1 + (form in TRAINED)]:
        with torch.set_grad_enabled(grad):
            found, expected = fast(x), plain(x)
        assert type(found) is type(expected)
        assert alike(_parts(found), _parts(expected))
        if grad and isinstance(found, Answer):
            found.logits.sum().backward()
            assert fast.inner.weight.grad is not None


def test_a_dataclass_as_the_argument():
    def function(batch: Answer) -> torch.Tensor:
        return batch.logits * 2 + batch.hidden[0] if batch.note == "fine" else batch.logits

    fast, x = compiled(function), torch.randn(4, 6)
    assert alike(fast(Answer(x, "fine", [x])), x * 3)
    assert alike(fast(Answer(x, "other", [x])), x)


def test_methods_that_make_another_of_the_models_class_make_a_plain_one():
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)), torch.randn(3, 8)
    fast = compiled(model)
    assert type(fast[:2]) is type(fast + fast[1:]) is nn.Sequential
    assert alike(fast[:2](x), model[:2](x))
    assert type(type(fast)(nn.ReLU())) is nn.Sequential
    assert alike(fast(x), model(x))


def test_lazy_modules_take_their_sizes_from_the_first_call():
    plain, fast = twins(
        lambda: nn.Sequential(nn.LazyLinear(8), nn.LazyBatchNorm1d(), nn.ReLU(), nn.LazyLinear(3))
    )
    x = torch.randn(4, 6)
    torch.manual_seed(1)
    expected = plain(x)
    torch.manual_seed(1)
    assert alike(fast(x), expected)
    assert alike(gradients(fast, lambda: fast(x).sum()), gradients(plain, lambda: plain(x).sum()))
    assert type(fast[0]) is nn.Linear


class Eight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x)
        if bool(y.sum() > 0):
            return y * 2
        return torch.tanh(y)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("root", [True, False])
def test_scripted_modules_give_eagers_answer(root, caplog):
    scripted = torch.jit.script(Eight())
    model = scripted if root else nn.Sequential(nn.Linear(6, 6), scripted, nn.Linear(6, 6))
    fast, x = compiled(model), torch.randn(4, 6)
    with torch.no_grad(), caplog.at_level(logging.WARNING, "autopar"):
        for scale in (1, -1):
            assert alike(fast(scale * x), model(scale * x))
    assert "as written" in caplog.text or fast.plan
    assert alike(gradients(model, lambda: fast(x).sum()), gradients(model, lambda: model(x).sum()))


class Branching(nn.Module):
    """Branches on values, counts in Python, and loops until a value says so."""

    def __init__(self) -> None:
        super().__init__()
        self.ways = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)])
        self.end = nn.Linear(6, 6)
        self.taken = [0, 0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        way = int(x.mean().item() > 0)
        self.taken[way] += 1
        y = torch.tanh(self.ways[way](x))
        while y.abs().max() > 0.5:
            y = y / 2
        return self.end(y)


def test_branches_on_values_count_and_train():
    plain, fast = twins(Branching)
    x = torch.randn(4, 6).abs()
    for sign in (1, -1, 1, -1):
        with torch.no_grad():
            assert alike(fast(sign * x), plain(sign * x))
        assert fast.taken == plain.taken
        expected = gradients(plain, lambda s=sign: plain(s * x).sum())
        assert alike(gradients(fast, lambda s=sign: fast(s * x).sum()), expected)
    assert fast.taken == plain.taken


def test_vmap_over_a_compiled_model_and_calls_after_it():
    plain, fast = twins(lambda: nn.Sequential(nn.Linear(6, 6), nn.Tanh()))
    x = torch.randn(3, 4, 6)
    with torch.no_grad():
        fast(x[0])
        assert alike(torch.vmap(fast)(x), torch.vmap(plain)(x))
        assert alike(fast(x[1]), plain(x[1]))
    assert alike(gradients(fast, lambda: fast(x[2]).sum()), gradients(plain, lambda: plain(x[2]).sum()))


def test_tracers_of_torch_get_the_plain_model_or_are_told_of_it():
    plain, fast = twins(lambda: nn.Sequential(nn.Linear(6, 6), nn.Tanh()))
    x = torch.randn(4, 6)
    with torch.no_grad():
        for _ in range(2):
            # The first time nothing is planned yet.
            assert alike(torch.jit.trace(fast, (x,))(x), plain(x))
            assert alike(fast(x), plain(x))
            assert alike(make_fx(fast)(x)(x), plain(x))
            with FakeTensorMode(allow_non_fake_inputs=True):
                assert fast(torch.empty(3, 6)).shape == (3, 6)
            with pytest.raises(CaptureError, match=r"fast\.module"):
                torch.fx.symbolic_trace(fast)


def test_functional_call_with_other_weights():
    plain, fast = twins(lambda: nn.Sequential(nn.Linear(6, 6), nn.Tanh()))
    x = torch.randn(4, 6)
    other = {name: torch.randn_like(value) for name, value in plain.state_dict().items()}
    with torch.no_grad():
        fast(x)
        found = torch.func.functional_call(fast, other, (x,))
        assert alike(found, torch.func.functional_call(plain, other, (x,)))
        assert alike(fast(x), plain(x))


def test_checkpoint_inside_and_around():
    class Checked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = checkpoint(lambda t: torch.tanh(self.first(t)), x, use_reentrant=False)
            return self.last(nn.functional.dropout(y, 0.5, self.training))

    plain, fast = twins(Checked)
    x = torch.randn(4, 6)

    def trained(model: nn.Module, run: Any) -> dict[str, Any]:
        torch.manual_seed(3)
        return gradients(model, lambda: run(x).sum())

    for _ in range(2):
        assert alike(trained(fast, fast), trained(plain, plain))
        around = trained(fast, lambda t: checkpoint(fast, t, use_reentrant=False))
        assert alike(around, trained(plain, lambda t: checkpoint(plain, t, use_reentrant=False)))


class Drops(nn.Module):
    """Draws a mask in a checkpointed region, within another one."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 6, sparse=sparse)
        self.inner = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def outer(given: torch.Tensor) -> torch.Tensor:
            return nn.functional.dropout(checkpoint(self.inner, given, use_reentrant=False), 0.3)

        return checkpoint(outer, self.table(x), use_reentrant=False)


@pytest.mark.parametrize("written", [False, True], ids=["placed", "as written"])
def test_a_checkpointed_region_draws_the_same_again(written):
    plain, fast = twins(lambda: Drops(sparse=written))
    x = torch.tensor([[0, 3], [8, 3]])

    def trained(model: nn.Module) -> dict[str, Any]:
        torch.manual_seed(3)
        found = gradients(model, lambda: model(x).pow(2).sum())
        found["table.weight"] = found["table.weight"].to_dense()
        return {**found, "next": torch.rand(2)}

    for _ in range(2):
        assert alike(trained(fast), trained(plain))


def test_an_encoder_with_padding_is_refused_with_the_remedy():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    plain = nn.TransformerEncoder(layer, 1).eval()
    fast = compiled(copy.deepcopy(plain), check="first")
    x, padding = torch.randn(2, 5, 32), torch.zeros(2, 5, dtype=torch.bool)
    padding[1, 3:] = True
    with torch.no_grad():
        for _ in range(2):
            with pytest.raises(autopar.DifferenceError, match="set_fastpath_enabled"):
                fast(x, src_key_padding_mask=padding)
        unchecked = compiled(copy.deepcopy(plain), check="never")
        found, expected = (model(x, src_key_padding_mask=padding) for model in (unchecked, plain))
        assert alike(found[~padding], expected[~padding])
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            assert alike(fast(x, src_key_padding_mask=padding), plain(x, src_key_padding_mask=padding))
        finally:
            torch.backends.mha.set_fastpath_enabled(True)
