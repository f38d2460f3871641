"""The exact planner: what it proves is what `simulate` says, and no schedule is shorter."""

import random
from itertools import chain, pairwise

import graphs
import pytest
from benchmarks.instances import planted, small
from hypothesis import given, settings
from hypothesis import strategies as st
from test_bounds import random_schedule

from autopar.planner.bounds import lower_bound
from autopar.planner.bounds.critical_path import paths
from autopar.planner.formats import read
from autopar.planner.lists.heft import heft
from autopar.planner.model.instance import Instance
from autopar.planner.model.simulator import Play
from autopar.planner.model.timing import memory

pytest.importorskip("ortools")

from autopar.planner.exact.proof import FIRST, TOLERANCE, narrowed, proofs


def exact(instance, start, effort=6.0):
    """What is known at the end."""
    *_, last = proofs(instance, start, effort)
    return last


def solved(costed, **more):
    instance = Instance(costed)
    return instance, exact(instance, random_schedule(instance, random.Random(0)), **more)


def hold(instance, found, tries=20):
    """It is optimal, unless the order in which the host or a wire serves several queues is not the plan's to choose."""
    queues = {}
    for hop in {hop for row in instance.route for hops in row for hop in hops or ()}:
        queues.setdefault(hop.wire, set()).add(hop.lane)
    chosen = not any(instance.dispatch) and all(len(own) == 1 for wire, own in queues.items() if wire >= 0)
    assert found.optimal or not chosen
    assert Play(instance, found.best.schedule).makespan == found.best.makespan
    assert found.optimal == (found.best.makespan <= found.bound * (1 + TOLERANCE))
    assert found.bound <= found.best.makespan
    assert lower_bound(instance) <= found.best.makespan * (1 + 1e-9)
    for number in range(tries):
        play = Play(instance, random_schedule(instance, random.Random(number)))
        assert found.bound <= play.makespan * (1 + 1e-9)


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 8), st.sampled_from([0.1, 1.0, 10.0]))
def test_no_random_schedule_is_shorter(seed, tasks, ratio):
    hold(*solved(graphs.random_dag(seed, tasks, ccr=ratio)))


@pytest.mark.parametrize("seed", range(3))
def test_a_small_graph_of_the_bench_is_solved(seed):
    hold(*solved(read(small(seed, tasks=12, devices=3))))


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10**6), st.integers(4, 10), st.integers(2, 4), st.sampled_from([0.1, 1.0, 10.0]))
def test_no_shorter_schedule_has_less_around_a_run_than_parts_prove(seed, tasks, devices, ratio):
    graph = small(seed, tasks=tasks, devices=devices, ratio=ratio)
    graph["devices"][0]["lanes"] = 1 + seed % 2
    instance = Instance(read(graph))
    plays = [Play(instance, random_schedule(instance, random.Random(number))) for number in range(10)]
    best = Play(instance, exact(instance, heft(instance), FIRST).best.schedule)
    start = max(plays, key=lambda play: play.makespan)
    around = paths(instance, once=True)
    found = narrowed(instance, start, around, start.makespan, effort=0.02)[0]
    for play in (best, *plays):
        ends = play.makespan * (1 + 1e-9)
        assert found.length <= ends
        for r, d in enumerate(play.device):
            assert found.head[r, d] <= play.start[r] + ends * 1e-9
            assert play.end[r] + found.tail[r, d] <= ends


def forks(stages):
    """Forks into three chains of three tasks of a second each, joined again, one after the other, on two devices."""
    tasks, edges, last = ["t"], [], "t"
    for stage in range(stages):
        chains = [[f"{stage}{c}{k}" for k in range(3)] for c in range(3)]
        for own in chains:
            edges += [(last, own[0]), *pairwise(own), (own[-1], f"join{stage}")]
        tasks += [*chain.from_iterable(chains), last := f"join{stage}"]
    return {
        "tasks": [{"id": n, "seconds": {"a": 1.0, "b": 1.0}} for n in tasks],
        "values": [
            {"id": f"v{n}", "producer": n, "consumers": readers, "bytes": 0}
            for n in tasks
            if (readers := [target for source, target in edges if source == n])
        ],
        "devices": [{"name": "a", "lanes": 1}, {"name": "b", "lanes": 1}],
        "links": [
            {"src": src, "dst": dst, "latency_s": 0.0, "bytes_per_s": 1.0} for src, dst in ("ab", "ba")
        ],
    }


def test_where_all_passes_through_one_run_the_parts_add_up():
    # Nine tasks on two devices take five seconds, and the join one.
    instance = Instance(read(forks(2)))
    start = Play(instance, heft(instance))
    around = paths(instance, once=True)
    assert around.length < 12.0
    found = narrowed(instance, start, around, start.makespan, effort=0.2)[0]
    assert found.length == pytest.approx(13.0, rel=TOLERANCE)


