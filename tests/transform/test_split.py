"""A split graph gives what the graph gives, and cuts what can be cut."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from capturing import capture
from executing import in_parts
from hypothesis import given
from hypothesis import strategies as st
from split_models import MLP, MODELS, Block, D, Later
from torch import nn
from turns import by_turns

from autopar.errors import PlanError
from autopar.ir.graph import JOIN, PART, Cut, Graph, Ref, Task, Value
from autopar.transform.batch_axis import batch_of
from autopar.transform.split import allot, even, shares, split

FLOWING = ("mlp", "conv", "block", "masked", "words", "lstm", "gru", "later", "heads", "strided")
"""Models of which nothing is rejoined before the end."""


def cut_tasks(graph: Graph) -> list[Task]:
    return [task for task in graph.tasks if task.part]


@pytest.mark.slow
@by_turns("name, sizes", MODELS, [(3, 4), (1, 5, 1)])
def test_a_split_model_gives_what_the_model_gives(name: str, sizes: tuple[int, ...]) -> None:
    model, make = MODELS[name]
    captured, parted = in_parts(model, make(sum(sizes)), sizes)
    assert parted.split == f"{len(sizes)} parts: {' + '.join(map(str, sizes))}"
    assert {task.part for task in cut_tasks(parted)} == {
        f"rows {start}–{start + size - 1}"
        for start, size in zip([sum(sizes[:index]) for index in range(len(sizes))], sizes)
    }
    assert batch_of(captured.graph) == 7
    if name in FLOWING:
        assert sum(task.target == JOIN for task in parted.tasks) <= len(captured.graph.outputs)
        heavy = {task.name for task in captured.graph.tasks if task.flops}
        assert heavy <= {task.origin for task in cut_tasks(parted)}


def test_the_mlp_splits_into_chains_that_share_nothing_but_state() -> None:
    _, parted = in_parts(MLP().double(), (torch.randn(6, 8, **D),), (2, 4))
    for index, other in ((0, 1), (1, 0)):
        chain = {
            name for task in cut_tasks(parted) if task.name.endswith(f"#{index}") for name in task.inputs
        }
        assert not any(name.endswith(f"#{other}") for name in chain)
    parts = [task for task in parted.tasks if task.target == PART]
    assert [task.args[1:] for task in parts] == [(0, 0, 2, 6), (0, 2, 6, 6)]
    assert all(task.free for task in parts)


def test_a_flow_through_statistics_is_rejoined_and_cut_again() -> None:
    captured, parted = in_parts(MODELS["mixes"][0], (torch.randn(6, 8, **D),), (3, 3))
    origins = [task.origin for task in cut_tasks(parted)]
    linears = [task.name for task in captured.graph.tasks if "linear" in task.target]
    assert len(linears) == 2 and set(linears) <= set(origins)
    norm = next(task for task in parted.tasks if "batch_norm" in task.target)
    assert not norm.part
    assert len(parted.updates) == len(captured.graph.updates) > 0


def test_a_value_that_tasks_read_whole_is_rejoined_once() -> None:
    layer = nn.Linear(8, 8).double()

    def model(x: torch.Tensor) -> Any:
        y = layer(x).relu()
        return y.cumsum(0), y.sum(0), y

    _, parted = in_parts(model, (torch.randn(6, 8, **D),), (3, 3))
    assert sum(task.target == JOIN for task in parted.tasks) == 1


def test_random_tasks_stay_whole_and_in_order() -> None:
    model = nn.Sequential(
        nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 4)
    ).double()
    with torch.no_grad():
        captured = capture(model.train(), (torch.randn(6, 8, **D),), {})
    parted = split(captured.graph, (3, 3)).check()
    random = [task for task in parted.tasks if task.random]
    assert [task.name for task in random] == [task.name for task in captured.graph.tasks if task.random]
    assert random[1].after == (random[0].name,)
    assert (
        len({task.origin for task in cut_tasks(parted)} & {t.name for t in captured.graph.tasks if t.flops})
        == 3
    )


@pytest.mark.parametrize(
    ("model", "rows", "sizes"),
    [
        (lambda x: x.view(6, 2, 4).transpose(1, 2), 6, (3, 3)),
        (torch.relu, 6, (3, 3)),
        (MLP().double(), 1, (1,)),
    ],
    ids=["views alone", "one cheap task", "a batch of one"],
)
def test_graphs_that_gain_nothing_by_a_split_stay_whole(
    model: Any, rows: int, sizes: tuple[int, ...]
) -> None:
    captured = capture(model, (torch.randn(rows, 8, **D),), {})
    assert split(captured.graph, sizes) is captured.graph
    assert batch_of(captured.graph) == rows


@pytest.mark.slow
def test_the_batch_is_the_axis_that_cuts_the_work() -> None:
    captured = capture(Later().double().eval(), (torch.randn(5, 7, 16, **D),), {})
    assert batch_of(captured.graph) == 7
    captured = capture(Block().double(), (torch.randn(7, 5, 16, **D),), {})
    assert batch_of(captured.graph) == 7


@pytest.mark.parametrize("sizes", [(), (0, 7), (-1, 8), (3, 6)], ids=str)
def test_sizes_that_are_no_cut_of_the_batch_are_refused(sizes: tuple[int, ...]) -> None:
    captured = capture(MLP().double(), (torch.randn(7, 8, **D),), {})
    with pytest.raises(PlanError, match="positive" if sum(sizes) in (0, 7) else "add up to"):
        split(captured.graph, sizes)


def test_a_split_graph_is_not_split_again() -> None:
    captured = capture(MLP().double(), (torch.randn(7, 8, **D),), {})
    with pytest.raises(PlanError, match="split already"):
        split(split(captured.graph, (3, 4)), (3, 4))


def chain(length: int) -> Graph:
    """A chain of tasks in place of layers, 8 rows, with an in-place task and an order by `after`."""
    values = [Value("x", (8, 4), "float32", 128, "x", "input")]
    tasks = []
    for index in range(length):
        before, after = values[-1].name, f"y{index}"
        values.append(Value(after, (8, 4), "float32", 128, after))
        tasks.append(
            Task(
                f"t{index}",
                "aten.relu.default",
                (Ref(before),),
                outputs=(after,),
                flops=10,
                cuts=(Cut((0,), (0,)),),
            )
        )
    return Graph("chain", tuple(values), tuple(tasks), ("x",), (), (values[-1].name,)).check()


@pytest.mark.slow
def test_a_long_chain_does_not_recurse() -> None:
    parted = split(chain(10_000), (3, 5)).check()
    assert len(cut_tasks(parted)) == 20_000


def test_order_by_after_is_kept_within_a_part() -> None:
    graph = chain(4)
    tasks = list(graph.tasks)
    tasks[2] = dataclasses.replace(tasks[2], after=("t0",))
    tasks[3] = dataclasses.replace(tasks[3], after=("t0",), cuts=())
    parted = split(dataclasses.replace(graph, tasks=tuple(tasks)), (3, 5)).check()
    assert parted.task["t2#1"].after == ("t0#1",)
    assert parted.task["t3"].after == ("t0#0", "t0#1")


@given(st.integers(1, 200), st.lists(st.floats(0, 1e3), min_size=1, max_size=8))
def test_shares_add_up_and_follow_the_weights(batch: int, weights: list[float]) -> None:
    if not sum(weights):
        with pytest.raises(PlanError, match="shares"):
            allot(batch, weights)
        return
    rows = allot(batch, weights)
    total = math.fsum(weights)
    assert sum(rows) == batch
    assert all(abs(share - batch * weight / total) < 1 + 1e-6 for share, weight in zip(rows, weights))
    assert shares(batch, weights) == tuple(share for share in rows if share)


@given(st.integers(1, 100), st.integers(1, 12))
def test_even_parts_differ_by_one_at_most(batch: int, parts: int) -> None:
    rows = even(batch, parts)
    assert sum(rows) == batch and len(rows) == min(batch, parts) and max(rows) - min(rows) <= 1
