"""The roofline: relations between costs, who may run where, and that pricing is linear."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.costs.roofline import cost, main_dtype, signature, touched
from autopar.ir.graph import Graph, Ref, Task, Value
from autopar.ir.machine import Machine

MACHINE = Machine.declare("cpu", "t4", "h100-sxm")
ADD = "aten.add.Tensor"


def value(name, elements=1 << 20, dtype="float32", kind="made", storage=None):
    width = 8 if dtype in ("float64", "int64") else 4 if dtype == "float32" else 2
    return Value(name, (elements,), dtype, elements * width, storage or name, kind)


def one_task(target="aten.mm.default", elements=1 << 20, flops=0, dtype="float32", **fields):
    task = Task("t", target, (Ref("x"),), outputs=("y",), flops=flops, **fields)
    values = (value("x", elements, dtype, "input"), value("y", elements, dtype))
    return Graph("g", values, (task,), ("x",), (), ("y",))


def chain(length, **fields):
    values = [value("v0", kind="input")] + [value(f"v{i + 1}") for i in range(length)]
    tasks = [Task(f"t{i}", ADD, (Ref(f"v{i}"), 1), outputs=(f"v{i + 1}",), **fields) for i in range(length)]
    return Graph("chain", tuple(values), tuple(tasks), ("v0",), (), (f"v{length}",))


def seconds(graph, machine=MACHINE, **keywords):
    return cost(graph, machine, homes={}, **keywords).costs[0].seconds


@given(st.integers(0, 10**12), st.integers(0, 10**12), st.integers(1, 1 << 26), st.integers(1, 1 << 26))
def test_more_work_never_takes_less(flops, more_flops, elements, more_elements):
    less = seconds(one_task(flops=flops, elements=elements))
    more = seconds(one_task(flops=flops + more_flops, elements=elements + more_elements))
    assert all(a <= b for a, b in zip(less, more))


@given(st.integers(0, 10**13), st.integers(1, 1 << 28), st.sampled_from(["float32", "float16", "bfloat16"]))
def test_a_chip_that_is_better_in_everything_is_never_slower(flops, elements, dtype):
    _, t4, h100 = seconds(one_task(flops=flops, elements=elements, dtype=dtype))
    assert h100 <= t4


@pytest.mark.parametrize("position", [1, 2])
def test_the_dtype_decides_the_rate_of_heavy_work(position):
    device = MACHINE.devices[position]
    flops = 10**13
    for dtype in ("float32", "float16", "float64"):
        heavy = one_task(flops=flops, dtype=dtype, elements=1)
        assert seconds(heavy)[position] == pytest.approx(flops / device.flops_per_s(dtype), rel=0.01)


def test_light_work_is_bound_by_its_bytes_and_the_smallest_by_its_launch():
    device = MACHINE.device["cuda:0"]
    graph = one_task(elements=1 << 26)
    assert seconds(graph)[1] == pytest.approx(2 * 4 * (1 << 26) / device.bytes_per_s, rel=0.05)
    assert seconds(one_task(elements=1))[1] == pytest.approx(device.launch_s, rel=0.05)


def test_a_view_moves_nothing_and_costs_no_more_than_a_dispatch():
    graph = one_task("aten.transpose.int", elements=1 << 28, free=True)
    assert touched(graph, graph.tasks[0]) == 0
    assert all(s <= MACHINE.device["cpu"].dispatch_s for s in seconds(graph))


@pytest.mark.parametrize(
    ("target", "ids", "rows"), [("aten.embedding.default", 10, 10), ("aten._embedding_bag.default", 10, 2)]
)
def test_a_lookup_reads_of_the_table_a_row_for_each_index(target, ids, rows):
    task = Task("t", target, (Ref("table"), Ref("ids")), outputs=("y",))
    values = (
        Value("table", (1000, 16), "float32", 64_000, "table", "state"),
        Value("ids", (ids,), "int64", 8 * ids, "ids", "input"),
        Value("y", (rows, 16), "float32", 64 * rows, "y"),
    )
    graph = Graph("g", values, (task,), ("ids",), ("table",), ("y",))
    assert touched(graph, task) == 64 * ids + 8 * ids + 64 * rows


def test_the_dtype_is_that_of_what_it_makes_else_of_what_it_reads():
    graph = one_task(dtype="float16")
    assert main_dtype(graph, graph.tasks[0]) == "float16"
    graph = replace(graph, values=(graph.values[0], value("y", dtype="int64")))
    assert main_dtype(graph, graph.tasks[0]) == "float16"
    assert main_dtype(graph, Task("nothing", "opaque")) == "float32"


def test_home_tasks_run_only_where_the_call_comes_from():
    graph = one_task(home=True)
    # A home outside the machine is reached through the host.
    for home, able in (("cuda:0", [False, True, False]), ("cuda:7", [True, False, False])):
        priced = cost(graph, MACHINE, homes={"x": home})
        assert [s is not None for s in priced.costs[0].seconds] == able


def test_pins_leave_one_device_and_home_goes_before_them():
    assert [s is not None for s in seconds(one_task(), pins={"t": "cuda:1"})] == [False, False, True]
    assert [s is not None for s in seconds(one_task(home=True), pins={"t": "cuda:1"})] == [True, False, False]


@settings(deadline=None)
@given(st.floats(1e-3, 1e3))
def test_measured_seconds_go_before_the_roofline_for_a_task_and_the_parts_of_it(ratio):
    known = {("t", "cuda:0"): ratio}
    for part in ({}, {"name": "t#0", "origin": "t", "part": "rows 0–1"}):
        graph = one_task()
        graph = replace(graph, tasks=(replace(graph.tasks[0], **part),))
        priced = cost(graph, MACHINE, homes={}, ratios=known).costs[0]
        assert priced.seconds[1] == pytest.approx(ratio * seconds(graph)[1])
        assert priced.how == "measured"
        assert priced.seconds[2] == seconds(graph)[2]


def test_signature_tells_shapes_dtypes_and_constants_apart_but_not_names():
    first, other = one_task(), one_task()
    task = replace(other.tasks[0], name="u", args=(Ref("z"),))
    values = (replace(other.values[0], name="z", storage="z"), other.values[1])
    renamed = replace(other, values=values, tasks=(task,), inputs=("z",))
    assert signature(first, first.tasks[0]) == signature(renamed, renamed.tasks[0])
    texts = {
        signature(graph, graph.tasks[0])
        for graph in (
            first,
            one_task(elements=7),
            one_task(dtype="float16"),
            replace(first, tasks=(replace(first.tasks[0], args=(Ref("x"), 2)),)),
            replace(first, tasks=(replace(first.tasks[0], kwargs=(("dim", 2),)),)),
        )
    }
    assert len(texts) == 5


def test_results_are_delivered_to_the_host_unless_told_otherwise():
    graph = replace(chain(2), updates=(("v1", "v0"),))
    homes = {"v0": "cuda:0"}
    assert cost(graph, MACHINE, homes=homes).deliver == (("v2", "cpu"), ("v1", "cuda:0"))
    for to, found in (("cuda:1", "cuda:1"), ("", ""), ("cuda:9", "cpu")):
        told = cost(graph, MACHINE, homes=homes, deliver=(("v2", to), ("v1", "cuda:0")))
        assert told.deliver == (("v2", found), ("v1", "cuda:0"))
