"""Summands, and values that each part has for itself, in graphs written by hand."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autopar.ir.graph import JOIN, OWN, PART, SUM, SUMMED, Cut, Graph, Ref, Task, Value
from autopar.ops import resolve as bind
from autopar.transform.batch_axis import batch_of, best_flow
from autopar.transform.split import split


def value(name: str, *shape: int, kind: Any = "made") -> Value:
    size = 4
    for side in shape:
        size *= side
    return Value(name, shape, "float32", size, name, kind)


def task(name: str, reads: str, makes: str, *cuts: Cut, **more: Any) -> Task:
    """A task named like its target that reads and makes values."""
    return Task(
        name,
        f"aten.{name}.default",
        tuple(map(Ref, reads.split())),
        outputs=tuple(makes.split()),
        cuts=cuts,
        **more,
    )


def graph(
    values: list[Value], tasks: list[Task], outputs: str, updates: tuple[tuple[str, str], ...] = ()
) -> Graph:
    inputs = tuple(v.name for v in values if v.kind == "input")
    state = tuple(v.name for v in values if v.kind == "state")
    return Graph("g", tuple(values), tuple(tasks), inputs, state, tuple(outputs.split()), updates).check()


ROWS, BOTH = Cut((0,), (0,)), Cut((0, 0), (0,))


PER_PART = Cut((0, 0, OWN), (0, SUMMED))


def norm(uses: Cut | None = PER_PART) -> Graph:
    """A layer with statistics of its own in each part, its gradient, and running statistics."""
    values = [value("x", 8, 4, kind="input"), value("g", 8, 4, kind="input"), value("old", 4, kind="state")]
    values += [value("y", 8, 4), value("mean", 4), value("dx", 8, 4), value("dw", 4), value("new", 4)]
    tasks = [
        task("norm", "x", "y mean", Cut((0,), (0, OWN)), flops=99, module="bn"),
        task("running", "old mean", "new"),
        task("norm_backward", "g x mean", "dx dw", *([uses] if uses else []), flops=99, phase="backward"),
    ]
    return graph(values, tasks, "y dx dw", (("new", "old"),))


def test_each_part_reads_its_own_statistics_and_the_first_go_on() -> None:
    parted = split(norm(), (3, 5)).check()
    first, second = (parted.task[f"norm#{index}"].outputs[1] for index in range(2))
    assert (first, second) == ("mean", "mean#1")
    assert [parted.task[f"norm_backward#{index}"].inputs[2] for index in range(2)] == [first, second]
    assert parted.task["running"].inputs == ("old", "mean")
    assert parted.updates == (("new", "old"),)
    assert {parted.value[name].shape for name in (first, second)} == {(4,)}


def test_statistics_of_parts_are_not_read_by_a_gradient_of_the_whole() -> None:
    whole = norm()
    stuck = dataclasses.replace(whole.task["norm_backward"], random="default")
    parted = split(dataclasses.replace(whole, tasks=(*whole.tasks[:2], stuck)), (3, 5))
    assert not any(task.part for task in parted.tasks)
    # Without a way to read them part by part, the first part's are what it asks for.
    parted = split(norm(uses=None), (3, 5))
    assert {task.origin for task in parted.tasks if task.part} == {"norm"}


def test_a_gradient_is_not_cut_by_statistics_of_the_whole() -> None:
    whole = norm()
    stuck = dataclasses.replace(whole.task["norm"], random="default")
    parted = split(dataclasses.replace(whole, tasks=(stuck, *whole.tasks[1:])), (3, 5))
    assert not any(task.part for task in parted.tasks)


def test_a_sum_nobody_reads_is_not_made() -> None:
    whole = dataclasses.replace(norm(), outputs=("y", "dx"))
    assert not any(task.target == SUM for task in split(whole, (3, 5)).check().tasks)


def weights(rows: int, width: int, length: int) -> Graph:
    """A chain of layers forward and backward, each with the gradient of its weight."""
    values = [value("y0", rows, width, kind="input"), value(f"g{length}", rows, width, kind="input")]
    tasks = []
    for index in range(length):
        values.append(value(f"y{index + 1}", rows, width))
        tasks.append(task(f"f{index}", f"y{index}", f"y{index + 1}", ROWS, flops=8, module=f"m{index}"))
    for index in reversed(range(length)):
        values += [value(f"g{index}", rows, width), value(f"w{index}", width, width)]
        back = {"flops": 8, "phase": "backward", "module": f"m{index}", "source": f"a.py:{index}"}
        tasks.append(task(f"b{index}", f"g{index + 1} y{index + 1}", f"g{index}", BOTH, **back))
        tasks.append(task(f"d{index}", f"g{index + 1} y{index}", f"w{index}", Cut((0, 0), (SUMMED,)), **back))
    names = " ".join(f"w{index}" for index in range(length))
    return graph(values, tasks, f"y{length} {names} g0")


def test_summands_are_added_from_the_first_to_the_last_where_they_are_made() -> None:
    parted = split(weights(6, 4, 3), (1, 2, 3)).check()
    order = [task.name for task in parted.tasks]
    for index in range(3):
        added = parted.task[f"w{index}#sum"]
        assert added.args == ((Ref(f"w{index}#0"), Ref(f"w{index}#1"), Ref(f"w{index}#2")),)
        assert (added.outputs, added.module, added.source) == ((f"w{index}",), f"m{index}", f"a.py:{index}")
        assert added.phase == "backward" and not added.free and not added.part
        assert order.index(f"w{index}#sum") == order.index(f"d{index}#2") + 1
        assert {parted.value[f"w{index}#{part}"].shape for part in range(3)} == {(4, 4)}
    assert sum(task.flops for task in parted.tasks) == 9 * 8


def test_the_batch_is_that_of_the_forward_alone() -> None:
    whole = weights(6, 50, 3)
    forward = dataclasses.replace(whole, tasks=whole.tasks[:3], inputs=("y0",), outputs=("y3",))
    assert batch_of(whole) == batch_of(forward) == 6
    assert best_flow(whole, 6).work == best_flow(forward, 6).work
    # Along the features, the first layer would add up: work, but none of a batch.
    summing = dataclasses.replace(whole.tasks[0], cuts=(ROWS, Cut((1,), (SUMMED,))), flops=10**9)
    assert batch_of(dataclasses.replace(whole, tasks=(summing, *whole.tasks[1:]))) == 6
    values = [
        value("w", 6, 4, kind="state"),
        value("g", 6, 4, kind="input"),
        value("y", 6, 4),
        value("dw", 6, 4),
    ]
    tasks = [task("f", "w", "y", ROWS, flops=9), task("b", "g w", "dw", BOTH, flops=9, phase="backward")]
    assert batch_of(graph(values, tasks, "y dw")) is None


def test_contractions_over_the_batch_need_all_operands_in_parts() -> None:
    values = [value("x", 8, 4, kind="input"), value("y", 8, 4), value("z", 4, 4)]
    tasks = [task("f", "x", "y", ROWS, flops=9)]
    for cut, summed in ((Cut((0, 0), (SUMMED,)), True), (Cut((0, None), (SUMMED,)), False)):
        end = task("d", "y x", "z", cut, flops=9, phase="backward")
        parted = split(graph(values, [*tasks, end], "y z"), (3, 5)).check()
        assert any(task.target == SUM for task in parted.tasks) is summed
        assert bool(parted.task.keys() & {"d#0"}) is summed


@pytest.mark.parametrize(("wide", "summed"), [(4, True), (4000, False)])
def test_a_sum_that_computes_nothing_must_move_less_than_its_rows(wide: int, summed: bool) -> None:
    values = [value("x", 8, 4, kind="input"), value("y", 8, 4), value("t", wide)]
    tasks = [
        task("f", "x", "y", ROWS, flops=9),
        task("table", "y", "t", Cut((0,), (SUMMED,)), phase="backward"),
    ]
    parted = split(graph(values, tasks, "y t"), (3, 5)).check()
    assert any(task.target == SUM for task in parted.tasks) is summed


def spread(phase: Any, size: int = 8) -> Graph:
    """A number spread over the batch, times what is in rows."""
    values = [value("x", 8, 4, kind="input"), value("one", kind="input"), value("y", 8, 4)]
    values += [value("wide", size, 4), value("dx", 8, 4), value("dw", 4, 4)]
    wide = Task("spread", "aten.expand.default", (Ref("one"), (size, 4)), outputs=("wide",), free=True, phase=phase,
                cuts=(Cut((None,), (0,), ((1, 0),)), Cut((None,), (1,), ((1, 1),))))  # fmt: skip
    tasks = [
        task("f", "x", "y", ROWS, flops=9),
        wide,
        task("back", "wide", "dx", ROWS, flops=9, phase=phase),
        task("weigh", "dx x", "dw", Cut((0, 0), (SUMMED,)), flops=9, phase=phase),
    ]
    return graph(values, tasks, "y dw")


def test_the_backward_begins_rows_where_a_number_is_spread_over_them() -> None:
    parted = split(spread("backward"), (3, 5)).check()
    assert {task.origin for task in parted.tasks if task.part} == {"f", "spread", "back", "weigh"}
    assert [parted.task[f"spread#{index}"].args[1] for index in range(2)] == [(3, 4), (5, 4)]
    # Forward, a size of the batch may be a chance.
    parted = split(spread("forward"), (3, 5)).check()
    assert {task.origin for task in parted.tasks if task.part} == {"f", "weigh"}


def test_rows_that_begin_and_meet_none_of_the_batch_stay_whole() -> None:
    whole = spread("backward")
    alone = dataclasses.replace(whole, tasks=whole.tasks[:3], outputs=("y", "dx"))
    parted = split(alone, (3, 5)).check()
    assert {task.origin for task in parted.tasks if task.part} == {"f"}


def test_updates_of_weights_as_long_as_the_batch_stay_whole() -> None:
    values = [value("x", 8, 8, kind="input"), value("w", 8, 8, kind="state"), value("y", 8, 8)]
    values += [value("dw", 8, 8), value("new", 8, 8)]
    tasks = [
        task("f", "x w", "y", Cut((0, None), (0,)), flops=9),
        task("d", "y x", "dw", flops=9, phase="backward"),
        task("step", "w dw", "new", BOTH, flops=9, phase="update"),
    ]
    parted = split(graph(values, tasks, "y", (("new", "w"),)), (3, 5)).check()
    assert {task.origin for task in parted.tasks if task.part} == {"f"}


def test_a_read_for_its_kind_rejoins_nothing() -> None:
    values = [value("x", 8, 4, kind="input"), value("y", 8, 4), value("z", 8, 4), value("none", 3)]
    new = Task(
        "new", "aten.new_zeros.default", (Ref("y"), (3,)), outputs=("none",), cuts=(Cut((None,), (0,)),)
    )
    tasks = [task("f", "x", "y", ROWS, flops=9), new, task("h", "y", "z", ROWS, flops=9)]
    parted = split(graph(values, tasks, "z none"), (3, 5)).check()
    assert parted.task["new"].inputs == ("y#0",)
    assert [task.outputs for task in parted.tasks if task.target == JOIN] == [("z",)]


def test_a_view_is_cut_beside_what_takes_the_same_parts() -> None:
    values = [value("g", 8, 4, kind="input"), value("x", 8, 4, kind="input")]
    values += [value("t", 4, 8), value("dx", 8, 4), value("dw", 4, 4)]
    view = dataclasses.replace(task("t", "g", "t", Cut((0,), (1,)), free=True))
    weigh = task("d", "t x", "dw", Cut((1, 0), (SUMMED,)), flops=9)
    both = graph(values, [view, task("b", "g", "dx", ROWS, flops=9), weigh], "dx dw")
    parts = [task for task in split(both, (3, 5)).check().tasks if task.target == PART]
    assert {task.inputs for task in parts} == {("g",), ("x",)}
    only = split(dataclasses.replace(both, tasks=(view, weigh), outputs=("dw",)), (3, 5)).check()
    assert "t" in only.task


@given(st.lists(st.floats(-1e8, 1e8, width=32), min_size=1, max_size=6))
def test_tensors_are_added_in_order_and_left_as_they_are(numbers: list[float]) -> None:
    parts = [torch.tensor([number]) for number in numbers]
    total = bind.target(SUM)(tuple(parts))
    wanted = parts[0].clone()
    for part in parts[1:]:
        wanted = wanted + part
    assert torch.equal(total, wanted)
    assert all(total.data_ptr() != part.data_ptr() for part in parts)
    assert [part.item() for part in parts] == [torch.tensor(number).item() for number in numbers]
