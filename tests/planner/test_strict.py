"""The dnn-partitioning paper's model: what the search weighs is what the definition says, and it finds the best."""

import json
import random
from itertools import pairwise

import pytest
from benchmarks.strict_model import named, strict_latency, strict_load
from benchmarks.strict_model.calls import Calls, Reach, blocks, ones
from benchmarks.strict_model.partitioning import partitioning
from benchmarks.strict_model.plan import OBJECTIVES, strict_plan, strict_throughput
from benchmarks.verify import infeasibilities
from partitionings import data, graph, placements

from autopar.errors import MemoryCapError, PlanError
from autopar.planner import schedule
from autopar.planner.formats import described as written
from autopar.planner.formats.read import dnn_partitioning


def allowed(check, graph, at):
    """What the checker says of a placement; None where it is none."""
    try:
        return check(graph, at)
    except PlanError:
        return None


@pytest.mark.parametrize("seed", range(25))
def test_the_search_weighs_placements_as_the_definition_does(seed):
    found = graph(seed, nodes=8, tight=seed % 2 == 0)
    calls, draw = Calls.of(found), random.Random(seed)
    seen = set()
    for _ in range(60):
        share = draw.random()
        at = [draw.randint(1, 2) if draw.random() < share else 0 for _ in calls.members]
        where = [at[c] for c in calls.group]
        told = allowed(strict_latency, found, where)
        mine = calls.latency(at) if calls.fits(at) else None
        if told is None:
            # A cycle of calls that take no time at all is none for the definition.
            assert mine is None or mine == float("inf")
        elif mine != float("inf"):
            assert mine == pytest.approx(told)
        seen.add(told is None)
    assert False in seen


@pytest.mark.parametrize("seed", range(12))
def test_the_latency_found_is_the_least_there_is(seed):
    found = graph(seed, nodes=6, tight=seed % 2 == 0)
    plan = strict_plan(found)
    best = min(t for at in placements(found, 3) if (t := allowed(strict_latency, found, at)) is not None)
    assert plan.lower_bound <= best + 1e-12
    assert plan.makespan == pytest.approx(best)


def devices_of(plan):
    return {step.cluster: step.device for step in plan.placed}, [d.name for d in plan.costed.machine.devices]


@pytest.mark.parametrize("seed", range(12))
def test_a_plan_is_what_the_definition_makes_of_its_placement(seed):
    found = graph(100 + seed, nodes=14)
    plan = strict_plan(found)
    at = named(found, *devices_of(plan))
    assert plan.makespan == pytest.approx(strict_latency(found, at))
    assert plan.makespan <= strict_latency(found, [0] * len(at)) + 1e-12
    calls = {}
    for step in plan.placed:
        calls.setdefault(step.device, []).append((step.start, step.end))
    for transfer in plan.transfers:
        name = transfer.dst if transfer.src == "cpu" else transfer.src
        calls[name].append((transfer.start, transfer.end))
    for name, spans in calls.items():
        spans.sort()
        if name != "cpu":
            assert all(a[1] == pytest.approx(b[0]) for a, b in pairwise(spans)), "one call, no overlap"


@pytest.mark.parametrize("seed", range(8))
def test_a_strict_plan_can_be_carried_out_on_a_freer_machine(seed):
    raw = data(random.Random(300 + seed), nodes=14, cores=14, tight=True)
    plan = strict_plan(partitioning(raw))
    assert infeasibilities(dnn_partitioning(raw), json.loads(json.dumps(written(plan)))) == []


@pytest.mark.slow
def test_the_greedy_fill_and_one_call_for_all_are_never_better():
    for seed in range(6):
        found = graph(500 + seed, nodes=20)
        calls = Calls.of(found)
        plan = strict_plan(found)
        if all(calls.able):
            assert plan.makespan <= strict_latency(found, [1] * len(found.nodes)) + 1e-12
        line = blocks([list(own) for own in calls.before])
        assert plan.makespan <= calls.latency(calls.split(line)) + 1e-12


def test_hulls_and_blocks():
    before = [[], [0], [1], [1, 5], [2, 3], [4], []]
    ring = blocks(before)
    assert sorted(map(tuple, ring)) == [(0,), (1,), (2,), (3, 4, 5), (6,)]
    position = {c: index for index, own in enumerate(ring) for c in own}
    assert all(position[p] <= position[c] for c, needs in enumerate(before) for p in needs)
    reach = Reach(before, ring)
    assert list(ones(reach.hull(1 << 0 | 1 << 2))) == [0, 1, 2]
    assert list(ones(reach.hull(1 << 1 | 1 << 4))) == [1, 2, 3, 4, 5]
    assert list(ones(reach.hull(1 << 6))) == [6]


@pytest.mark.slow
@pytest.mark.thin(2)
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("training", [False, True])
def test_the_period_found_is_near_the_least_there_is(seed, training):
    found = graph(seed, nodes=6, cores=1 + seed % 2, training=training, tight=seed % 3 == 0)
    plan = strict_throughput(found)
    lanes = [lane for device in plan.costed.machine.devices for lane in device.compute_lanes]
    at = named(found, {step.cluster: step.lane for step in plan.placed}, lanes)
    assert plan.period == pytest.approx(strict_load(found, at))
    loads = [allowed(strict_load, found, at) for at in placements(found, found.cpus + 2)]
    best = min(load for load in loads if load is not None)
    assert plan.lower_bound <= best + 1e-12
    assert plan.period <= best * 1.01 + 1e-12


def test_what_cannot_be_placed():
    cyclic = data(random.Random(0))
    cyclic["edges"] = [{"sourceId": a, "destId": b, "cost": 1} for a, b in ((0, 1), (1, 0))]
    for objective in ("latency", "throughput"):
        with pytest.raises(PlanError, match="waits for itself"):
            OBJECTIVES[objective](partitioning(cyclic))
    full = data(random.Random(0), cores=0)
    for node in full["nodes"]:
        node |= {"size": 10, "supportedOnFpga": 1}
    full["maxSizePerFPGA"] = 9
    with pytest.raises(MemoryCapError, match="maxSizePerFPGA"):
        strict_throughput(partitioning(full))
    full["nodes"][0]["supportedOnFpga"] = 0
    with pytest.raises(PlanError, match="cannot run on an accelerator"):
        strict_throughput(partitioning(full))
    with pytest.raises(PlanError, match="at least one device"):
        strict_throughput(partitioning({**full, "maxFPGAs": 0}))
    alone = strict_plan(partitioning({**data(random.Random(1)), "maxFPGAs": 0}))
    assert {step.device for step in alone.placed} == {"cpu"}


@pytest.mark.slow
def test_a_freer_machine_has_no_longer_period():
    raw = data(random.Random(3), nodes=12)
    strict, free = strict_throughput(partitioning(raw)), schedule(raw, objective="throughput")
    assert strict.policy == "strict-msr" != free.policy
    assert free.lower_bound <= strict.period + 1e-12


def test_a_search_without_time_says_so():
    plan = strict_plan(partitioning(data(random.Random(4), nodes=12)), budget_s=1e-9)
    assert plan.stopped == "time"
