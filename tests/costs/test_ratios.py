"""What is known of tasks goes into their costs, and into those of the parts they are cut into."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.costs.roofline import cost
from autopar.ir.device import Device
from autopar.ir.graph import Graph, Ref, Task, Value
from autopar.ir.machine import Machine

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


@settings(deadline=None)
@given(st.floats(1e-3, 1e3))
def test_a_ratio_scales_a_task_and_the_parts_of_it(ratio):
    known = {("t", "cpu"): ratio}
    before, after = priced(graph()), priced(graph(), known)
    assert (
        after["t"].seconds[0] == pytest.approx(ratio * before["t"].seconds[0])
        and after["t"].how == "measured"
    )
    before, after = priced(graph("a", "b")), priced(graph("a", "b"), known)
    assert all(after[name].seconds[0] == pytest.approx(ratio * before[name].seconds[0]) for name in "ab")


def test_only_devices_that_something_is_known_of_change():
    machine = Machine((Device("cpu", "cpu"), Device("cuda:0", "cuda")))
    free = cost(graph(), machine, homes={}).costs[0].seconds
    again = cost(graph(), machine, homes={}, ratios={("t", "cpu"): 3.0}).costs[0].seconds
    assert again == (pytest.approx(3 * free[0]), free[1])
