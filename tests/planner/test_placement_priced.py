"""Placements by prices, and the shortest of what is tried where wires serve first come, first served."""

from __future__ import annotations

import math

import pytest
from benchmarks import instances
from benchmarks.judging import by_direction, unwired
from benchmarks.varied import varied

from autopar.errors import PlanError
from autopar.planner.bounds import device_prices, lower_bound
from autopar.planner.formats import read
from autopar.planner.model.instance import Instance
from autopar.planner.model.simulator import Play
from autopar.planner.search import large as variants
from autopar.planner.search.large import contended, last_first, priced


def plannable(seed: int) -> bool:
    """Whether a random graph has a placement at all, and wires."""
    try:
        return contended(Instance(read(varied(seed))))
    except PlanError:
        return False


CROWDED = [seed for seed in range(60) if plannable(seed)]


def apart(seed: int) -> Instance:
    """300 clusters that read nothing, on devices of one lane that are not alike."""
    graph = instances.small(seed, tasks=300, devices=4)
    devices = [{**device, "lanes": 1} for device in graph["devices"]]
    return Instance(read({**graph, "devices": devices, "values": []}))


def longest(instance: Instance, device: list[int]) -> float:
    """Seconds of the device on which most is."""
    return max(sum(instance.seconds[r][d] for r, d in enumerate(device) if d == e) for e in {*device})


def moves(instance: Instance, device: list[int]) -> int:
    """How often a value comes to a device where it is not made."""
    source = [device[maker] if maker >= 0 else home for maker, home in zip(instance.maker, instance.home)]
    there = {(v, device[r]) for v, readers in enumerate(instance.readers) for r in readers}
    return sum(d != source[v] for v, d in there)


@pytest.mark.parametrize("seed", CROWDED)
def test_runs_are_where_they_may_be_and_groups_together(seed: int) -> None:
    instance = Instance(read(varied(seed)))
    device = priced(instance, device_prices(instance)[0], 0.03, 0.1)
    assert all(d in instance.allowed[r] for r, d in enumerate(device))
    assert all(len({device[r] for r in members}) == 1 for members in instance.members)


@pytest.mark.parametrize("seed", range(4))
def test_loads_come_near_the_best(seed: int) -> None:
    instance = apart(seed)
    device = priced(instance, device_prices(instance)[0], 0.1, 0.1)
    assert longest(instance, device) <= 1.15 * lower_bound(instance)
    quickest = [min(instance.allowed[r], key=row.__getitem__) for r, row in enumerate(instance.seconds)]
    assert longest(instance, device) < longest(instance, quickest)


def test_fewer_values_move_where_copies_cost_more() -> None:
    instance = Instance(read(by_direction(instances.planted(0, 300, 4, 1.0)[0])))
    free, dear = (
        moves(instance, priced(instance, device_prices(instance)[0], 0.03, toll)) for toll in (0.0, 0.3)
    )
    assert dear < free


def test_a_full_wire_is_spared() -> None:
    graph = by_direction(instances.planted(0, 400, 2, 5.0)[0])
    slow = {**graph, "links": [{**link, "bytes_per_s": link["bytes_per_s"] / 4} for link in graph["links"]]}
    first, second = (Instance(read(each)) for each in (graph, slow))
    assert moves(second, priced(second, [1.0, 1.0], 0.03, 0.0)) < moves(
        first, priced(first, [1.0, 1.0], 0.03, 0.0)
    )


@pytest.mark.parametrize("seed", range(4))
def test_what_follows_is_less_urgent(seed: int) -> None:
    instance = Instance(read(by_direction(instances.small(seed))))
    urgency = last_first(instance, priced(instance, device_prices(instance)[0], 0.03, 0.1))
    assert all(urgency[p] < urgency[r] for r, before in enumerate(instance.before) for p in before)


@pytest.mark.parametrize("seed", CROWDED[:12])
def test_the_quickest_is_that_of_all_that_can_be_carried_out(seed: int) -> None:
    instance = Instance(read(varied(seed)))
    found = [make(instance) for make in variants.variants(instance).values()]
    best = variants.quickest(instance, math.inf)
    assert Play(instance, best).makespan == pytest.approx(
        min(Play(instance, each).makespan for each in found)
    )


def test_after_the_time_is_up_no_other_is_tried() -> None:
    instance = Instance(read(by_direction(instances.small(3))))
    first = next(iter(variants.variants(instance)))
    assert variants.quickest(instance, -math.inf).policy == first


def test_what_is_tried_goes_by_what_is_scarce() -> None:
    """A chain has one way to go, and clusters that read nothing have none."""
    names = ["a", "b"]
    devices = [{"name": name, "lanes": 1, "memory_bytes": None} for name in names]
    tasks = [{"id": str(t), "seconds": dict.fromkeys(names, 1.0)} for t in range(20)]
    links = [
        {"src": src, "dst": dst, "latency_s": 0.0, "bytes_per_s": 1.0} for src, dst in (names, names[::-1])
    ]
    values = [{"id": f"v{t}", "producer": str(t), "consumers": [str(t + 1)], "bytes": 1} for t in range(19)]
    graph = {"tasks": tasks, "values": values, "devices": devices, "links": links}
    chain, loose = Instance(read(graph)), Instance(read({**graph, "values": []}))
    assert device_prices(chain) == ([1.0, 1.0], pytest.approx(0.5))
    assert device_prices(loose) == ([1.0, 1.0], pytest.approx(10.0))
    assert [*variants.variants(chain)] != [*variants.variants(loose)]


def test_full_devices_are_shared_out_where_no_wire_is_scarce() -> None:
    instance = Instance(read(unwired(instances.small(5, tasks=500, devices=4, ratio=1.0))))
    found = {
        policy: Play(instance, make(instance)).makespan
        for policy, make in variants.variants(instance).items()
    }
    busy = [makespan for policy, makespan in found.items() if policy.endswith("busy")]
    assert 0 < len(busy) < len(found)
    assert min(busy) == min(found.values())
