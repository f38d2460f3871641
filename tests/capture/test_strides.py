"""Tensors lie in memory as eager's do: what parts are rejoined to, and what a call returns."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import autopar
from autopar.capture.captured import GAPS, alike, laid
from autopar.costs.clustering import unfused
from autopar.ir.graph import JOIN
from autopar.ops import resolve as bind
from autopar.session import stages

pytestmark = pytest.mark.slow

SPREAD = ["cpu*2", "emulated:0", "emulated:1"]


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every task is placed by itself, however short it is."""
    cost = stages.cost
    monkeypatch.setattr(stages, "cost", lambda *args, **kwargs: unfused(cost(*args, **kwargs)))


@st.composite
def dense(draw: st.DrawFn) -> tuple[Tensor, tuple[int, ...]]:
    """A dense tensor, and its axes from the slowest to the fastest."""
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    order = draw(st.permutations(range(len(shape))))
    made = torch.empty_permuted(shape, order)
    return made.copy_(torch.arange(made.numel()).view(shape)), tuple(order)


@settings(deadline=None, max_examples=60)
@given(dense(), st.data())
def test_parts_are_rejoined_in_the_order_asked_for(
    whole: tuple[Tensor, tuple[int, ...]], data: st.DataObject
):
    tensor, order = whole
    axis = data.draw(st.integers(0, tensor.dim() - 1))
    sizes = data.draw(st.lists(st.integers(1, tensor.shape[axis]), min_size=1))
    stops = [stop for stop in itertools.accumulate(sizes) if stop < tensor.shape[axis]]
    parts = tensor.tensor_split(stops, axis)
    if data.draw(st.booleans()):
        # Kernels may lay a part out in another way.
        parts = [part.clone(memory_format=torch.contiguous_format) for part in parts]
    in_order = order == tuple(range(tensor.dim()))
    made = bind.target(JOIN)(parts, axis) if in_order else bind.target(JOIN)(parts, axis, order)
    assert torch.equal(made, tensor) and alike(made, tensor.stride())


def test_parts_in_channels_last_are_rejoined_row_major_too():
    whole = torch.randn(4, 3, 5, 2)
    made = bind.target(JOIN)([channels_last(part) for part in whole.split(2)], 0)
    assert torch.equal(made, whole) and made.is_contiguous()


@settings(deadline=None, max_examples=60)
@given(dense(), st.data())
def test_a_tensor_is_laid_as_another_and_only_where_it_is_not(
    whole: tuple[Tensor, tuple[int, ...]], data: st.DataObject
):
    tensor, _ = whole
    gaps = data.draw(st.lists(st.integers(1, 3), min_size=tensor.dim(), max_size=tensor.dim()))
    other = torch.empty([size * gap for size, gap in zip(tensor.shape, gaps)])
    other = other[tuple(slice(None, None, gap) for gap in gaps)]
    if data.draw(st.booleans()):
        axis = data.draw(st.integers(0, tensor.dim() - 1))
        other = other.narrow(axis, 0, 1).expand_as(tensor)
        tensor = tensor.narrow(axis, 0, 1).expand_as(tensor).clone()
    made = laid(tensor, other.stride())
    assert torch.equal(made, tensor) and alike(made, other.stride())
    assert laid(made, other.stride()) is made


def test_large_gaps_are_not_made_again():
    made = laid(torch.arange(12.0).view(3, 4).t(), (GAPS, 1))
    assert made.stride() == (3, 1) and made.untyped_storage().nbytes() == 48


def channels_last(x: Tensor) -> Tensor:
    return x.to(memory_format=torch.channels_last)


def in_place(x: Tensor) -> Tensor:
    t = x.clone()
    t.relu_()
    t[:, 1:3].zero_()
    t.transpose(0, 1)[0].fill_(3)
    return t


RETURNS: dict[str, Callable[[Tensor], Any]] = {
    "transposed": lambda x: (x * 2).transpose(1, 2),
    "channels last": lambda x: channels_last(x + 1),
    "expanded": lambda x: (x.mean(0) * 2).expand(3, 4, 6, 8),
    "every second": lambda x: (x + 1)[:, ::2],
    "the last": lambda x: (x * 2)[:, -1],
    "a view of the input": lambda x: x.transpose(0, 1),
    "an expanded input": lambda x: x[:1].expand(5, 4, 6, 8),
    "one and its view": lambda x: ((y := x.tanh()), y.transpose(1, 3)),
    "windows": lambda x: x.sin().unfold(3, 3, 1),
    "changed in place": in_place,
    "filled": lambda x: (x * 2).transpose(1, 2)[:, ::2].fill_(3),
    "several": lambda x: (torch.einsum("bchw,bcHw->hHbc", x, x), x.sort(1)),
    "a number and nothing": lambda x: {"n": x.shape[0], "none": None, "sum": x.sum(), "x": x.mT * 2},
}
GIVEN: dict[str, Callable[[], Tensor]] = {
    "contiguous": lambda: torch.randn(4, 4, 6, 8),
    "transposed": lambda: torch.randn(4, 4, 8, 6).transpose(0, 1).mT,
    "channels last": lambda: channels_last(torch.randn(4, 4, 6, 8)),
    "every second": lambda: torch.randn(4, 4, 6, 16)[..., ::2],
}


