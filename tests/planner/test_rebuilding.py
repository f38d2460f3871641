"""Runs placed anew: what stays keeps its place, and what is built can be timed."""

import random

from graphs import machine, random_dag
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.planner.model.problem import Problem
from autopar.planner.search.evaluate import Timed
from autopar.planner.search.moves import Neighbourhood
from autopar.planner.search.network import Network
from autopar.planner.search.ruin_recreate import PART, rebuilt


def beside(seed: int, tasks: int = 16) -> Neighbourhood:
    """A schedule of random devices and its neighbours."""
    draw = random.Random(seed)
    on = machine(2, cpu_lanes=1 + seed % 2, wire=("own", "one", None)[seed % 3])
    network = Network(Problem(random_dag(seed, tasks, ccr=3.0, on=on)))
    device = [draw.choice(allowed) for allowed in network.problem.allowed]
    return Neighbourhood(network, draw, Timed(network, device, [*range(network.runs)], eager=True))


@given(st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_a_part_of_the_runs_is_placed_anew(seed):
    made = beside(seed)
    runs = made.network.runs
    for run in range(0, runs, 3):
        device, places = rebuilt(made, run, 0.0)
        assert 1 < places <= runs + sum(map(len, made.problem.allowed))
        if device is None:
            continue
        moved = [r for r in range(runs) if device[r] != made.device[r]]
        assert 1 <= len(moved) <= max(2, PART * runs) + 1
        assert all(d in allowed for d, allowed in zip(device, made.problem.allowed))
        assert Timed(made.network, device, made.keys, eager=True).makespan < float("inf")


def test_random_devices_are_mended():
    """Of schedules that nobody chose, placing runs anew makes shorter ones."""
    shorter = 0
    for seed in range(20):
        made = beside(seed)
        device, _ = rebuilt(made, made.run(), 0.0)
        if device:
            new = Timed(made.network, device, made.keys, eager=True)
            shorter += new.makespan < made.now.makespan
    assert shorter >= 8
