"""Placements by prices, and the shortest of what is tried where wires serve first come, first served."""

from __future__ import annotations

import math

import pytest
from benchmarks import instances
from benchmarks.judging import by_direction, unwired
from benchmarks.varied import varied

from autopar.errors import PlanError
from autopar.planner.bounds import lower_bound, worth
from autopar.planner.formats import read
from autopar.planner.lists import weighted_lists as variants
from autopar.planner.lists.greedy import last_first, priced
from autopar.planner.lists.weighted_lists import crowded
from autopar.planner.model.problem import Problem
from autopar.planner.model.simulator import Play
from autopar.planner.model.transfers import Steps


def plannable(seed: int) -> bool:
    """Whether a random graph has a placement at all, and wires."""
    try:
        return crowded(Problem(read(varied(seed))))
    except PlanError:
        return False


CROWDED = [seed for seed in range(60) if plannable(seed)]


def apart(seed: int) -> Problem:
    """300 runs that read nothing, on devices of one lane that are not alike."""
    graph = instances.small(seed, tasks=300, devices=4)
    devices = [{**device, "lanes": 1} for device in graph["devices"]]
    return Problem(read({**graph, "devices": devices, "values": []}))


def longest(problem: Problem, device: list[int]) -> float:
    """Seconds of the device on which most is."""
    return max(sum(problem.seconds[r][d] for r, d in enumerate(device) if d == e) for e in {*device})


@pytest.mark.parametrize("seed", CROWDED)
def test_runs_are_where_they_may_be_and_groups_together(seed: int) -> None:
    problem = Problem(read(varied(seed)))
    device = priced(problem, worth(problem)[0], 0.03, 0.1)
    assert all(d in problem.allowed[r] for r, d in enumerate(device))
    assert all(len({device[r] for r in members}) == 1 for members in problem.members)


@pytest.mark.parametrize("seed", range(4))
def test_loads_come_near_the_best(seed: int) -> None:
    problem = apart(seed)
    device = priced(problem, worth(problem)[0], 0.1, 0.1)
    assert longest(problem, device) <= 1.15 * lower_bound(problem)
    quickest = [min(problem.allowed[r], key=row.__getitem__) for r, row in enumerate(problem.seconds)]
    assert longest(problem, device) < longest(problem, quickest)


def test_fewer_values_move_where_copies_cost_more() -> None:
    problem = Problem(read(by_direction(instances.planted(0, 300, 4, 1.0)[0])))
    free, dear = (Steps(problem, priced(problem, worth(problem)[0], 0.03, toll)).moves for toll in (0.0, 0.3))
    assert len(dear) < len(free)


def test_a_full_wire_is_spared() -> None:
    graph = by_direction(instances.planted(0, 400, 2, 5.0)[0])
    slow = {**graph, "links": [{**link, "bytes_per_s": link["bytes_per_s"] / 4} for link in graph["links"]]}
    first, second = (Problem(read(each)) for each in (graph, slow))
    assert len(Steps(second, priced(second, [1.0, 1.0], 0.03, 0.0)).moves) < len(
        Steps(first, priced(first, [1.0, 1.0], 0.03, 0.0)).moves
    )


@pytest.mark.parametrize("seed", range(4))
def test_what_follows_is_less_urgent(seed: int) -> None:
    problem = Problem(read(by_direction(instances.small(seed))))
    urgency = last_first(problem, priced(problem, worth(problem)[0], 0.03, 0.1))
    assert all(urgency[p] < urgency[r] for r, before in enumerate(problem.before) for p in before)


@pytest.mark.parametrize("seed", CROWDED[:12])
def test_the_quickest_is_that_of_all_that_can_be_carried_out(seed: int) -> None:
    problem = Problem(read(varied(seed)))
    found = [make(problem) for make in variants.variants(problem).values()]
    best = variants.quickest(problem, math.inf)
    assert Play(problem, best).makespan == pytest.approx(min(Play(problem, each).makespan for each in found))


def test_after_the_time_is_up_no_other_is_tried() -> None:
    problem = Problem(read(by_direction(instances.small(3))))
    first = next(iter(variants.variants(problem)))
    assert variants.quickest(problem, -math.inf).policy == first


def test_what_is_tried_goes_by_what_is_scarce() -> None:
    """A chain has one way to go, and runs that read nothing have none."""
    names = ["a", "b"]
    devices = [{"name": name, "lanes": 1, "memory_bytes": None} for name in names]
    tasks = [{"id": str(t), "seconds": dict.fromkeys(names, 1.0)} for t in range(20)]
    links = [
        {"src": src, "dst": dst, "latency_s": 0.0, "bytes_per_s": 1.0} for src, dst in (names, names[::-1])
    ]
    values = [{"id": f"v{t}", "producer": str(t), "consumers": [str(t + 1)], "bytes": 1} for t in range(19)]
    graph = {"tasks": tasks, "values": values, "devices": devices, "links": links}
    chain, loose = Problem(read(graph)), Problem(read({**graph, "values": []}))
    assert worth(chain) == ([1.0, 1.0], pytest.approx(0.5))
    assert worth(loose) == ([1.0, 1.0], pytest.approx(10.0))
    assert [*variants.variants(chain)] != [*variants.variants(loose)]


def test_full_devices_are_shared_out_where_no_wire_is_scarce() -> None:
    problem = Problem(read(unwired(instances.small(5, tasks=500, devices=4, ratio=1.0))))
    found = {
        policy: Play(problem, make(problem)).makespan for policy, make in variants.variants(problem).items()
    }
    busy = [makespan for policy, makespan in found.items() if policy.endswith("busy")]
    assert 0 < len(busy) < len(found)
    assert min(busy) == min(found.values())
