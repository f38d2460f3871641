"""Small gradients summed together are what they were, in fewer and no later pieces."""

from __future__ import annotations

from typing import Any

import networkx
import pytest
import torch
from capturing import joint
from executing import execute
from graphs import machine
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from autopar.capture import Captured
from autopar.costs.roofline import cost
from autopar.ir.graph import SUM, Graph, Ref, Task, Value
from autopar.planner import place
from autopar.transform.buckets import FEW, bucketed
from autopar.transform.row_sums import summed
from autopar.transform.split import split

pytestmark = pytest.mark.slow


def model(layers: int = 6, width: int = 8, norm: bool = False) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        *(
            module
            for _ in range(layers)
            for module in (
                nn.Linear(width, width),
                nn.BatchNorm1d(width) if norm else nn.LayerNorm(width),
                nn.Tanh(),
            )
        )
    ).double()


def parted(module: nn.Module, width: int = 8, sizes: tuple[int, ...] = (1, 3, 2)) -> tuple[Captured, Graph]:
    captured = joint(module, (torch.randn(sum(sizes), width, dtype=torch.float64),))
    return captured, split(summed(captured.graph), sizes).check()


def sums(graph: Graph) -> list[Task]:
    return [task for task in graph.tasks if task.target == SUM and task.phase == "backward"]


def same(captured: Captured, before: Graph, after: Graph) -> None:
    after.check()
    assert (after.outputs, after.updates) == (before.outputs, before.updates)
    one, two = execute(before, captured), execute(after, captured)
    for name in (*before.outputs, *(made for made, _ in before.updates)):
        assert torch.equal(one[name], two[name]), name


@pytest.mark.parametrize(
    ("norm", "nbytes"),
    [(True, 600), (False, 1 << 20)],
)
def test_sums_in_buckets_are_bit_equal(norm: bool, nbytes: int) -> None:
    captured, graph = parted(model(norm=norm))
    after = bucketed(graph, nbytes)
    same(captured, graph, after)
    assert bucketed(graph, nbytes) == after
    for task in sums(after):
        if task.name.startswith("bucket"):
            assert after.value[task.outputs[0]].bytes <= nbytes
    assert len(sums(after)) < len(sums(graph))


def test_large_sums_stay_alone() -> None:
    _, graph = parted(model())
    limit = 8 * 8 * 8
    after = bucketed(graph, limit)
    alone = {task.name for task in sums(after) if not task.name.startswith("bucket")}
    large = {task.name for task in sums(graph) if graph.value[task.outputs[0]].bytes >= limit}
    assert large and large == alone


def test_buckets_hold_neighbours_in_the_order_of_the_backward() -> None:
    _, graph = parted(model())
    after = bucketed(graph, 256)
    order = [task.outputs[0] for task in sums(graph)]
    buckets: dict[str, list[str]] = {}
    for task in after.tasks:
        if task.name in graph.task and after.task[task.name].target != graph.task[task.name].target:
            bucket = task.inputs[0].split("#")[0]
            buckets.setdefault(bucket, []).append(task.outputs[0])
    assert len(buckets) > 2
    spans = [[order.index(name) for name in names] for names in buckets.values()]
    small = [place for place, name in enumerate(order) if any(name in names for names in buckets.values())]
    assert [place for span in spans for place in span] == small


def test_statistics_that_parts_wait_for_wait_for_nothing_else() -> None:
    """Both sums of a BatchNorm come of one task in each part: they go together, and with no other."""
    captured, graph = parted(model(norm=True))
    after = bucketed(graph)
    order = after.networkx()
    waited = [
        task
        for task in sums(after)
        if any(after.task[later].part for later in networkx.descendants(order, task.name))
    ]
    assert len(waited) == 6
    for task in waited:
        assert task.name.startswith("bucket")
        for cat in task.inputs:
            summands = after.task[cat].inputs
            assert len(summands) == 2 and len({after.producer[name] for name in summands}) == 1
    same(captured, graph, after)


def test_a_handful_of_sums_stays() -> None:
    _, graph = parted(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)).double())
    assert 0 < len(sums(graph)) <= FEW
    assert bucketed(graph) is graph