@pytest.mark.slow
def test_parts_prove_what_the_whole_does_not_yet():
    instance = Instance(read(small(17)))
    steps = proofs(instance, heft(instance), 2 * FIRST)
    first = next(steps).bound
    found = next(steps)
    assert not found.optimal
    assert found.bound > first * 1.05


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 7), st.integers(1, 3))
def test_no_random_schedule_is_shorter_than_with_lanes_shared(seed, tasks, lanes):
    draw = random.Random(seed)
    graph = small(seed, tasks=tasks, devices=2)
    graph["devices"][0]["lanes"] = lanes
    for task in graph["tasks"]:
        alone = task["seconds"].get("d0")
        if alone and draw.random() < 0.7:
            task["seconds"]["d0"] = {
                str(n): alone / n ** draw.uniform(0, 1) for n in range(1, draw.randint(1, lanes) + 1)
            }
    instance, found = solved(read(graph))
    hold(instance, found)


@pytest.mark.parametrize("groups", [0, 2])
def test_it_finds_a_planted_optimum(groups):
    graph, length = planted(1, 10, 2, 1.0, groups=groups)
    instance, found = solved(read(graph))
    hold(instance, found)
    assert found.best.makespan == pytest.approx(length, rel=TOLERANCE)


def test_what_does_not_fit_together_is_parted():
    tasks = [{"id": f"t{t}", "seconds": {"a": 1.0, "b": 3.0}, "state_bytes": 6} for t in range(4)]
    devices = [{"name": "a", "lanes": 1, "memory_bytes": 12}, {"name": "b", "lanes": 1, "memory_bytes": 100}]
    graph = {"tasks": tasks, "values": [], "devices": devices, "links": []}
    instance = Instance(read(graph))
    on_b = random_schedule(instance, random.Random(0))
    on_b = type(on_b)("b", {"b/0": instance.names})
    found = exact(instance, on_b)
    hold(instance, found, 0)
    assert found.best.makespan == pytest.approx(6.0)
    assert all(one.peak <= one.cap for one in memory(Play(instance, found.best.schedule)))
    assert lower_bound(instance) > 3.0 * 0.9


def test_a_value_leaves_room_when_it_has_been_read():
    # Two chains of two: with room for one value at a time their tasks cannot be mixed.
    tasks = [{"id": n, "seconds": {"a": 1.0}} for n in ("p", "q", "r", "s")]
    values = [
        {"id": "pq", "producer": "p", "consumers": ["q"], "bytes": 10},
        {"id": "rs", "producer": "r", "consumers": ["s"], "bytes": 10},
    ]
    for lanes, cap, length in ((2, 20, 2.0), (2, 19, 4.0)):
        devices = [{"name": "a", "lanes": lanes, "memory_bytes": cap}]
        instance = Instance(read({"tasks": tasks, "values": values, "devices": devices, "links": []}))
        start = type(random_schedule(instance, random.Random(0)))("one lane", {"a/0": ("p", "q", "r", "s")})
        found = exact(instance, start)
        assert (found.best.makespan, found.optimal) == (pytest.approx(length), True)


def test_a_task_takes_as_many_lanes_as_pay():
    tasks = [
        {"id": "wide", "seconds": {"a": {"1": 3.0, "2": 1.6}}},
        {"id": "narrow", "seconds": {"a": {"1": 1.0, "2": 0.9}}},
    ]
    graph = {"tasks": tasks, "values": [], "devices": [{"name": "a", "lanes": 2}], "links": []}
    _, found = solved(read(graph))
    assert found.optimal
    assert found.best.makespan == pytest.approx(2.5)


def test_a_task_that_needs_two_lanes_gets_them():
    tasks = [
        {"id": "wide", "seconds": {"a": {"2": 1.0}}},
        *({"id": f"n{n}", "seconds": {"a": 1.0}} for n in range(2)),
    ]
    graph = {"tasks": tasks, "values": [], "devices": [{"name": "a", "lanes": 2}], "links": []}
    instance = Instance(read(graph))
    lanes = {"a/0": ("n0", "n1", "wide"), "a/1": ("wide",)}
    found = exact(instance, type(random_schedule(instance, random.Random(0)))("a row", lanes))
    assert (found.best.makespan, found.optimal) == (pytest.approx(2.0), True)


def test_scratch_counts_while_a_task_runs():
    # Each device has lanes for all tasks and scratch for one at a time.
    seconds = {"a": 1.0, "b": 2.0, "c": 3.0}
    tasks = [{"id": f"t{t}", "seconds": seconds, "workspace_bytes": 6} for t in range(4)]
    devices = [{"name": name, "lanes": 4, "memory_bytes": 10} for name in seconds]
    instance = Instance(read({"tasks": tasks, "values": [], "devices": devices, "links": []}))
    one = type(random_schedule(instance, random.Random(0)))("one lane", {"a/0": instance.names})
    found = exact(instance, one)
    assert (found.best.makespan, found.optimal) == (pytest.approx(3.0), True)


def test_equal_input_gives_an_equal_schedule():
    costed = read(small(5, tasks=14, devices=3))
    one, other = (solved(costed, effort=0.05)[1] for _ in range(2))
    assert (one.best.schedule, one.bound, one.optimal) == (other.best.schedule, other.bound, other.optimal)


def test_little_effort_gives_a_bound_all_the_same():
    _, found = solved(read(small(1, tasks=40, devices=4, ratio=1.0)), effort=0.01)
    assert 0 < found.bound <= found.best.makespan
