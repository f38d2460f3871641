"""Graphs traced in one run are those that AOTAutograd makes, and what one run cannot tell goes its way."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import autopar
from autopar.capture import tracing
from autopar.ir.graph import Graph


class Residual(nn.Module):
    """Convolutions, batch norms, and activations in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.norm, self.act = nn.BatchNorm2d(4), nn.ReLU(inplace=True)
        self.drop = nn.Dropout(0.5, inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.act(self.norm(self.first(x)))
        out = self.last(h)
        out += h
        return self.drop(self.act(out)).flatten(1).mean(1)


class Attention(nn.Module):
    """An encoder layer in eval mode, whose dropouts do nothing, with a mask made of sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.mix = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), nn.LSTM(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(5, 5, dtype=torch.bool).tril().logical_not() & (torch.arange(5) > 7)
        return self.mix(self.layer(functional.dropout(x, 0.3, self.training), src_mask=mask).float())[0]


def taken_apart(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Several results of one call, numbers beside tensors, and a result that is an argument seen otherwise."""
    top, where = x.topk(2)
    first, *_ = x.chunk(2, dim=1)
    written = torch.tensor([[2.0]])
    return (
        top + written,
        where,
        first,
        x.t(),
        x.detach().to(torch.float32) * 2,
        torch.zeros(2).add_(3),
        written,
    )


SEEN = [
    (Residual().eval(), torch.randn(2, 3, 8, 8)),
    (Attention().eval(), torch.randn(2, 5, 8)),
    (taken_apart, torch.randn(4, 6)),
]


def in_a_view(x: torch.Tensor) -> torch.Tensor:
    made = x * 2
    made[0] = 1.0
    return made


def seen_by_a_view(x: torch.Tensor) -> torch.Tensor:
    made = x * 2
    row = made[0]
    made.add_(1)
    return row


def seen_by_a_detached_one(x: torch.Tensor) -> torch.Tensor:
    made = torch.zeros(4)
    made.detach().add_(1)
    return made * x


def into_the_argument(x: torch.Tensor) -> torch.Tensor:
    return x.mul_(2).relu()


def drawn(x: torch.Tensor) -> torch.Tensor:
    return functional.dropout(x, 0.5, True) + torch.bernoulli(torch.full_like(x, 0.5))


def wider(x: torch.Tensor) -> torch.Tensor:
    made = torch.arange(4)
    made += 1
    return x.sum() + made


def shared_without_a_word(
    share: Callable[[torch.Tensor], torch.Tensor], into: bool, view: bool
) -> Callable[..., Any]:
    """Change a value in place, or one that shares its memory although no schema says so; return the other."""

    def call(x: torch.Tensor) -> torch.Tensor:
        made = x * 2
        other = share(made)
        written = made if into else other
        (written[0] if view else written).add_(1)
        return other if into else made

    return call


UNTOLD = [
    lambda made: functional.dropout(made, 0.5, False),
    lambda made: torch.einsum("ij->ji", made),
    lambda made: made.type_as(made),
    lambda made: made.sum_to_size(3, 4),
    lambda made: torch.broadcast_tensors(made, made)[0],
    lambda made: torch.meshgrid(made[0], made[1, :1], indexing="ij")[0],
]


UNSEEN = [in_a_view, seen_by_a_view, seen_by_a_detached_one, into_the_argument, drawn]


def captured(call: Callable[..., Any], x: torch.Tensor) -> tuple[Graph, list[Any]]:
    """The graph of a call, and three answers of it."""
    torch._dynamo.reset()
    fast = autopar.compile(call, ["cpu"], check="never")
    torch.manual_seed(0)
    with torch.no_grad():
        answers = [fast(x.clone()) for _ in range(3)]
    return fast.plan.costed.graph, answers


def plain(graph: Graph) -> str:
    """A graph with values and tasks by number: AOTAutograd has made more nodes than it keeps."""
    names = {value.name: f"value {number}" for number, value in enumerate(graph.values)}
    names |= {
        task.module: "" for task in graph.tasks
    }  # what is made again for a change has that of the change
    names |= {task.name: f"task {number}" for number, task in enumerate(graph.tasks)}
    return re.sub(r"'([^']*)'", lambda found: names.get(found[1], found[1]), repr(graph))


def never(*_: Any) -> None:
    raise NotImplementedError


@pytest.mark.slow
@pytest.mark.parametrize(("call", "x"), SEEN)
def test_one_run_gives_the_same_graph(call, x, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(tracing, "flattened", never)
        once, answers = captured(call, x)
    with monkeypatch.context() as patch:
        patch.setattr(tracing, "_once", never)
        twice, _ = captured(call, x)
    assert plain(once) == plain(twice)
    with torch.no_grad():
        expected = call(x)
    for answer in answers:
        assert all(map(torch.equal, _leaves(answer), _leaves(expected)))


@pytest.mark.parametrize("call", [*UNSEEN, wider])
def test_all_else_is_as_eager(call):
    x = torch.randn(3, 4)
    _, answers = captured(call, x)
    torch.manual_seed(0)
    with torch.no_grad():
        for answer in answers:
            assert torch.equal(answer, call(x.clone()))


@pytest.mark.parametrize("view", [True, False])
@pytest.mark.parametrize("into", [True, False])
@pytest.mark.parametrize("share", UNTOLD)
def test_memory_shared_without_a_word(share, into, view):
    test_all_else_is_as_eager(shared_without_a_word(share, into, view))


@pytest.mark.slow
@pytest.mark.parametrize("into", [True, False])
def test_a_dropout_that_is_off_in_training(into):
    call, x = shared_without_a_word(UNTOLD[0], into, view=False), torch.randn(3, 4)
    fast = autopar.compile(call, ["cpu"], check="never")
    found, right = (run(x.clone().requires_grad_()) for run in (fast, call))
    assert found.requires_grad
    assert torch.equal(found, right)


@pytest.mark.parametrize("training", [True, False])
def test_a_dropout_beside_a_change_in_place(training):
    def call(x: torch.Tensor) -> torch.Tensor:
        made = x * 2
        made[0] = 1.0
        return functional.dropout(made, 0.5, training)

    test_all_else_is_as_eager(call)


def test_an_argument_that_is_changed_is_the_callers_own():
    ours, theirs = torch.ones(3, 4), torch.ones(3, 4)
    fast = autopar.compile(into_the_argument, ["cpu"], check="never")
    with torch.no_grad():
        for _ in range(3):
            assert torch.equal(fast(ours), into_the_argument(theirs))
            assert torch.equal(ours, theirs)


def test_statistics_of_a_norm_in_training_are_kept():
    def norm(x: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
        return functional.batch_norm(x, mean, variance, training=True)

    x, fast = torch.randn(4, 3), autopar.compile(norm, ["cpu"], check="never")
    ours, theirs = (torch.zeros(3), torch.ones(3)), (torch.zeros(3), torch.ones(3))
    with torch.no_grad():
        for _ in range(3):
            assert torch.equal(fast(x, *ours), norm(x, *theirs))
            assert all(map(torch.equal, ours, theirs))


def test_nothing_that_does_nothing_is_a_task():
    graph, _ = captured(Attention().eval(), torch.randn(2, 5, 8))
    copies = [task.target for task in graph.tasks if "dropout" in task.target or "_to_copy" in task.target]
    assert not copies


def _leaves(item: Any) -> list[torch.Tensor]:
    return list(item) if isinstance(item, tuple) else [item]
