"""A joint graph taken apart: the halves together are the whole, and dead tangents cost nothing and give None."""

import networkx
import pytest
import torch
from capturing import joint
from torch import nn

from autopar.ir.graph import Graph, Ref, Task, Value
from autopar.transform.divide import alive, closed, divide
from autopar.transform.rewrites import with_own_views


class Heads(nn.Module):
    """Two heads on one trunk, one of them without a finite gradient."""

    def __init__(self):
        super().__init__()
        self.trunk, self.left, self.right = nn.Linear(5, 6), nn.Linear(6, 3), nn.Linear(6, 2)

    def forward(self, x):
        h = torch.tanh(self.trunk(x))
        return self.left(h), self.right(h), 1 / (self.left.bias.sum() * 0)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.norm = nn.BatchNorm1d(4)
        self.out = nn.Linear(4, 7, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, i):
        return self.out(self.norm(self.embed(i)))


CASES = {
    "heads": (Heads, lambda: torch.randn(4, 5)),
    "tied": (Tied, lambda: torch.arange(6)),
    "chain": (lambda: nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3)), lambda: torch.randn(2, 3)),
}


def taken_apart(name):
    torch.manual_seed(0)
    make, data = CASES[name]
    model, x = make(), data()
    captured = joint(model, (x,))
    tangents = [name for name, _ in captured.tangents]
    graph = with_own_views(closed(captured.graph, tangents, len(captured.gradients)))
    return model, x, captured, *divide(graph, len(captured.gradients))


def saved(captured, forward):
    return forward.outputs[len(captured.graph.outputs) - len(captured.gradients) :]


def test_the_backward_cannot_begin_before_the_forward_has_answered():
    captured = taken_apart("heads")[2]
    tangents = [name for name, _ in captured.tangents]
    whole = closed(captured.graph, tangents, len(captured.gradients)).networkx()
    outputs = captured.graph.outputs[: len(captured.graph.outputs) - len(captured.gradients)]
    makers = {captured.graph.producer[name] for name in outputs}
    assert makers <= networkx.ancestors(whole, "loss")


@pytest.mark.slow
def test_no_weight_is_saved():
    for name in CASES:
        _, _, captured, forward, _ = taken_apart(name)
        weights = {value for value, _ in captured.gradients}
        roots = {captured.graph.value[name].storage for name in saved(captured, forward)}
        assert weights.isdisjoint(roots)


def test_dead_tangents_leave_their_tasks_out():
    _, _, captured, _, backward = taken_apart("heads")
    tangents = [name for name, _ in captured.tangents]
    less = alive(backward, tangents, tangents[:1])
    assert len(less.tasks) < len(backward.tasks)
    assert not any("zeros" in task.target for task in less.tasks)
    assert "right.weight" not in less.state


def test_a_sum_that_widens_its_summand_stays_a_sum():
    """With one of them dead, what is left alone would be too narrow a gradient."""
    values = (
        Value("narrow", (4, 1), "float32", 16, "narrow", "input"),
        Value("wide", (4, 3), "float32", 48, "wide", "input"),
        Value("whole", (4, 3), "float32", 48, "whole"),
    )
    task = Task(
        "whole", "aten.add.Tensor", (Ref("narrow"), Ref("wide")), outputs=("whole",), phase="backward"
    )
    graph = Graph("any backward", values, (task,), ("narrow", "wide"), (), ("whole",)).check()
    tangents = ("narrow", "wide")
    assert [t.target for t in alive(graph, tangents, ("wide",)).tasks] == []
    assert "whole" in alive(graph, tangents, ("narrow",)).task