def test_fewer_transfers_and_no_longer() -> None:
    on = machine(2, latency_s=50e-6)
    _, graph = parted(model(16, 16), 16, (3, 3))
    after = bucketed(graph)
    plans = [place(cost(g, on, homes={}), "round_robin") for g in (graph, after)]
    assert len(plans[1].transfers) < len(plans[0].transfers)

    # Each part on a device of its own, what is whole at home.
    def by_part(costed: Any) -> dict[str, str]:
        where = {"rows 0–2": "emulated:0", "rows 3–5": "emulated:1"}
        return {task.name: where.get(task.part, "cpu") for task in costed.graph.tasks}

    plans = [place(cost(g, on, homes={}), by_part) for g in (graph, after)]
    assert len(plans[1].transfers) < len(plans[0].transfers) / 2
    assert plans[1].makespan <= plans[0].makespan


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_any_readers_of_the_sums_move_behind_them(data: st.DataObject) -> None:
    """Random graphs of parts, sums over them, and tasks that read both: still in topological order."""
    values = [Value("x", (4,), "float32", 16, "x", "input")]
    tasks: list[Task] = []
    whole: list[str] = ["x"]
    for index in range(data.draw(st.integers(8, 30))):
        kind = data.draw(st.sampled_from(["sum", "sum", "sum", "whole", "part"]))
        reads = data.draw(st.lists(st.sampled_from(whole), min_size=1, max_size=3, unique=True))
        args = tuple(map(Ref, reads))
        parts = ("p", "q") if kind != "whole" else ("",)
        made = [f"v{index}{part}" for part in parts]
        for name, part in zip(made, parts):
            values.append(Value(name, (4,), "float32", 16, name))
            tasks.append(Task(name, "test.op", args, outputs=(name,), part=part, phase="backward"))
        if kind == "sum":
            name = f"v{index}"
            values.append(Value(name, (4,), "float32", 16, name))
            tasks.append(Task(name, SUM, (tuple(map(Ref, made)),), outputs=(name,), phase="backward"))
            whole.append(name)
        elif kind == "whole":
            whole += made
    graph = Graph("any", tuple(values), tuple(tasks), ("x",), (), tuple(whole[1:])).check()
    limit = data.draw(st.sampled_from([17, 32, 48, 1000]))
    after = bucketed(graph, limit).check()
    assert {task.name for task in graph.tasks} <= {task.name for task in after.tasks}
    for task in after.tasks:
        if task.name in graph.task and task.target != "aten.reshape.default":
            assert task == graph.task[task.name]


def hand_written(count: int, chained: bool = False) -> Graph:
    """So many sums over two parts, each of the input or, `chained`, of the summands before; and a task that reads
    nothing of the first sum, but must come after it, an effect, say."""
    names, tasks = ["x", "late"], []
    for index in range(count):
        for part in ("p", "q"):
            before = f"t{index - 1}{part}" if chained and index else "x"
            made = f"t{index}{part}"
            names.append(made)
            tasks.append(Task(made, "test.op", (Ref(before),), outputs=(made,), part=part, phase="backward"))
        names.append(f"s{index}")
        args = ((Ref(f"t{index}p"), Ref(f"t{index}q")),)
        tasks.append(Task(f"s{index}", SUM, args, outputs=(f"s{index}",), phase="backward"))
        if not index:
            late = Task("late", "test.op", (Ref("x"),), outputs=("late",), phase="backward", after=("s0",))
            tasks.append(late)
    values = (Value(name, (4,), "float32", 16, name, "input" if name == "x" else "made") for name in names)
    outputs = ("late", *(f"s{index}" for index in range(count)))
    return Graph("any", tuple(values), tuple(tasks), ("x",), (), outputs).check()


def test_what_must_come_after_a_sum_comes_after_its_bucket() -> None:
    after = [task.name for task in bucketed(hand_written(FEW + 1)).check().tasks]
    assert any(name.endswith("#sum") for name in after)
    assert after.index("s0") < after.index("late")


def test_a_long_backward_is_no_deep_recursion() -> None:
    assert len(sums(bucketed(hand_written(5000, chained=True), 1600).check())) == 50
