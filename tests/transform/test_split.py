"""A split graph gives what the graph gives, and cuts what can be cut."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from capturing import capture
from hypothesis import given, settings
from hypothesis import strategies as st
from split_models import MLP, MODELS, Block, D, Ends, Later, twice
from torch import nn
from turns import by_turns

from autopar.capture import Captured
from autopar.errors import PlanError
from autopar.ir.graph import JOIN, PART, Cut, Graph, Ref, Task, Value
from autopar.ops import resolve as bind
from autopar.transform.batch_axis import batch_of
from autopar.transform.split import allot, even, shares, split

CPU = torch.device("cpu")


def interpret(graph: Graph, captured: Captured, inputs: list[torch.Tensor]) -> dict[str, Any]:
    """Every value of a graph, task after task; each must be what its Value says."""
    live: dict[str, Any] = dict(zip(graph.inputs, inputs, strict=True))
    live.update((name, owner[key]) for name, (owner, key) in captured.with_slices(graph).state.items())
    for task in graph.tasks:
        args = [bind.argument(item, live.__getitem__, CPU) for item in task.args]
        kwargs = {key: bind.argument(item, live.__getitem__, CPU) for key, item in task.kwargs}
        made = bind.target(task.target, captured.calls)(*args, **kwargs)
        made = list(made) if task.unpack else [made] if task.outputs else []
        for name, item in zip(task.outputs, made, strict=True):
            live[name] = item
            value = graph.value[name]
            if isinstance(item, torch.Tensor):
                assert tuple(item.shape) == value.shape, name
                assert item.numel() * item.element_size() == value.bytes, name
                root = live[value.storage]
                if task.target == PART and item.numel():
                    assert item.untyped_storage().data_ptr() == root.untyped_storage().data_ptr(), name
    return live


def cut_tasks(graph: Graph) -> list[Task]:
    return [task for task in graph.tasks if task.part]


def same(
    model: Callable[..., Any], args: tuple[Any, ...], sizes: tuple[int, ...], **kwargs: Any
) -> tuple[Graph, Graph]:
    """Capture, split, run both; the graph and the split graph."""
    with torch.no_grad():
        captured = capture(model, args, kwargs)
        whole = captured.graph
        parted = split(whole, sizes).check()
        inputs = captured.flatten(args, kwargs)
        before, after = interpret(whole, captured, inputs), interpret(parted, captured, inputs)
    assert parted.outputs == whole.outputs
    assert parted.updates == whole.updates
    for name in (*whole.outputs, *(made for made, _ in whole.updates)):
        torch.testing.assert_close(after[name], before[name], rtol=1e-12, atol=1e-12)
    assert sum(task.flops for task in parted.tasks) == sum(task.flops for task in whole.tasks)
    assert split(whole, sizes) == parted
    return whole, parted


@pytest.mark.slow
@by_turns("name, sizes", MODELS, [(3, 4), (1, 5, 1)])
def test_a_split_model_gives_what_the_model_gives(name: str, sizes: tuple[int, ...]) -> None:
    model, make = MODELS[name]
    whole, parted = same(model, make(sum(sizes)), sizes)
    assert parted.split == f"{len(sizes)} parts: {' + '.join(map(str, sizes))}"
    assert {task.part for task in cut_tasks(parted)} == {
        f"rows {start}–{start + size - 1}"
        for start, size in zip([sum(sizes[:index]) for index in range(len(sizes))], sizes)
    }
    assert batch_of(whole) == 7


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["mlp", "conv", "block", "masked", "words", "lstm", "gru", "later", "heads", "strided"]
)
def test_nothing_is_rejoined_before_the_end(name: str) -> None:
    model, make = MODELS[name]
    whole, parted = same(model, make(6), (3, 3))
    joins = [task for task in parted.tasks if task.target == JOIN]
    assert len(joins) <= len(whole.outputs)
    origins = {task.origin for task in cut_tasks(parted)}
    heavy = {task.name for task in whole.tasks if task.flops}
    assert heavy <= origins


def test_the_mlp_splits_into_chains_that_share_nothing_but_state() -> None:
    _, parted = same(MLP().double(), (torch.randn(6, 8, **D),), (2, 4))
    for index, other in ((0, 1), (1, 0)):
        chain = {
            name for task in cut_tasks(parted) if task.name.endswith(f"#{index}") for name in task.inputs
        }
        assert not any(name.endswith(f"#{other}") for name in chain)
    parts = [task for task in parted.tasks if task.target == PART]
    assert [task.args[1:] for task in parts] == [(0, 0, 2, 6), (0, 2, 6, 6)]
    assert all(task.free for task in parts)


def test_a_flow_through_statistics_is_rejoined_and_cut_again() -> None:
    whole, parted = same(MODELS["mixes"][0], (torch.randn(6, 8, **D),), (3, 3))
    origins = [task.origin for task in cut_tasks(parted)]
    linears = [task.name for task in whole.tasks if "linear" in task.target]
    assert len(linears) == 2 and set(linears) <= set(origins)
    norm = next(task for task in parted.tasks if "batch_norm" in task.target)
    assert not norm.part
    assert len(parted.updates) == len(whole.updates) > 0


def test_what_reads_the_batch_whole_is_rejoined_once() -> None:
    layer = nn.Linear(8, 8).double()

    def model(x: torch.Tensor) -> Any:
        y = layer(x).relu()
        return y.cumsum(0), y.sum(0), y

    _, parted = same(model, (torch.randn(6, 8, **D),), (3, 3))
    assert sum(task.target == JOIN for task in parted.tasks) == 1


def test_rows_of_a_product_with_itself_need_the_other_side_whole() -> None:
    _, parted = same(twice, (torch.randn(6, 8, **D),), (2, 4))
    products = [task for task in cut_tasks(parted) if task.flops]
    assert len(products) == 2


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


def test_views_alone_are_not_cut() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return x.view(6, 2, 4).transpose(1, 2)

    captured = capture(model, (torch.randn(6, 8, **D),), {})
    assert split(captured.graph, (3, 3)) is captured.graph


def test_one_cheap_task_is_not_cut_to_be_rejoined() -> None:
    captured = capture(torch.relu, (torch.randn(6, 8, **D),), {})
    assert split(captured.graph, (3, 3)) is captured.graph


def test_a_batch_of_one_and_a_single_part_change_nothing() -> None:
    with torch.no_grad():
        captured = capture(MLP().double(), (torch.randn(1, 8, **D),), {})
    assert split(captured.graph, (1,)) is captured.graph
    assert batch_of(captured.graph) == 1


@pytest.mark.slow
def test_a_size_that_equals_the_batch_by_chance_does_no_harm() -> None:
    same(Block().double(), (torch.randn(4, 4, 16, **D),), (1, 3))
    same(nn.Linear(8, 8).double(), (torch.randn(8, 8, 8, **D),), (3, 5))
    same(Ends().double(), (torch.randn(8, 8, **D), torch.randn(8, **D)), (3, 5))


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


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(st.data())
def test_any_program_of_cuttable_steps_is_the_same_in_parts(data: st.DataObject) -> None:
    """Random programs over a pool of values: views, products, norms, reductions, joins."""
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    weight = torch.randn(6, 6, **D)
    steps: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
        "linear": lambda a, b: nn.functional.linear(a, weight) / 6,
        "add": lambda a, b: a + b,
        "residual": lambda a, b: a.relu() - b.mean(1, keepdim=True),
        "turn": lambda a, b: a.transpose(0, 1).contiguous().transpose(0, 1),
        "flat": lambda a, b: a.reshape(-1).view(a.shape) + 1,
        "softmax": lambda a, b: (a + b).softmax(-1),
        "scan": lambda a, b: a.cumsum(0) / 6,
        "mix": lambda a, b: a.softmax(1) @ b.transpose(1, 2) @ b / 6,
        "centre": lambda a, b: a - b.mean(0, keepdim=True),
        "flip": lambda a, b: a.flip(0) + b,
        "slices": lambda a, b: torch.cat([a[:, :2], b[:, 2:]], 1),
        "rows": lambda a, b: torch.cat([a[:2], b[2:]], 0),
        "expand": lambda a, b: b[:, :1].expand(a.shape[0], a.shape[1], -1) * a,
    }
    program = data.draw(
        st.lists(st.tuples(st.sampled_from(sorted(steps)), *(st.integers(0, 3),) * 2), max_size=9)
    )

    def model(x: torch.Tensor) -> Any:
        pool = [x, x.tanh()]
        for name, one, other in program:
            pool.append(steps[name](pool[-1 - one % len(pool)], pool[-1 - other % len(pool)]))
        return tuple(item.clone() for item in pool[-2:])

    rows = data.draw(st.sampled_from([5, 6, 7]))
    first = data.draw(st.integers(1, rows - 1))
    same(model, (torch.randn(rows, 4, 6, **D),), (first, rows - first))
