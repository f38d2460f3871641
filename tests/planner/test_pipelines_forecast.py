"""The predicted step of a distribution as a timeline: as long as the plan says, each pass once, gaps told."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.ir.hosts import Hosts
from autopar.planner.pipelines import Chain, RowCost, Unit, distribution
from autopar.planner.pipelines.simulation import predicted, waits


def _plan(units: int, network: str, schedule: str, replicas: int, tied: bool):
    chain = Chain("tied", ("host0",), tuple(
        Unit(
            f"u{i}", (RowCost(1e-4, 1e-5),), (RowCost(2e-4, 2e-5),),
            (("shared" if tied and i in (0, units - 1) else f"w{i}", 4_000_000),), 0, 4000.0, 4000.0,
        )
        for i in range(units)
    ))  # fmt: skip
    hosts = Hosts.declare(f"{2 * replicas} x cpu over {network}")
    return distribution(
        chain, hosts, 32, schedules=(schedule,), replicas=replicas,
        stages=4 if schedule in ("interleaved", "zero-bubble") else 2,
    )  # fmt: skip


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(
    st.integers(4, 20),
    st.sampled_from(["ethernet-1", "ethernet-10", "ib-400"]),
    st.sampled_from(["gpipe", "1f1b", "interleaved", "zero-bubble"]),
    st.integers(1, 2),
    st.booleans(),
)
def test_it_lasts_as_long_as_planned_and_has_each_pass_once(units, network, schedule, replicas, tied):
    plan = _plan(units, network, schedule, replicas, tied)
    timeline = predicted(plan)
    assert timeline.makespan == pytest.approx(plan.step_s, rel=1e-9)
    passes = Counter(span.name for span in timeline.spans if span.phase in ("forward", "backward"))
    per_stage = 3 if schedule == "zero-bubble" else 2
    assert set(passes.values()) == {1}
    assert sum(passes.values()) == per_stage * len(plan.stages) * plan.micro_batches
    for lane in timeline.lanes:
        own = sorted((span.start, span.end) for span in timeline.spans if span.lane == lane)
        assert all(first[1] <= second[0] + 1e-12 for first, second in pairwise(own))


def test_gaps_are_told_by_who_is_waited_for():
    plan = _plan(12, "ethernet-10", "1f1b", 1, False)
    timeline = predicted(plan)
    told = waits(plan, timeline.spans)
    for name in plan.ranks[0]:
        spans = [
            s for s in timeline.spans if s.device == name and s.kind == "compute" and s.phase != "update"
        ]
        gaps = max(s.end for s in spans) - sum(s.seconds for s in spans)
        assert sum(s for (device, _), s in told.items() if device == name) == pytest.approx(gaps, rel=1e-6)
    # The first waits for gradients of the second, the second for activations of the first.
    first, second = plan.ranks[0]
    assert told[first, second] > 0 and told[second, first] > 0
