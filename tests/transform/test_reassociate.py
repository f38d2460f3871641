"""A tree of additions is the chain's sum, as deep as a tree, in a graph that is still one."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from capturing import joint
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from autopar.ir.graph import Graph, Ref, Task, Value
from autopar.pipeline.compare import interpret
from autopar.transform.rewrites import reassociated

CPU = torch.device("cpu")


def chain(terms: int, *, swap: bool = False, phase: Any = "forward") -> Graph:
    """T = d₀ + d₁, t = t + d₂, …, each term made right before it is added."""
    values = [Value("x", (3,), "float64", 24, "x", "input")]
    tasks: list[Task] = []
    total = ""
    for index in range(terms):
        values.append(Value(f"d{index}", (3,), "float64", 24, f"d{index}"))
        tasks.append(
            Task(f"d{index}", "aten.mul.Scalar", (Ref("x"), index + 0.5), outputs=(f"d{index}",), phase=phase)
        )
        if index:
            pair = (Ref(total), Ref(f"d{index}"))
            name = f"t{index}"
            values.append(Value(name, (3,), "float64", 24, name))
            tasks.append(
                Task(name, "aten.add.Tensor", pair[::-1] if swap else pair, outputs=(name,), phase=phase)
            )
        total = f"t{index}" if index else "d0"
    return Graph("chain", tuple(values), tuple(tasks), ("x",), (), (total,)).check()


def depth(graph: Graph) -> int:
    """The most additions on a way to an output."""
    level: dict[str, int] = {}
    for task in graph.tasks:
        below = max((level.get(name, 0) for name in task.inputs), default=0)
        level.update(dict.fromkeys(task.outputs, below + (task.target == "aten.add.Tensor")))
    return max(level.values())


def execute(graph: Graph, **values: torch.Tensor) -> dict[str, Any]:
    live: dict[str, Any] = dict(values)
    for _ in interpret(graph, {}, live, CPU):
        pass
    return live


def additions(graph: Graph) -> list[Task]:
    return [task for task in graph.tasks if task.target == "aten.add.Tensor"]


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("terms", [4, 5, 7, 8, 9, 100, 1000])
def test_a_chain_becomes_a_tree(terms: int, swap: bool) -> None:
    graph = chain(terms, swap=swap)
    after = reassociated(graph).check()
    assert depth(graph) == terms - 1 and depth(after) == math.ceil(math.log2(terms))
    assert len(additions(after)) == terms - 1
    assert after.outputs == graph.outputs and after.tasks[-1].name == graph.tasks[-1].name
    x = torch.randn(3, dtype=torch.float64)
    one, two = (execute(g, x=x)[graph.outputs[0]] for g in (graph, after))
    torch.testing.assert_close(one, two, rtol=1e-13 * terms, atol=0)
    assert len(after.values) == len(graph.values)


@pytest.mark.parametrize("terms", [2, 3])
def test_short_chains_are_trees_already(terms: int) -> None:
    graph = chain(terms)
    assert reassociated(graph) is graph


def test_terms_are_added_as_they_come() -> None:
    """No more partial sums are alive than the tree is deep."""
    after = reassociated(chain(64))
    last = {name: place for place, task in enumerate(after.tasks) for name in task.inputs}
    alive: set[str] = set()
    most = 0
    for place, task in enumerate(after.tasks):
        alive = {name for name in alive if last.get(name, place) > place} | set(task.outputs)
        most = max(most, len(alive))
    assert most <= 1 + math.ceil(math.log2(64)) + 1


@pytest.mark.slow
def test_long_chains_are_quick_and_flat() -> None:
    after = reassociated(chain(20_000)).check()
    assert depth(after) == 15


@pytest.mark.parametrize("what", ["output", "reader", "update", "alpha", "after", "phase"])
def test_a_sum_that_is_seen_ends_the_chain(what: str) -> None:
    graph = chain(9)
    tasks = list(graph.tasks)
    place = next(index for index, task in enumerate(tasks) if task.name == "t4")
    values, outputs, updates = graph.values, graph.outputs, graph.updates
    extra = Value("seen", (3,), "float64", 24, "seen")
    if what == "output":
        outputs = (*outputs, "t4")
    elif what == "update":
        updates = (("t4", "x"),)
    elif what == "reader":
        tasks.insert(place + 1, Task("seen", "aten.neg.default", (Ref("t4"),), outputs=("seen",)))
        values = (*values, extra)
    elif what == "alpha":
        tasks[place] = dataclasses.replace(tasks[place], kwargs=(("alpha", 2.0),))
    elif what == "after":
        tasks[-1] = dataclasses.replace(tasks[-1], after=("t4",))
    else:
        tasks[: place + 1] = [dataclasses.replace(task, phase="backward") for task in tasks[: place + 1]]
    whole = dataclasses.replace(
        graph, tasks=tuple(tasks), values=values, outputs=outputs, updates=updates
    ).check()
    after = reassociated(whole).check()
    assert "t4" in after.task
    x = torch.randn(3, dtype=torch.float64)
    one, two = execute(whole, x=x), execute(after, x=x)
    for name in outputs:
        torch.testing.assert_close(one[name], two[name], rtol=1e-12, atol=0)


def test_gradients_of_a_shared_weight_are_added_in_a_tree() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 4, dtype=torch.float64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            total = torch.zeros((), dtype=torch.float64)
            for index in range(9):
                total = total + (x * (index + 1) @ self.weight).tanh().sum()
            return total

    captured = joint(Shared(), (torch.randn(3, 4, dtype=torch.float64),))
    graph = captured.graph
    after = reassociated(graph).check()
    assert {task.phase for task in after.tasks if "#add" in task.name} == {"forward", "backward"}
    assert len(after.tasks) == len(graph.tasks)
    live = []
    for g in (graph, after):
        torch.manual_seed(0)
        values = {n: torch.randn(g.value[n].shape, dtype=torch.float64) for n in g.inputs}
        values.update((n, owner[key].detach()) for n, (owner, key) in captured.state.items())
        with torch.no_grad():
            live.append(execute(g, **values))
    for name in graph.outputs:
        torch.testing.assert_close(live[0][name], live[1][name], rtol=1e-12, atol=1e-13)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(st.data())
def test_any_additions_keep_their_sum(data: st.DataObject) -> None:
    """Random graphs of additions of integers, which no order of additions changes."""
    values = [Value(n, (2,), "int64", 16, n, "input") for n in ("a", "b", "c")]
    names, tasks = ["a", "b", "c"], []
    for index in range(data.draw(st.integers(1, 25))):
        recent = names[-4:]
        one = data.draw(st.sampled_from(recent))
        other = data.draw(st.sampled_from([*names, *recent]))
        name = f"s{index}"
        values.append(Value(name, (2,), "int64", 16, name))
        tasks.append(Task(name, "aten.add.Tensor", (Ref(one), Ref(other)), outputs=(name,)))
        names.append(name)
    outputs = tuple(data.draw(st.lists(st.sampled_from(names[3:]), min_size=1, max_size=2, unique=True)))
    graph = Graph("any", tuple(values), tuple(tasks), ("a", "b", "c"), (), outputs).check()
    after = reassociated(graph).check()
    given_ = {n: torch.randint(100, (2,)) for n in ("a", "b", "c")}
    one_, two_ = execute(graph, **given_), execute(after, **given_)
    assert all(torch.equal(one_[name], two_[name]) for name in outputs)
