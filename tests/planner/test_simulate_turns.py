"""When steps start, and what list schedules are steered by."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from taskfiles import randomly

from autopar.planner.formats import read
from autopar.planner.lists.heft import cost_to_go, heft, urgent_first
from autopar.planner.model.instance import Instance
from autopar.planner.model.simulator import Simulation
from autopar.planner.search.large import weighted

problems = st.builds(lambda seed: Instance(read(randomly(random.Random(seed)))), st.integers(0, 10**6))


@settings(max_examples=60, deadline=None)
@given(problems)
def test_everything_starts_when_the_last_that_it_waits_for_is_done(instance: Instance) -> None:
    simulation = Simulation(instance, heft(instance))
    ends = {0.0, *simulation.end}
    assert all(start in ends for start in simulation.start)
    for step, later in enumerate(simulation.waiting):
        assert all(
            simulation.start[other] >= simulation.ready[other] >= simulation.end[step] for other in later
        )
    for order in simulation.orders:
        assert all(simulation.end[r] <= simulation.start[after] for r, after in pairwise(order))
    # A wire has those first that ask first.
    asked = sorted((simulation.ready[step], step) for step in range(instance.clusters, len(simulation.end)))
    for lane in range(len(instance.copy_lanes)):
        own = [step for _, step in asked if simulation.moves[step - instance.clusters][1].lane == lane]
        assert all(simulation.end[step] <= simulation.start[after] for step, after in pairwise(own))


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(problems, st.sampled_from((0.0, 0.5, 1.0)))
def test_ranks_keep_what_waits_behind(instance: Instance, copies: float) -> None:
    order = urgent_first(instance, copies)
    place = {r: index for index, r in enumerate(order)}
    assert sorted(order) == list(range(instance.clusters))
    assert all(place[p] < place[r] for r, before in enumerate(instance.before) for p in before)


@settings(max_examples=40, deadline=None)
@given(problems)
def test_cost_to_go_is_in_every_schedule(instance: Instance) -> None:
    """No schedule ends sooner after a cluster than its cost to go on the device where it is."""
    simulation = Simulation(instance, heft(instance))
    for r, row in enumerate(cost_to_go(instance)):
        assert simulation.end[r] + row[simulation.device[r]] <= simulation.makespan + 1e-9


@settings(max_examples=20, deadline=None)
@given(problems)
def test_variants_can_be_carried_out(instance: Instance) -> None:
    found = weighted(instance)
    assert found
    assert [make(instance).policy for make in found.values()] == [*found]
    assert all(Simulation(instance, make(instance)).makespan >= 0 for make in found.values())
