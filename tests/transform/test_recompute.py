"""What is computed again in the backward is what it was, and takes less memory."""

from __future__ import annotations

import functools
from itertools import pairwise
from typing import Any

import pytest
import torch
from capturing import joint
from executing import execute
from graphs import machine
from hypothesis import given, settings
from hypothesis import strategies as st
from split_models import Block
from torch import nn
from turns import by_turns

from autopar.capture import Captured
from autopar.costs.roofline import cost
from autopar.ir.graph import Graph, Ref, Task, Value
from autopar.planner import place
from autopar.transform.rematerialize import recomputed, saved, saved_bytes
from autopar.transform.row_sums import summed
from autopar.transform.split import split

pytestmark = pytest.mark.slow

BUDGETS = (1.0, 0.8, 0.6, 0.4, 0.2, 0.0)


class Stack(nn.Sequential):
    def __init__(self, layers: int, width: int = 16) -> None:
        super().__init__(*(Block(width) for _ in range(layers)))


def convs() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3),
        nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.GELU(), nn.Conv2d(4, 2, 1), nn.SiLU(),
    )  # fmt: skip


def mlp() -> nn.Module:
    return nn.Sequential(*(module for _ in range(9) for module in (nn.Linear(8, 8), nn.GELU())))


CASES: dict[str, Any] = {
    "blocks": (lambda: Stack(3), (6, 5, 16)),
    "convs": (convs, (6, 3, 8, 8)),
    "mlp": (mlp, (6, 8)),
}


@functools.cache
def case(name: str) -> Captured:
    torch.manual_seed(0)
    make, shape = CASES[name]
    return joint(make().double(), (torch.randn(shape, dtype=torch.float64),))


@pytest.mark.parametrize("name", CASES)
def test_values_are_bit_equal_and_saved_bytes_fall(name: str) -> None:
    captured = case(name)
    graph = captured.graph
    before = execute(graph, captured)
    held = []
    for budget in BUDGETS:
        after = recomputed(graph, budget).check()
        assert (after.inputs, after.outputs, after.updates) == (graph.inputs, graph.outputs, graph.updates)
        live = execute(after, captured)
        for out in (*graph.outputs, *(made for made, _ in graph.updates)):
            assert torch.equal(live[out], before[out]), (budget, out)
        assert recomputed(graph, budget) == after
        held.append(saved_bytes(after))
        assert set(saved(after)) <= set(saved(graph))
    assert held[0] == saved_bytes(graph)
    assert all(one >= other for one, other in pairwise(held))
    assert held[-1] < 0.5 * held[0]
    assert recomputed(graph, 1.0) is graph
    # A budget is met as far as cheap tasks allow.
    least = saved_bytes(recomputed(graph, 1e-9))
    assert all(size <= max(least, budget * held[0]) for budget, size in zip(BUDGETS, held))


@by_turns("name, budget", CASES, [0.5, 0.0])
def test_recomputed_tasks_run_late_in_the_backward(name: str, budget: float) -> None:
    after = recomputed(case(name).graph, budget)
    again = [task for task in after.tasks if task.name.endswith("#again")]
    assert again
    for task in again:
        assert task.phase == "backward" and task.random is None
        assert task.after and all(after.task[name].phase == "backward" for name in task.after)
        assert any(after.readers[name] for name in task.outputs)
    assert all(task.flops == 0 for task in again) or budget == 0


@pytest.mark.parametrize("p", [0.0, 1.0, 0.4])
def test_a_dropout_is_applied_again(p: float) -> None:
    torch.manual_seed(0)
    layers = (nn.Linear(8, 8), nn.GELU(), nn.Dropout(p))
    model = nn.Sequential(*layers, *layers, nn.Linear(8, 2)).double()
    captured = joint(model, (torch.randn(6, 8, dtype=torch.float64),))
    after = recomputed(captured.graph, 1e-9).check()
    assert saved_bytes(after) < 0.8 * saved_bytes(captured.graph)
    one, two = execute(captured.graph, captured), execute(after, captured)
    assert all(torch.equal(one[name], two[name]) for name in captured.graph.outputs)
    parted = split(summed(after), (2, 4)).check()
    live = execute(parted, captured)
    assert not any("join" in task.name and task.phase == "backward" for task in parted.tasks)
    for name in captured.graph.outputs:
        torch.testing.assert_close(live[name], one[name], rtol=1e-12, atol=1e-12)


def test_state_that_the_forward_moves_on_is_not_read_again() -> None:
    graph = case("convs").graph
    after = recomputed(graph, 0)
    again = [task for task in after.tasks if task.name.endswith("#again")]
    assert any("batch_norm" in task.target for task in again)
    assert all(graph.mutated.isdisjoint(task.inputs) for task in again)


