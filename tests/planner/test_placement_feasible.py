"""Any plan of any policy on any graph can be carried out, and is bounded from both sides."""

import pytest
from feasible import problems
from graphs import machine, random_dag, two_towers
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.errors import MemoryCapError
from autopar.ir.plan import Plan
from autopar.planner import POLICIES, place
from autopar.planner.bounds import lower_bound
from autopar.planner.model.instance import Instance

pytestmark = pytest.mark.slow

SLACK = 1 + 1e-9

graphs = st.builds(
    random_dag,
    st.integers(0, 10**6),
    st.integers(1, 24),
    st.integers(1, 4),
    st.sampled_from((0.1, 1.0, 10.0)),
    deliver=st.sampled_from(("cpu", "")),
)


@settings(max_examples=30, deadline=None)
@given(graphs, st.sampled_from(("auto", "single", *POLICIES)))
def test_every_plan_can_be_carried_out(costed, policy):
    plan = place(costed, policy)
    assert problems(plan) == []
    assert plan.lower_bound <= lower_bound(Instance(costed)) <= plan.makespan * SLACK
    assert plan.lower_bound <= min((c.makespan for c in plan.candidates if c.makespan), default=1) * SLACK


@settings(max_examples=12, deadline=None)
@given(graphs)
def test_auto_is_never_worse_than_anything_it_tried(costed):
    plan = place(costed)
    assert plan.makespan <= min(c.makespan for c in plan.candidates if c.makespan is not None) * SLACK
    if plan.best_single:
        assert plan.makespan <= plan.best_single[1] * SLACK
    for policy in POLICIES:
        assert plan.makespan <= place(costed, policy).makespan * SLACK or policy in (
            "round_robin",
            "fill",
            "follow",
        )


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.2, 1.5))
def test_caps_hold_or_the_error_says_what_would_fit(seed, share):
    free = random_dag(seed, 16, 3, 1.0, on=machine(2))
    most = max(place(free, f"single {name}").peaks[name] for name in free.machine.device)
    caps = {"emulated:0": int(most * share), "emulated:1": int(most * share)}
    costed = random_dag(seed, 16, 3, 1.0, on=machine(2, memory=caps))
    try:
        plan = place(costed)
    except MemoryCapError as error:
        assert "would need" in str(error) and "would fit" in str(error)
    else:
        assert problems(plan) == []


def test_the_judge_can_say_no():
    plan = place(two_towers(3))
    late = plan.place["sum"]
    early = type(late)(late.cluster, late.device, late.lane, 0.0, late.end - late.start)
    broken = Plan(
        plan.costed, "x", (early, *(p for p in plan.placed if p.cluster != "sum")), plan.transfers, plan.resident,
        plan.memory, plan.makespan,
    )  # fmt: skip
    assert any("before it is there" in text for text in problems(broken))
    assert any("two things" in text for text in problems(broken))
    alone = Plan(plan.costed, "x", plan.placed, (), plan.resident, plan.memory, plan.makespan)
    assert problems(alone)
