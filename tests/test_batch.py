"""Lists decoded together are schedules, each what it would be alone."""

import numpy as np
import pytest
from graphs import MS, build, machine, random_dag
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.placement.batch import Candidates, decode, schedule
from autopar.placement.priorities import noisy_orders
from autopar.placement.rank import cost_to_go
from autopar.placement.served import served
from autopar.placement.tables import Tables
from autopar.problem import Problem
from autopar.simulate import Play

ROWS = 6


def drawn(seed: int, tasks: int, ccr: float, queued: bool = False):
    """A random problem and lists for it: some choose devices, some are told."""
    draw = np.random.default_rng(seed)
    on = machine(
        int(draw.integers(1, 4)),
        cpu_lanes=int(draw.integers(1, 4)),
        wire=("own", "one", None)[seed % 3],
        peer=seed % 4 > 0,
    )
    on = on if queued else on.__class__(on.devices, on.links, queued=False)
    problem = Problem(random_dag(seed, tasks, ccr=ccr, on=on))
    tables = Tables(problem)
    fixed = np.full((ROWS, tasks), -1)
    for row in range(0, ROWS, 2):
        fixed[row] = [draw.choice(problem.allowed[r]) for r in range(tasks)]
    lists = Candidates(
        noisy_orders(tables, ROWS, draw), fixed, np.linspace(0, 1, ROWS), draw.choice([0.0, 0.3], ROWS)
    )
    return problem, tables, lists


problems = st.tuples(st.integers(0, 10**6), st.integers(1, 30), st.sampled_from([0.1, 1.0, 5.0]))


@given(problems)
@settings(max_examples=60, deadline=None)
def test_a_decoded_list_is_a_schedule_that_lasts_no_longer_than_it_says(made):
    problem, tables, lists = drawn(*made)
    decoded = decode(tables, lists, np.array(cost_to_go(problem)))
    for row in range(ROWS):
        play = Play(problem, schedule(tables, decoded, row, "test"))
        assert play.makespan <= decoded.makespan[row] * (1 + 1e-9)
        assert play.device == decoded.device[row].tolist()
        told = lists.fixed[row] >= 0
        assert (decoded.device[row][told] == lists.fixed[row][told]).all()


@given(problems)
@settings(max_examples=20, deadline=None)
def test_what_is_beside_a_list_changes_nothing(made):
    problem, tables, lists = drawn(*made)
    to_go = np.array(cost_to_go(problem))
    together = decode(tables, lists, to_go)
    for row in range(ROWS):
        own = Candidates(
            lists.order[row : row + 1], lists.fixed[row : row + 1], lists.ahead[row : row + 1],
            lists.stay[row : row + 1],
        )  # fmt: skip
        alone = decode(tables, own, to_go)
        assert (alone.start[0] == together.start[row]).all()
        assert (alone.device[0] == together.device[row]).all()
        assert alone.makespan[0] == together.makespan[row]


@given(problems)
@settings(max_examples=60, deadline=None)
def test_lists_as_wires_serve_them_are_what_a_simulation_makes_of_them(made):
    problem, tables, lists = drawn(*made)
    decoded = decode(tables, lists, np.array(cost_to_go(problem)))
    timed = served(tables, decoded)
    for row in range(ROWS):
        plan = schedule(tables, timed, row, "test", copies=False)
        assert not plan.copies
        assert plan.lanes == schedule(tables, decoded, row, "test").lanes
        play = Play(problem, plan)
        # A second hop is served with the first, which may be before others that a wire would serve earlier.
        if not tables.indirect:
            assert play.makespan == pytest.approx(timed.makespan[row], rel=1e-9)
            assert play.start[: problem.runs] == pytest.approx(timed.start[row].tolist(), rel=1e-9)


@given(problems)
@settings(max_examples=20, deadline=None)
def test_copy_queues_beside_wires_never_deadlock(made):
    problem, tables, lists = drawn(*made, queued=True)
    decoded = decode(tables, lists, np.array(cost_to_go(problem)))
    for row in range(ROWS):
        assert Play(problem, schedule(tables, decoded, row, "test")).makespan > 0


@given(problems)
@settings(max_examples=20, deadline=None)
def test_noisy_orders_are_topological_and_differ(made):
    problem, _, lists = drawn(*made)
    for order in lists.order:
        place = {r: at for at, r in enumerate(order.tolist())}
        assert len(place) == problem.runs
        for r, earlier in enumerate(problem.before):
            assert all(place[p] < place[r] for p in earlier)


# a (3 ms on the CPU) ─▶ c;  b (1 ms) fits into the pause that c's wait for a's copy leaves
def test_a_gap_is_used():
    tasks = {
        "a": (["x"], (3 * MS, None)),
        "c": (["a"], (None, 2 * MS)),
        "b": (["y"], (None, 1 * MS)),
    }
    on = machine(1)
    problem = Problem(build(tasks, on, homes={"y": "emulated:0"}))
    tables = Tables(problem)
    order = np.array([[problem.number[name] for name in ("a", "c", "b")]])
    lists = Candidates(order, np.full((1, 3), -1), np.zeros(1), np.zeros(1))
    decoded = decode(tables, lists)
    assert decoded.end[0, problem.number["b"]] <= decoded.start[0, problem.number["c"]]


def test_runs_of_a_group_share_a_device():
    tasks = {name: ([f"x{name}"], (2 * MS, MS, MS)) for name in "abcd"}
    problem = Problem(build(tasks, machine(2), colocate={"a": "g", "c": "g"}))
    tables = Tables(problem)
    order = np.arange(4)[None]
    decoded = decode(tables, Candidates(order, np.full((1, 4), -1), np.zeros(1), np.zeros(1)))
    assert decoded.device[0, 0] == decoded.device[0, 2]
    assert len(set(decoded.device[0].tolist())) > 1


@pytest.mark.parametrize("ahead", [0.0, 1.0])
def test_the_weight_of_what_follows_counts(ahead):
    """Alone a task is quicker on the accelerator; what follows it must be on the CPU, and the value is large."""
    tasks = {"a": (["x"], (2 * MS, MS)), "b": (["a"], (MS, None))}
    problem = Problem(build(tasks, machine(1), nbytes={"x": 1, "a": 10**8}))
    tables = Tables(problem)
    lists = Candidates(np.arange(2)[None], np.full((1, 2), -1), np.array([ahead]), np.zeros(1))
    decoded = decode(tables, lists, np.array(cost_to_go(problem)))
    assert decoded.device[0, 0] == (0 if ahead else 1)
