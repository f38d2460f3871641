"""Captured graphs are sound, and say where their tasks come from."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import networkx
import pytest
import torch
from capture_models import CALLS, Call
from capturing import capture
from torch import nn

from autopar.ir.graph import Const, Graph


@pytest.mark.slow
@pytest.mark.parametrize("make", CALLS, ids=lambda make: make.__name__)
def test_graph_is_sound(make: Callable[[], Call]) -> None:
    model, args, kwargs = make()
    with torch.no_grad():
        captured = capture(model, args, kwargs)
    graph = captured.graph.check()
    names_no_device(graph)
    effects_are_ordered(graph)
    assert all(graph.value[name].kind == "state" for name in captured.state)
    for value in graph.values:
        root = graph.value[value.storage]
        assert root.storage == root.name


def names_no_device(graph: Graph) -> None:
    def consts(item: Any) -> list[str]:
        if isinstance(item, tuple):
            return [text for part in item for text in consts(part)]
        return [item.text] if isinstance(item, Const) else []

    for task in graph.tasks:
        for text in consts((*task.args, *(value for _, value in task.kwargs))):
            assert text == "device" or not text.startswith(("cpu", "cuda"))


def effects_are_ordered(graph: Graph) -> None:
    """Draws are a chain."""
    order = graph.networkx()
    above = {task.name: networkx.ancestors(order, task.name) for task in graph.tasks}
    draws = [task for task in graph.tasks if task.random]
    for earlier, later in itertools.pairwise(draws):
        assert earlier.name in above[later.name]
    assert all(task.home for task in draws)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.tied = nn.Linear(4, 4)
        self.tied.weight = self.linear.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = self.linear(x).relu()
        return self.tied(y)


def test_tied_weights_are_one_value_and_the_live_parameter() -> None:
    model = Block()
    captured = capture(model, (torch.randn(2, 4),))
    assert [name for name in captured.graph.state if name.endswith("weight")] == ["linear.weight"]
    owner, key = captured.state["linear.weight"]
    assert owner[key] is model.linear.weight


def test_tasks_say_where_the_user_wrote_them() -> None:
    captured = capture(Block(), (torch.randn(2, 4),))
    where = {task.target: (task.module, task.code) for task in captured.graph.tasks}
    assert where["aten.relu.default"] == ("", "y = self.linear(x).relu()")
    assert [task.module for task in captured.graph.tasks] == ["linear", "", "tied"]
    assert all("test_capture.py:" in task.source for task in captured.graph.tasks)


def test_views_share_storage_and_copies_do_not() -> None:
    captured = capture(lambda x: (x.relu().view(-1).view(2, 4)[0].clone(),), (torch.randn(2, 4),))
    graph = captured.graph
    views = [task for task in graph.tasks if task.free]
    assert len(views) == 3 and all(task.target != "aten.view.default" for task in graph.tasks)
    relu = next(task for task in graph.tasks if task.target == "aten.relu.default").outputs[0]
    assert {graph.value[task.outputs[0]].storage for task in views} == {relu}
    assert graph.value[graph.outputs[0]].storage == graph.outputs[0]


def test_no_dead_tasks() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x.exp()
        a, _ = x.split(2, -1)
        return a + x.split(2, -1)[1]

    graph = capture(f, (torch.randn(2, 4),)).graph
    assert [task.target for task in graph.tasks] == ["aten.split.Tensor", "aten.add.Tensor"]
    assert graph.tasks[0].unpack and len(graph.tasks[0].outputs) == 2


def test_arguments_are_named_as_written() -> None:
    def f(x: torch.Tensor, pair: tuple[torch.Tensor, torch.Tensor], **more: Any) -> torch.Tensor:
        return x + pair[0] * pair[1] - more["mask"]

    x = torch.ones(2)
    graph = capture(f, (x, (x + 1, x + 2)), {"mask": x + 3}).graph
    assert {*graph.inputs} == {"x", "pair.0", "pair.1", "mask"}


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_last_states_of_a_recurrent_layer_are_memory_of_their_own(kind) -> None:
    first = torch.randn(1, 3, 8)
    states = (first, torch.randn(1, 3, 8)) if kind is nn.LSTM else first
    graph = capture(kind(4, 8), (torch.randn(5, 3, 4), states)).graph
    assert all(value.storage == value.name for value in graph.values if value.kind == "made")
    assert [graph.value[name].shape for name in graph.outputs[1:]] == [(1, 3, 8)] * len(graph.outputs[1:])
