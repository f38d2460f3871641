"""Replicas that share out their parameters: taken where memory demands it, and priced by what they send."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from chains import even_chain, hosts

from autopar import MemoryCapError, PlanError
from autopar.ir.distribution import BUCKET_BYTES, Distribution
from autopar.ir.hosts import Hosts
from autopar.planner.pipelines import RowCost, Unit, distribution, grid, processes
from autopar.planner.pipelines.simulation import predicted

UNITS = 16
WEIGHTS = 4 * BUCKET_BYTES
STATE = 4 * UNITS * WEIGHTS
"""Bytes of the whole chain's weights, gradients and Adam's state."""
FIXED = {"stages": 1, "replicas": 4, "micro_batches": 2}


def test_replicas_are_sharded_only_where_they_do_not_fit_otherwise():
    chain = even_chain(UNITS, weights=WEIGHTS)
    plain = distribution(chain, hosts(4), 8, memory=STATE + 10_000, **FIXED)
    assert not plain.sharded
    assert distribution(chain, hosts(4), 8, memory=STATE + 10_000, shard_replicas="auto", **FIXED) == plain
    with pytest.raises(MemoryCapError, match="or shard_replicas='auto'"):
        distribution(chain, hosts(4), 8, memory=STATE // 2 + 10_000, **FIXED)
    plan = distribution(chain, hosts(4), 8, memory=STATE // 2 + 10_000, shard_replicas="auto", **FIXED)
    assert plan.sharded and max(plan.memory) <= STATE // 2 + 10_000
    # A quarter of all, and some of the 16 groups at a time.
    assert STATE / 4 < max(plan.memory) <= STATE / 4 + 4 * WEIGHTS + 10_000
    assert "4 sharded replicas" in str(plan)


@pytest.fixture
def free_cores(monkeypatch):
    """Collectives take no time of the cores."""
    monkeypatch.setattr(grid, "SUMMED_BYTES_PER_S", math.inf)


def test_gathers_and_scatters_are_three_halves_of_a_sum_in_each_micro_batch(free_cores):
    chain = even_chain(UNITS, weights=WEIGHTS)
    plan, free = (
        distribution(chain, hosts(4, free=free), 8, shard_replicas=True, **FIXED) for free in (False, True)
    )
    ring = 2 * (3 / 4) * UNITS * WEIGHTS / hosts(4).hosts[0].bytes_per_s
    assert plan.sharded and plan.step_s - free.step_s == pytest.approx(2 * 1.5 * ring, rel=0.01)
    assert predicted(plan).makespan == pytest.approx(plan.step_s, rel=1e-6)


def test_accelerators_gather_while_they_compute():
    on = Hosts.declare("2 x (cpu + 1 h100) over ib-400")
    members = processes(on, "accelerator")
    slow = tuple(Unit(f"u{i}", (RowCost(0.5),), (RowCost(1.0),), ((f"w{i}", WEIGHTS),)) for i in range(UNITS))
    chain = replace(even_chain(1), kinds=(members[0].kind,), units=slow)
    fixed = {"stages": 1, "replicas": 2, "micro_batches": 1, "members": members}
    plan = distribution(chain, on, 2, shard_replicas=True, **fixed)
    assert UNITS * 1.5 < plan.step_s < UNITS * 1.5 * 1.01


def test_weights_of_several_groups_are_whole_while_their_stage_computes():
    chain = even_chain(UNITS, weights=WEIGHTS)
    shared = ("table", WEIGHTS)
    ends = (
        replace(chain.units[0], weights=(shared,)),
        *chain.units[1:-1],
        replace(chain.units[-1], weights=(shared,)),
    )
    plain, tied = (
        max(distribution(c, hosts(4), 8, shard_replicas=True, **FIXED).memory)
        for c in (chain, replace(chain, units=ends))
    )
    assert tied - plain == 2 * WEIGHTS - WEIGHTS, "with its gradient, and one parameter less to share"


def test_a_plan_is_saved_with_its_groups(tmp_path):
    plan = distribution(even_chain(UNITS, weights=WEIGHTS), hosts(4), 8, shard_replicas=True, **FIXED)
    plan.save(tmp_path / "plan.json")
    assert Distribution.load(tmp_path / "plan.json") == plan
    (stage,) = plan.stages
    with pytest.raises(PlanError, match="must rise from 0 to 16"):
        replace(plan, stages=(replace(stage, groups=(3, 2, 16)),)).check()
    with pytest.raises(PlanError, match="nobody to share"):
        replace(plan, ranks=plan.ranks[:1]).check()
    with pytest.raises(PlanError, match=r"zero-bubble .* give schedule='1f1b'"):
        replace(plan, schedule="zero-bubble").check()


def test_a_sum_of_gradients_takes_time_of_the_cores_of_a_cpu():
    weights = 200_000_000
    chain = even_chain(UNITS, weights=weights // UNITS)
    fixed = {"stages": 1, "replicas": 2, "micro_batches": 1}
    plan, apart = (
        distribution(each, hosts(2, free=True), 2, **fixed) for each in (chain, even_chain(UNITS, weights=0))
    )
    assert plan.step_s - apart.step_s == pytest.approx(weights / grid.SUMMED_BYTES_PER_S, rel=0.01)


def test_a_sum_of_gradients_is_hidden_by_a_long_backward_but_for_its_last_bucket(free_cores):
    fixed = {"stages": 1, "replicas": 2, "micro_batches": 1}
    nbytes = 200_000_000
    ring = nbytes / hosts(2).hosts[0].bytes_per_s
    left = []
    for backward_s in (0.0, 0.01, 10.0):
        units = tuple(
            replace(unit, backward=(RowCost(backward_s / 4),))
            for unit in even_chain(4, weights=nbytes // 4).units
        )
        chain = replace(even_chain(1), units=units)
        plan, free = (distribution(chain, hosts(2, free=free), 2, **fixed) for free in (False, True))
        left.append(plan.step_s - free.step_s)
    assert left[0] == pytest.approx(ring, rel=0.01)
    assert left[1] == pytest.approx(ring - 0.01, rel=0.01)
    assert left[2] <= 1.01 * ring * BUCKET_BYTES / nbytes