def tensors(output: Any) -> Iterator[Tensor]:
    return (leaf for leaf in torch.utils._pytree.tree_leaves(output) if isinstance(leaf, Tensor))


@pytest.mark.usefixtures("one_by_one")
@pytest.mark.parametrize(
    "layout, how, training",
    [
        *((layout, "in parts", False) for layout in GIVEN),
        *((layout, "spread", True) for layout in GIVEN),
        *((layout, how, False) for layout in ("transposed", "channels last") for how in ("alone", "spread")),
    ],
)
def test_outputs_have_eagers_strides(layout: str, how: str, training: bool) -> None:
    def everything(x: Tensor) -> dict[str, Any]:
        # Autograd forbids that change of what a backward reads, in eager too.
        names = [name for name in RETURNS if not (training and name == "changed in place")]
        return {name: RETURNS[name](x) for name in names}

    torch.manual_seed(0)
    x = GIVEN[layout]().requires_grad_(training)
    options: dict[str, dict[str, Any]] = {
        "alone": {"devices": ["cpu"]},
        "spread": {"devices": SPREAD, "policy": "round_robin", "split": None},
        "in parts": {"devices": SPREAD, "policy": "round_robin", "split": 2},
    }
    fast = autopar.compile(everything, check="never", **options[how])
    wanted = everything(x)
    found = fast(x)
    assert fast.plan
    for name, output in found.items():
        for one, other in zip(tensors(output), tensors(wanted[name]), strict=True):
            assert torch.allclose(one, other, atol=1e-5), name
            assert one.stride() == other.stride() and one.requires_grad == other.requires_grad, name


@pytest.mark.usefixtures("one_by_one")
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize(
    "devices, check", [(["cpu"], "first"), (["cpu"], "never"), (SPREAD, "first")], ids=str
)
def test_strides_that_fakes_do_not_know_come_from_kernels_or_the_check(
    devices: list[str], check: str, training: bool
) -> None:
    class Rolled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return torch.roll(super().forward(x).permute(0, 3, 1, 2), 1, 1)

    model, x = Rolled(8, 4).requires_grad_(training), torch.randn(4, 6, 3, 8)
    fast = autopar.compile(model, devices, policy="round_robin" if devices == SPREAD else "auto", check=check)
    wanted = model(x)
    for _ in range(2):
        found = fast(x)
        assert torch.allclose(found, wanted, atol=1e-5) and found.stride() == wanted.stride()


@pytest.mark.usefixtures("one_by_one")
def test_strides_are_those_of_each_batch_size() -> None:
    def turned(x: Tensor) -> tuple[Tensor, ...]:
        y = x.tanh() * 2
        return y.t(), y.t().contiguous(), y.mean(1, keepdim=True).expand(-1, 5)

    fast = autopar.compile(turned, SPREAD, policy="round_robin", check="never")
    for rows in (4, 5, 6, 9, 7):
        x = torch.randn(rows, 8)
        assert [t.stride() for t in fast(x)] == [t.stride() for t in turned(x)]


@pytest.mark.usefixtures("one_by_one")
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_a_model_in_another_memory_format_is_planned_anew(training: bool) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Dropout(0.3), nn.ReLU()), torch.randn(4, 3, 6, 6)
    model.requires_grad_(training)
    fast = autopar.compile(model, SPREAD, policy="round_robin", split=2, check="never")
    for change in (torch.contiguous_format, torch.channels_last, torch.contiguous_format):
        model.to(memory_format=change)
        torch.manual_seed(1)
        wanted = model(x)
        torch.manual_seed(1)
        found = fast(x)
        assert torch.allclose(found, wanted, atol=1e-6) and found.stride() == wanted.stride()


@pytest.mark.parametrize("rows", [1, 2])
def test_group_norm_of_a_transposed_view_is_eagers(rows: int):
    class Attended(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.given, self.norm = nn.Linear(16, 16), nn.GroupNorm(4, 16)

        def forward(self, x: Tensor) -> Tensor:
            y = self.given(x).transpose(1, 2).view(len(x), 16, 8, 8)
            return self.norm(y + 1).tanh() + y

    model = Attended()
    plain, fast = copy.deepcopy(model), autopar.compile(model, ["cpu"], check="never")
    x, weights = torch.randn(rows, 64, 16), torch.randn(rows, 16, 8, 8)
    found, right = fast(x), plain(x)
    assert torch.equal(found, right)
    for made in (found, right):
        (made * weights).sum().backward()
    for ours, theirs in zip(model.parameters(), plain.parameters()):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-5, atol=1e-5)
