"""Memory of accelerators: given back in the order of the stream that allocated it, whatever an operator really made."""

from __future__ import annotations

import pytest
import torch
from rig import KIND, error, machine
from torch import library, nn

import autopar

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.accelerator.device_count() < 2, reason="needs two accelerators"),
]

CALLS = 6


def at_second(costed) -> dict[str, str]:
    """Everything on the second accelerator but products, which are on the first."""
    return {run.name: f"{KIND}:{0 if run.name.startswith('mul') else 1}" for run in costed.clusters}


def said_fresh(name, made):
    """An operator of which schema and fake tensors say that it copies; what it does is `made`."""
    library.define(f"autopar_lent::{name}", "(Tensor x) -> Tensor")
    library.impl(f"autopar_lent::{name}", "CompositeExplicitAutograd", made)
    library.register_fake(f"autopar_lent::{name}", lambda x: torch.empty_like(made(x)))
    return getattr(torch.ops.autopar_lent, name)


same = said_fresh("same", lambda x: x.view_as(x))
turned = said_fresh("turned", lambda x: x.t())

MAYBE = {
    "einsum": lambda x: torch.einsum("ij->j", x),
    "einsum, a view": lambda x: torch.einsum("ij->ji", x),
    "einsum, three axes": lambda x: torch.einsum("ij->i", x).view(4, -1),
    "reshape, a copy": lambda x: x.t().reshape(-1),
    "reshape, a view": lambda x: x.reshape(-1),
    "reshape of what is expanded": lambda x: x.expand(3, *x.shape).reshape(3, -1),
    "flatten": lambda x: x.t().flatten(),
    "contiguous": lambda x: x.t().contiguous(),
    "contiguous, a view of it": lambda x: x.t().contiguous().t().reshape(-1),
    "to": lambda x: x.t().to(torch.float32, memory_format=torch.contiguous_format),
    "type_as": lambda x: x.type_as(x),
    "conj": lambda x: x.conj().resolve_conj(),
    "expand": lambda x: x[:1].expand(4, -1).contiguous(),
    "broadcast": lambda x: torch.broadcast_tensors(x, x[:1])[1],
    "unfold": lambda x: x.unfold(0, 2, 2).reshape(-1, 2),
    "atleast": lambda x: torch.atleast_2d(x),
    "chunks": lambda x: x.t().chunk(2)[1].reshape(-1),
    "pixel shuffle": lambda x: torch.pixel_shuffle(x.view(-1, 4, 1, 1), 2),
    "dropout of nothing": lambda x: torch.dropout(x, 0.5, False),
    "said to be fresh": same,
    "said to be fresh, turned": lambda x: turned(x).flatten(),
}


@pytest.mark.parametrize("call", MAYBE.values(), ids=MAYBE)
@torch.no_grad()
def test_views_and_copies_alike(call) -> None:
    """A value that comes to a device in one lane, is viewed or copied in another and read by a third."""

    def model(x):
        return call(x) * 2

    fast = autopar.compile(model, machine(), policy=at_second, split=None, check="never")
    xs = [torch.randn(256, 64) for _ in range(CALLS)]
    found = [fast(x) for x in xs]
    assert error(found, [model(x) for x in xs]) < 1e-5
    fast.close()


class Beside(nn.Module):
    """A view that may be a copy, and work in the same lane that would take its memory."""

    def __init__(self, call) -> None:
        super().__init__()
        self.call, self.weight = call, nn.Parameter(torch.randn(64))

    def forward(self, x):
        made, other = self.call(x), self.weight
        for _ in range(20):
            other = torch.sin(other)
        return made * 2, other


@pytest.mark.parametrize("call", [MAYBE["einsum"], MAYBE["chunks"], same], ids=["einsum", "chunks", "same"])
@torch.no_grad()
def test_memory_is_not_taken_while_it_is_read(call) -> None:
    model = Beside(call).eval()
    fast = autopar.compile(model, machine(), policy=at_second, split=None, check="never")
    xs = [torch.randn(256, 64) for _ in range(12)]
    found = [fast(x) for x in xs]
    assert error([y for ys in found for y in ys], [y for x in xs for y in model(x)]) < 1e-5
    fast.close()


@torch.no_grad()
def test_what_is_returned_is_not_the_copy_of_a_weight() -> None:
    """A result that an operator lent from a weight may be written to: the copy that later calls read is another."""
    model = nn.Linear(8, 8, bias=False)
    model.forward = lambda x: (same(model.weight), x @ model.weight)
    fast = autopar.compile(model, machine(), policy=at_second, split=None, check="never", outputs="as_placed")
    x = torch.randn(4, 8)
    for _ in range(2):
        lent, made = fast(x)
        assert error(made, x @ model.weight) < 1e-5 and lent.device.type != "cpu"
        lent.zero_()
    fast.close()


class View(nn.Module):
    def forward(self, x):
        return x.unsqueeze(0)


class Viewed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.view, self.linear = View(), nn.Linear(16, 16)

    def forward(self, x):
        return torch.relu(self.linear(self.view(x)))


@torch.no_grad()
def test_a_pinned_input_that_the_cpu_views_may_be_overwritten_after_the_call() -> None:
    """A copy of a view that the call made, of memory that the caller has again once it returns."""
    model = Viewed().eval()
    pins = {"view": "cpu", "linear": f"{KIND}:0"}
    fast = autopar.compile(model, machine(), pins=pins, split=None, check="never", outputs="as_placed")
    found, expected = [], []
    for _ in range(8):
        x = torch.randn(16, 16).pin_memory()
        expected.append(model(x))
        found.append(fast(x))
        x.fill_(7.0)
    assert error(found, expected) < 1e-5
    fast.close()


@torch.no_grad()
def test_streamed_weights_are_sent_from_pinned_memory_and_changes_are_seen() -> None:
    model = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    fast = autopar.compile(model.eval(), machine(), home="cpu", policy=f"single {KIND}:0", split=None)
    changes = [
        lambda: None,
        lambda: model[0].weight.mul_(2),
        lambda: model[2].weight.data.mul_(1.5),
        lambda: setattr(model[4], "weight", nn.Parameter(torch.randn(10, 256))),
    ]
    for change in changes:
        change()
        for _ in range(2):
            x = torch.randn(16, 32)
            assert error(fast(x), model(x)) < 1e-5
    (prepared,) = fast._placement.session.graphs[0].programs.values()
    reads = prepared.executor._residents._read
    assert all(each.pinned and each.tensor.is_pinned() for each in reads)
    fast.close()