@pytest.mark.parametrize("kind", ["blocks", "convs"])
def test_the_peak_of_a_plan_falls(kind: str) -> None:
    torch.manual_seed(0)
    if kind == "blocks":
        graph = joint(Stack(6, 32), (torch.randn(16, 24, 32),)).graph
    else:
        kinds = (lambda: nn.Conv2d(8, 8, 3, padding=1), lambda: nn.BatchNorm2d(8), nn.ReLU)
        layers = (kind() for _ in range(12) for kind in kinds)
        graph = joint(nn.Sequential(*layers), (torch.randn(8, 8, 16, 16),)).graph
    on = machine(1)
    peaks = []
    for budget in (1.0, 0.4, 0.0):
        plan = place(cost(recomputed(graph, budget), on, homes={}), "single")
        peaks.append(max(plan.peaks.values()))
    assert peaks[1] < 0.8 * peaks[0] and peaks[2] < 0.9 * peaks[1]


@pytest.mark.parametrize("budget", [-0.1, 1.1, float("nan")])
def test_a_budget_is_a_share(budget: float) -> None:
    with pytest.raises(ValueError, match="from 0 to 1"):
        recomputed(case("mlp").graph, budget)


def test_a_forward_alone_is_left_as_it_is() -> None:
    graph = Graph("none", (Value("x", (1,), "float32", 4, "x", "input"),), (), ("x",), (), ())
    assert recomputed(graph, 0) is graph and saved(graph) == ()


def chain(length: int, flops: int) -> Graph:
    """A chain forward, and one back that reads each value of it."""
    values = [Value("x", (4,), "float32", 16, "x", "input"), Value("g", (4,), "float32", 16, "g", "input")]
    tasks, before = [], "x"
    for index in range(length):
        name = f"f{index}"
        values.append(Value(name, (4,), "float32", 16, name))
        cost = flops if index % 2 else 0
        tasks.append(Task(name, "aten.relu.default", (Ref(before),), outputs=(name,), flops=cost))
        before = name
    before = "g"
    for index in reversed(range(length)):
        name = f"b{index}"
        values.append(Value(name, (4,), "float32", 16, name))
        args = (Ref(before), Ref(f"f{index}"))
        tasks.append(Task(name, "aten.mul.Tensor", args, outputs=(name,), phase="backward"))
        before = name
    return Graph("chain", tuple(values), tuple(tasks), ("x", "g"), (), (before,)).check()


@pytest.mark.parametrize("flops", [0, 10])
def test_a_deep_chain_keeps_about_the_square_root(flops: int) -> None:
    graph = chain(2500, flops)
    assert len(saved(graph)) == 2500
    least = recomputed(graph, 0).check()
    assert len(saved(least)) <= 120
    assert len(least.tasks) <= len(graph.tasks) + 2500


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_any_graph_stays_a_graph(data: st.DataObject) -> None:
    """Random forwards with views, several outputs and random tasks; a backward that reads anything."""
    values = [Value("x", (4,), "float32", 16, "x", "input"), Value("g", (4,), "float32", 16, "g", "input")]
    pool, tasks = ["x"], []
    count = data.draw(st.integers(2, 14))
    for index in range(count):
        kind = data.draw(st.sampled_from(["cheap", "cheap", "view", "flops", "random", "pair"]))
        reads = data.draw(st.lists(st.sampled_from(pool), min_size=1, max_size=2, unique=True))
        made = [f"f{index}", *([f"h{index}"] if kind == "pair" else [])]
        for name in made:
            storage = next(v.storage for v in values if v.name == reads[0]) if kind == "view" else name
            values.append(Value(name, (4,), "float32", 16, storage))
        tasks.append(
            Task(
                f"t{index}",
                "aten.any.default",
                tuple(map(Ref, reads[:1] if kind == "view" else reads)),
                outputs=tuple(made),
                free=kind == "view",
                unpack=kind == "pair",
                flops=5 if kind == "flops" else 0,
                random="default" if kind == "random" else None,
            )
        )
        pool += made
    back = "g"
    for index in range(data.draw(st.integers(1, 10))):
        name = f"b{index}"
        values.append(Value(name, (4,), "float32", 16, name))
        reads = data.draw(st.lists(st.sampled_from(pool), max_size=3, unique=True))
        args = tuple(map(Ref, (back, *reads)))
        tasks.append(Task(name, "aten.any.default", args, outputs=(name,), phase="backward"))
        back = name
    kept = data.draw(st.sampled_from(pool[1:]))
    graph = Graph("any", tuple(values), tuple(tasks), ("x", "g"), (), (kept, back)).check()
    held = []
    for budget in BUDGETS:
        after = recomputed(graph, budget).check()
        held.append(saved_bytes(after))
        names = {value: value.removesuffix("#again") for value in after.value}
        for task in after.tasks:
            origin = graph.task[task.name.removesuffix("#again")]
            assert {names[name] for name in task.inputs} == set(origin.inputs)
            assert not (task.name.endswith("#again") and task.random)
    assert all(one >= other for one, other in pairwise(held))
