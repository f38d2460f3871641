"""Lanes that are all alike: when they are, and that what is found there is no longer than it must be."""

import random
from itertools import pairwise

import pytest
from benchmarks.judging import without_solver
from benchmarks.stg import listed
from benchmarks.verify import infeasibilities
from hypothesis import example, given, settings
from hypothesis import strategies as st
from oracles import needs_native

import autopar
from autopar.planner.bounds import lower_bound
from autopar.planner.candidates import Race
from autopar.planner.formats import described as written
from autopar.planner.formats import read
from autopar.planner.formats.read import stg
from autopar.planner.lists.identical import identical
from autopar.planner.model.instance import Instance
from autopar.planner.model.simulator import Play


def lanes_of(count, seconds, waits):
    """A graph file of tasks that wait for others, on so many lanes."""
    lines = [f"{r} {seconds[r]} {len(own)} {' '.join(map(str, own))}" for r, own in enumerate(waits)]
    return stg("\n".join([str(len(lines)), *lines]), count)


def devices_of(count, seconds, waits):
    """The same on devices of one lane, between which nothing takes time."""
    graph = lanes_of(1, seconds, waits)
    names = [f"d{d}" for d in range(count)]
    for task in graph["tasks"]:
        task["seconds"] = dict.fromkeys(names, task["seconds"]["cpu"])
    graph["devices"] = [{"name": name, "lanes": 1} for name in names]
    ends = [(a, b) for a in names for b in names if a != b]
    graph["links"] = [
        {"src": a, "dst": b, "latency_s": 0.0, "bytes_per_s": 1e9, "wire": None} for a, b in ends
    ]
    return graph


def filled(draw, lanes, length, pieces):
    """Tasks that fill lanes without a pause, each waiting for up to three that end before it begins."""
    spans = []
    for _ in range(lanes):
        cuts = [0, *sorted(draw.sample(range(1, length), pieces - 1)), length]
        spans += pairwise(cuts)
    spans.sort()
    before = [
        [p for p, (_, end) in enumerate(spans[:r]) if end <= start] for r, (start, _) in enumerate(spans)
    ]
    return [end - start for start, end in spans], [draw.sample(own, min(len(own), 3)) for own in before]


def test_lanes_are_alike_only_where_nothing_else_counts():
    graph = devices_of(3, [1.0, 2.0], [[], [0]])
    assert Instance(read(graph)).alike == [(0, 0), (1, 0), (2, 0)]
    slower = {
        **graph,
        "tasks": [graph["tasks"][0] | {"seconds": {"d0": 1.0, "d1": 1.0, "d2": 2.0}}, graph["tasks"][1]],
    }
    bound = {**graph, "tasks": [graph["tasks"][0] | {"pin": "d1"}, graph["tasks"][1]]}
    far = {**graph, "links": [link | {"latency_s": 1e-6} for link in graph["links"]]}
    together = {**graph, "tasks": [task | {"colocate": "both"} for task in graph["tasks"]]}
    small = {**graph, "devices": [device | {"memory_bytes": 1} for device in graph["devices"]]}
    small["values"] = [value | {"bytes": 1} for value in graph["values"]]
    for other in (slower, bound, far, together, small, lanes_of(1, [1.0, 2.0], [[], [0]])):
        assert not Instance(read(other)).alike


@pytest.mark.parametrize("made", [lanes_of, devices_of])
def test_lanes_are_filled_without_a_pause(made):
    for seed in range(4):
        graph = made(4, *filled(random.Random(seed), 4, 60, 10))
        with without_solver():
            plan = autopar.schedule(graph)
        assert plan.makespan == plan.lower_bound == 60.0
        assert not infeasibilities(graph, written(plan))


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 25), st.integers(2, 4), st.sampled_from([0, 5_000]))
@example(339, 17, 3, 0)
@example(791, 23, 4, 0)
def test_a_plan_is_no_longer_than_a_list_schedule_and_no_shorter_than_the_bound(seed, tasks, lanes, steps):
    draw = random.Random(seed)
    waits = [draw.sample(range(r), min(r, draw.randint(0, 3))) for r in range(tasks)]
    graph = lanes_of(lanes, [draw.choice((0, 0.1, 1 / 3, 0.7, 2)) for _ in waits], waits)
    instance = Instance(read(graph))
    found = Play(instance, identical(Race(instance, lower_bound(instance)), steps)).makespan
    reference = listed(graph, lanes)
    # Graham, "Bounds on multiprocessing timing anomalies", 1969: two lists, which break ties apart, differ by less.
    assert lower_bound(instance) <= found * (1 + 1e-9) <= reference * (2 - 1 / lanes)
    with without_solver():
        assert autopar.schedule(graph).makespan <= reference * (1 + 1e-9)


def test_work_within_intervals_raises_the_bound_up_to_the_optimum_at_most(monkeypatch):
    raised = 0
    for seed in range(100):
        draw = random.Random(seed)
        waits = [draw.sample(range(r), min(r, draw.randint(0, 3))) for r in range(30)]
        graph = lanes_of(4, [draw.randint(1, 9) for _ in waits], waits)
        bound = lower_bound(Instance(read(graph)))
        with monkeypatch.context() as patch:
            patch.setattr("autopar.planner.bounds.energetic", lambda instance, paths, known: known)
            without = lower_bound(Instance(read(graph)))
        assert without <= bound
        if bound > without:
            raised += 1
            assert bound <= autopar.schedule(graph, budget_s=1).makespan
    assert raised


def test_lists_with_some_clusters_moved_come_to_the_bound():
    few = many = 0
    for seed in range(12):
        graph = lanes_of(3, *filled(random.Random(seed), 3, 30, 8))
        instance = Instance(read(graph))
        first, last = (
            Play(instance, identical(Race(instance, lower_bound(instance)), steps)).makespan
            for steps in (0, 300_000)
        )
        assert lower_bound(instance) <= last * (1 + 1e-9) <= first * (1 + 2e-9)
        few, many = few + (first <= 30 * (1 + 1e-9)), many + (last <= 30 * (1 + 1e-9))
    assert many > few


@pytest.mark.slow
@needs_native
def test_annealing_shortens_what_list_schedules_come_to():
    lists = plans = 0.0
    for seed in range(6):
        graph = lanes_of(6, *filled(random.Random(seed), 6, 200, 8))
        instance = Instance(read(graph))
        with without_solver():
            plans += autopar.schedule(graph).makespan
        lists += Play(instance, identical(Race(instance, 200.0), 0)).makespan
    assert plans < lists and plans <= 6 * 200.0 * 1.005
