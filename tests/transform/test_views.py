"""Views of weights in a joint graph: fewer, and each reader's own; the values stay."""

import pytest
import torch
from capturing import joint
from test_phases import CASES
from torch import nn

from autopar.session.compare import interpret
from autopar.transform.rewrites import T, folded, with_own_views
from autopar.transform.split import split


def captured(name="chain"):
    torch.manual_seed(0)
    make, data = CASES[name]
    x = data()
    return joint(make(), (x,)), x


def given(found, x):
    shapes = {name: found.graph.value[name].shape for name, _ in found.tangents}
    torch.manual_seed(1)
    return {found.graph.inputs[0]: x, **{name: torch.randn(shape) for name, shape in shapes.items()}}


def values_of(graph, captured, given):
    values = {name: owner[key].detach().clone() for name, (owner, key) in captured.state.items()}
    values.update(given)
    with torch.no_grad():
        for _ in interpret(graph, captured.calls, values, torch.device("cpu")):
            pass
    return values


@pytest.mark.parametrize("name", CASES)
def test_values_stay(name):
    found, x = captured(name)
    before = values_of(found.graph, found, given(found, x))
    graph = with_own_views(found.graph)
    after = values_of(graph, found, given(found, x))
    assert graph.outputs == found.graph.outputs
    for output in graph.outputs:
        assert torch.equal(before[output].nan_to_num(), after[output].nan_to_num())


def test_no_transpose_of_a_weight_is_left_in_linear_layers():
    found, _ = captured("chain")
    weights = set(found.graph.state)
    assert not [task for task in found.graph.tasks if task.target == T and weights & set(task.inputs)]


def test_folding_twice_changes_nothing():
    found, _ = captured("heads")
    again, names = folded(found.graph)
    assert not names and again == found.graph


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
