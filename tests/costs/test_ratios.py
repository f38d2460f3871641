"""What is known of tasks goes into their costs, and into those of the parts they are cut into."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.costs import measure as measuring
from autopar.costs.roofline import cost
from autopar.ir.device import Device
from autopar.ir.graph import Graph, Ref, Task, Value
from autopar.ir.machine import Machine
from autopar.ir.timeline import Span, Timeline
from autopar.planner import place

MACHINE = Machine((Device("cpu", "cpu", lanes=2),))


def graph(*parts):
    """A task, or the parts that one was cut into."""
    values, tasks = [Value("x", (8, 8), "float32", 256, "x", "input")], []
    for name in parts or ("t",):
        values.append(Value(f"{name}_out", (8, 8), "float32", 256, f"{name}_out"))
        origin = {"origin": "t", "part": name} if parts else {}
        tasks.append(Task(name, "aten.relu.default", (Ref("x"),), outputs=(f"{name}_out",), **origin))
    return Graph("g", tuple(values), tuple(tasks), ("x",), (), (values[-1].name,)).check()


def priced(graph, known=None):
    return {each.task: each for each in cost(graph, MACHINE, homes={}, ratios=known).costs}


def plan(graph):
    return place(cost(graph, MACHINE, homes={}), "single")


@settings(deadline=None)
@given(st.floats(1e-7, 10))
def test_a_recorded_task_costs_what_it_took(took):
    known = measuring.recorded(plan(graph()), {("t", "cpu"): took})
    again = priced(graph(), known)["t"]
    assert again.seconds[0] == pytest.approx(took) and again.how == "measured"


@settings(deadline=None)
@given(st.floats(1e-7, 10))
def test_parts_are_as_much_slower_than_the_roofline_as_the_whole(took):
    known = measuring.recorded(plan(graph()), {("t", "cpu"): took})
    before, after = priced(graph("a", "b")), priced(graph("a", "b"), known)
    factor = took / priced(graph())["t"].seconds[0]
    assert all(after[name].seconds[0] == pytest.approx(factor * before[name].seconds[0]) for name in "ab")


def test_the_whole_takes_what_its_parts_took_together():
    cut = graph("a", "b")
    known = measuring.recorded(plan(cut), {("a", "cpu"): 1.0, ("b", "cpu"): 3.0})
    both = priced(cut, known)
    assert [both[name].seconds[0] for name in "ab"] == pytest.approx([1.0, 3.0])
    assert priced(graph(), known)["t"].seconds[0] == pytest.approx(2.0)


def test_medians_are_of_tasks_and_not_of_their_clusters():
    def line(*took):
        spans = tuple(Span("cpu/0", "cpu", "compute", "t", 0.0, each, "t") for each in took)
        return Timeline("g", ("cpu/0",), (*spans, Span("cpu/0", "cpu", "compute", "t", 0.0, 99.0)), 1.0)

    found = measuring.medians(plan(graph()), [line(1.0), line(50.0), line(2.0)])
    assert found == {("t", "cpu"): 2.0}


def test_only_devices_that_something_is_known_of_change():
    machine = Machine((Device("cpu", "cpu"), Device("cuda:0", "cuda")))
    free = cost(graph(), machine, homes={}).costs[0].seconds
    again = cost(graph(), machine, homes={}, ratios={("t", "cpu"): 3.0}).costs[0].seconds
    assert again == (pytest.approx(3 * free[0]), free[1])
