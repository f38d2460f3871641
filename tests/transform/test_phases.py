"""Joint graphs: divided into halves, without dead tangents, and with each reader's own views of weights."""

import networkx
import pytest
import torch
from capturing import joint
from executing import execute, given
from torch import nn

from autopar.ir.graph import Graph, Ref, Task, Value
from autopar.transform.divide import alive, closed, divide
from autopar.transform.rewrites import T, with_own_views
from autopar.transform.split import split


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


@pytest.mark.parametrize("name", CASES)
def test_each_reader_s_own_views_leave_the_values_as_they_are(name):
    torch.manual_seed(0)
    make, data = CASES[name]
    x = data()
    captured = joint(make(), (x,))
    inputs = given(captured, (x,))
    graph = with_own_views(captured.graph)
    before, after = (execute(each, captured, inputs) for each in (captured.graph, graph))
    assert graph.outputs == captured.graph.outputs
    for output in graph.outputs:
        assert torch.equal(before[output].nan_to_num(), after[output].nan_to_num())


def test_no_transpose_of_a_weight_is_left_in_linear_layers():
    graph = taken_apart("chain")[2].graph
    weights = set(graph.state)
    assert not [task for task in graph.tasks if task.target == T and weights & set(task.inputs)]


def test_each_reader_of_a_view_of_state_has_its_own_beside_it():
    class Turned(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 5))

        def forward(self, x):
            w = self.weight.permute(1, 0)
            return torch.tanh(x @ w) @ w.t()

    found = joint(Turned(), (torch.randn(8, 5),))
    graph = with_own_views(split(found.graph, (4, 4)))
    fixed = set(graph.state)
    views = [task for task in graph.tasks if task.free and fixed & set(task.inputs)]
    assert len(views) > 2
    for task in views:
        (reader,) = graph.readers[task.outputs[0]]
        assert graph.task[reader].part == task.part and graph.task[reader].phase == task.phase
