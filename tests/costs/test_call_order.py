"""Tasks timed in the order of a call: on what is given, without changing it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autopar.costs.measure import measurable
from autopar.costs.replay import FEWEST, replayed, undisturbed
from autopar.ir.graph import Graph, Ref, Task, Value

CPU = torch.device("cpu")


def value(name, shape=(4, 4), kind="made", dtype="float32"):
    return Value(name, shape, dtype, 64, name, kind)


def chain(*targets, last=()):
    """Each task reads the input and what the one before it made."""
    tasks, before = [], "x"
    for at, target in enumerate(targets):
        tasks.append(Task(f"t{at}", target, (Ref(before), Ref("w")), outputs=(f"y{at}",)))
        before = f"y{at}"
    values = (
        value("x", kind="input"),
        value("w", kind="state"),
        *(value(f"y{at}") for at in range(len(targets))),
    )
    return Graph("g", values, tuple(tasks), ("x",), ("w",), (before,)).check()


def spying(seen):
    def spy(left, right):
        seen.append((left, right))
        return left + right

    return spy


def test_tasks_get_what_is_given_and_what_was_made_before_them():
    seen, graph = [], chain("mine", "mine")
    x, w = torch.ones(4, 4), torch.full((4, 4), 2.0)
    found = replayed(graph, graph.tasks, CPU, {"mine": spying(seen)}, {"x": x, "w": w}, 0.01)
    assert all(seconds > 0 for seconds in found.values()) and found.keys() == {"t0", "t1"}
    assert all(right is w for _, right in seen)
    assert seen[0][0] is x and torch.equal(seen[1][0], x + w)
    assert torch.equal(x, torch.ones(4, 4)) and torch.equal(w, torch.full((4, 4), 2.0))


def test_missing_inputs_are_generated():
    seen, graph = [], chain("other", "mine")
    found = replayed(graph, graph.tasks[1:], CPU, {"other": None, "mine": spying(seen)}, {}, 0.01)
    assert found.keys() == {"t1"} and found["t1"] > 0
    assert {tuple(tensor.shape) for pair in seen for tensor in pair} == {(4, 4)}


def test_a_task_that_refuses_is_left_out_and_those_after_it_go_on():
    seen, graph = [], chain("fails", "mine")

    def fails(*args):
        raise RuntimeError("no")

    found = replayed(graph, graph.tasks, CPU, {"fails": fails, "mine": spying(seen)}, {}, 0.01)
    assert found["t0"] is None and found["t1"] > 0


def test_a_short_budget_still_gives_a_median():
    seen, graph = [], chain("mine")
    replayed(graph, graph.tasks, CPU, {"mine": spying(seen)}, {}, 0.0)
    assert 2 <= len(seen) <= 1 + FEWEST


@pytest.mark.parametrize(
    "target,allowed", [("aten.add.Tensor", True), ("aten.add_.Tensor", False), ("aten.copy_.default", False)]
)
def test_nothing_that_writes_to_what_it_is_given_is_called(target, allowed):
    graph = chain(target)
    assert measurable(graph, graph.tasks[0], {}) == allowed


def test_code_of_the_user_is_not_called():
    graph = chain("mine")
    assert not measurable(graph, graph.tasks[0], {"mine": max})


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), min_size=1, max_size=30))
def test_passes_that_were_disturbed_count_only_where_there_are_no_others(samples):
    found = undisturbed(samples)
    quiet = [value for times, value in samples if not times]
    if len(quiet) >= FEWEST:
        assert found == quiet
    assert found and len(found) >= min(FEWEST, len(samples))
