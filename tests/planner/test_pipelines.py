"""Plans of pipelines over hosts: bounds, formulas, memory, and what cannot be."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from chains import even_chain, hosts
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from autopar import MemoryCapError, PlanError
from autopar.ir.hosts import Hosts
from autopar.planner.pipelines import Chain, RowCost, Unit, distribution, processes
from autopar.planner.pipelines.grid import CORE_BYTES_PER_S, CORE_S, SUMMED_BYTES_PER_S, grids
from autopar.planner.pipelines.pricing import Partition, Setup
from autopar.planner.pipelines.simulation import Option

UNITS = st.lists(
    st.builds(
        Unit,
        st.just("u"),
        st.tuples(st.builds(RowCost, st.floats(0, 1e-3), st.floats(1e-5, 1e-2))),
        st.tuples(st.builds(RowCost, st.floats(0, 1e-3), st.floats(1e-5, 1e-2))),
        st.lists(st.tuples(st.sampled_from("abcdefgh"), st.just(50_000)), max_size=1).map(tuple),
        saved_bytes=st.floats(0, 1e5),
        crossing_bytes=st.floats(0, 1e6),
    ),
    min_size=2,
    max_size=9,
)


def chain_of(units: list[Unit]) -> Chain:
    named = tuple(replace(unit, name=f"u{i}") for i, unit in enumerate(units))
    return Chain("drawn", ("host0",), named)


EVEN = [
    *(("gpipe", p, 1, m) for p, m in ((2, 4), (3, 6), (4, 2), (4, 16))),
    *(("1f1b", p, 1, m) for p, m in ((2, 4), (3, 6), (4, 16))),
    *(("interleaved", p, v, m) for p, v, m in ((2, 2, 4), (3, 2, 6), (4, 3, 16))),
]


@pytest.mark.parametrize(("schedule", "positions", "chunks", "micro_batches"), EVEN)
def test_the_bubble_of_even_stages_is_the_formula(schedule, positions, chunks, micro_batches):
    stages = positions * chunks
    plan = distribution(
        even_chain(2 * stages), hosts(positions, free=True), micro_batches, schedules=[schedule],
        stages=stages, replicas=1, micro_batches=micro_batches,
    )  # fmt: skip
    assert len(plan.stages) == stages and plan.positions == positions
    formula = (positions - 1) / (chunks * micro_batches + positions - 1)
    assert plan.bubble == pytest.approx(formula, rel=1e-6)


@pytest.mark.slow
@given(UNITS, st.integers(1, 4), st.sampled_from([1, 2, 4, 6, 12]), st.booleans())
@settings(max_examples=40, deadline=None)
def test_a_step_is_between_its_bound_and_that_of_one_host(units, count, batch, trained):
    chain, objective = chain_of(units), "training" if trained else "latency"
    plan = distribution(chain, hosts(count), batch, objective=objective)
    one = distribution(chain, hosts(1), batch, objective=objective)
    words = ("forward", "backward") if trained else ("forward",)
    rows = batch / plan.replicas / plan.micro_batches
    total = sum(cost.seconds(rows) for unit in units for word in words for cost in getattr(unit, word))
    assert plan.step_s <= one.step_s * (1 + 1e-9)
    assert plan.step_s >= plan.ideal_s * (1 - 1e-9)
    assert plan.ideal_s >= plan.micro_batches * total / plan.positions * (1 - 1e-9)
    assert plan == distribution(chain, hosts(count), batch, objective=objective)


@given(UNITS, st.integers(2, 4), st.sampled_from([4, 8]))
@settings(max_examples=30, deadline=None)
def test_no_plan_is_longer_than_the_even_split_by_hand(units, count, batch):
    assume(len(units) >= count)
    chain, on = chain_of(units), hosts(count)
    plan = distribution(chain, on, batch, micro_batches=batch, replicas=1, stages=count, schedules=["1f1b"])
    option = Option(1, count, 1, batch, "1f1b", 1, True)
    setup = Setup(chain, grids(on, processes(on), 1, count)[0], option, 4.0)
    hand = Partition(setup, tuple(s * len(units) // count for s in range(count + 1)))
    assert plan.step_s <= hand.step_s(False) * (1 + 1e-9)
    assert hand.bound_s(False) <= hand.step_s(False) * (1 + 1e-9)


@pytest.mark.slow
@given(UNITS, st.integers(2, 4), st.integers(1, 30), st.integers(0, 30))
@settings(max_examples=30, deadline=None)
def test_more_memory_never_hurts(units, count, least, more):
    chain, found = chain_of(units), []
    for cap in (least * 20_000, (least + more) * 20_000):
        try:
            plan = distribution(chain, hosts(count), 4, memory=cap)
        except MemoryCapError:
            found.append(float("inf"))
        else:
            assert max(plan.memory) <= cap
            found.append(plan.step_s)
    assert found[1] <= found[0] * (1 + 1e-9)


@pytest.mark.slow
@given(UNITS, st.integers(2, 3), st.integers(5, 40))
@settings(max_examples=60, deadline=None)
def test_nothing_is_refused_that_fits_with_other_cuts(units, count, cap):
    assume(len(units) >= count)
    # Memory of messages is only looked at once there are cuts.
    chain, on = chain_of([replace(unit, crossing_bytes=0.0) for unit in units]), hosts(count)
    fixed = {"micro_batches": 4, "replicas": 1, "stages": count, "schedules": ["1f1b"]}
    setup = Setup(chain, grids(on, processes(on), 1, count)[0], Option(1, count, 1, 4, "1f1b", 1, True), 4.0)
    inner = itertools.combinations(range(1, len(units)), count - 1)
    least = min(max(Partition(setup, (0, *cuts, len(units))).memory) for cuts in inner)
    try:
        assert max(distribution(chain, on, 4, memory=cap * 20_000, **fixed).memory) <= cap * 20_000
    except MemoryCapError:
        assert least > cap * 20_000


@given(UNITS, st.integers(2, 4))
@settings(max_examples=30, deadline=None)
def test_the_period_of_inference_is_its_slowest_stage_or_link(units, count):
    chain = chain_of(units)
    plan = distribution(chain, hosts(count), 2, objective="throughput")
    assert not plan.trained and plan.step_s >= plan.ideal_s * (1 - 1e-9)
    assert plan.step_s <= distribution(chain, hosts(count), 2, objective="latency").step_s * (1 + 1e-9)


def test_unequal_hosts_get_stages_by_their_speed():
    units = tuple(
        Unit(f"u{i}", (RowCost(0, 1e-3), RowCost(0, 3e-3)), (RowCost(0, 2e-3), RowCost(0, 6e-3)))
        for i in range(16)
    )
    on = Hosts.declare("1 x cpu-64 + 1 x cpu-16 over ethernet-100")
    kinds = tuple(process.kind for process in processes(on))
    assert kinds == ("host0", "host1")
    plan = distribution(Chain("uneven", kinds, units), on, 16, stages=2, replicas=1, micro_batches=16)
    sizes = {plan.ranks[0][at]: s.stop - s.first for at, s in enumerate(plan.stages)}
    assert sizes == {"host0": 12, "host1": 4}


def test_what_does_not_fit_on_one_host_is_cut_and_what_fits_on_none_is_refused():
    chain = even_chain(8, weights=1_000_000)
    state = 4 * 8 * 1_000_000
    plan = distribution(chain, hosts(4), 8, memory=state // 2 + 10_000)
    assert plan.positions >= 2 and max(plan.memory) <= state // 2 + 10_000
    with pytest.raises(MemoryCapError, match=r"memory=\d+") as refused:
        distribution(chain, hosts(4), 8, memory=state // 10)
    enough = int(str(refused.value).split("memory=")[1].split(",")[0])
    assert max(distribution(chain, hosts(4), 8, memory=enough).memory) <= enough


def test_1f1b_is_taken_where_gpipe_needs_too_much_memory():
    chain = even_chain(4, weights=0)
    fixed = {"stages": 4, "replicas": 1, "micro_batches": 16}
    needed = distribution(chain, hosts(4, free=True), 16, schedules=["1f1b"], **fixed).memory
    roomy = distribution(chain, hosts(4, free=True), 16, schedules=["gpipe"], **fixed).memory
    assert max(needed) < max(roomy)
    plan = distribution(
        chain, hosts(4, free=True), 16, memory=max(needed), schedules=["gpipe", "1f1b"], **fixed
    )
    assert plan.schedule == "1f1b"
    assert any(step is None for what, step in plan.tried if "gpipe" in what) or len(plan.tried) == 0


def test_tied_weights_are_counted_once_in_a_stage_and_summed_over_two():
    tied = ("table", 4_000_000)
    units = [Unit(f"u{i}", (RowCost(0, 1e-3),), (RowCost(0, 2e-3),)) for i in range(6)]
    units[0] = replace(units[0], weights=(tied,))
    units[-1] = replace(units[-1], weights=(tied,))
    chain = Chain("tied", ("host0",), tuple(units))
    assert chain.weight_bytes(0, 6) == 4_000_000 == chain.weight_bytes(0, 3) == chain.weight_bytes(3, 6)
    assert chain.weight_bytes(1, 5) == 0
    fixed = {"stages": 2, "replicas": 1, "micro_batches": 4, "schedules": ["1f1b"]}
    apart = replace(chain, units=(*units[:-1], replace(units[-1], weights=(("other", 4_000_000),))))
    summed = (
        distribution(chain, hosts(2), 4, **fixed).step_s - distribution(apart, hosts(2), 4, **fixed).step_s
    )
    rate = min(hosts(2).hosts[0].bytes_per_s, SUMMED_BYTES_PER_S)
    assert summed == pytest.approx(4_000_000 / rate, rel=0.1)


def test_each_micro_batch_but_the_first_adds_its_weight_gradients_to_the_others():
    free = even_chain(6, weights=1_000_000)
    chain = replace(free, added_bytes_per_s=(1e9,))
    for micro_batches in (1, 4):
        fixed = {"stages": 1, "replicas": 1, "micro_batches": micro_batches}
        added = (
            distribution(chain, hosts(1), 4, **fixed).step_s - distribution(free, hosts(1), 4, **fixed).step_s
        )
        assert added == pytest.approx((micro_batches - 1) * 6 * 1e6 / 1e9)


def test_messages_take_time_of_the_cores_that_compute():
    """Two stages, one micro-batch: one CPU sends an activation and gets its gradient back."""
    fixed = {"stages": 2, "replicas": 1, "micro_batches": 1, "schedules": ["gpipe"]}
    steps = [
        distribution(even_chain(2, crossing=nbytes), hosts(2, free=True), 1, **fixed).step_s
        for nbytes in (0, 1_000_000)
    ]
    assert steps[1] - steps[0] == pytest.approx(4 * (CORE_S + 1e6 / CORE_BYTES_PER_S))


def test_the_first_stage_has_only_gradients_of_weights():
    chain, (grid,) = even_chain(4), grids(hosts(2), processes(hosts(2)), 1, 2)
    option = Option(1, 2, 1, 4, "zero-bubble", 1, trained=True)
    first, last = Partition(Setup(chain, grid, option, 2.0), (0, 2, 4)).passes
    assert first["I"] == 0 and first["W"] == pytest.approx(4e-3)
    assert last["I"] > 0 and last["I"] + last["W"] == pytest.approx(4e-3)


def test_accelerators_of_a_host_are_nearer_than_hosts():
    on = Hosts.declare("2 x (cpu + 4 h100) over ethernet-10")
    members = processes(on, "accelerator")
    assert len(members) == 8 and len({process.kind for process in members}) == 1
    chain = replace(even_chain(8, crossing=1e5, weights=100_000_000), kinds=(members[0].kind,))
    plan = distribution(chain, on, 16, members=members)
    changes = sum(a != b for row in plan.ranks for a, b in itertools.pairwise(row))
    assert changes <= plan.replicas
    grouped = processes(on, "accelerator", 4)
    assert [len(process.devices) for process in grouped] == [4, 4]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"objective": "speed"}, "give one of training"),
        ({"schedules": ["2f2b"]}, "schedule '2f2b'"),
        ({"replicas": 3}, "product divides"),
        ({"replicas": 8}, "more than the 4 processes"),
        ({"stages": 99}, "more than the 12 units"),
        ({"micro_batches": 0}, "whole number from 1"),
        ({"stages": 8, "schedules": ["1f1b"]}, "no way to run"),
    ],
)
def test_numbers_that_cannot_be_are_refused(given, says):
    with pytest.raises(PlanError, match=says):
        distribution(even_chain(12), hosts(4), 16, **given)


def test_a_chain_says_what_is_wrong_with_it():
    with pytest.raises(PlanError, match="computes nothing"):
        distribution(Chain("m", ("host0",), ()), hosts(1), 4)
    with pytest.raises(PlanError, match="not priced for"):
        distribution(replace(even_chain(4), kinds=("laptop",)), hosts(2), 4)
