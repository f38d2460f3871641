"""Lists timed one by one are what a simulation makes of them."""

import math
import random

import pytest
from graphs import chain, machine, random_dag
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import exact, needs_native, played

from autopar.planner.model.instance import Instance
from autopar.planner.search import evaluate

pytestmark = needs_native

problems = st.tuples(st.integers(0, 10**6), st.integers(1, 30), st.sampled_from([0.1, 1.0, 5.0]))


def drawn(seed: int, tasks: int, ccr: float):
    """The problem of a random problem, and devices and keys for it."""
    draw = random.Random(seed)
    on = machine(
        draw.randint(1, 3),
        cpu_lanes=draw.randint(1, 3),
        wire=("own", "one", None)[seed % 3],
        peer=seed % 4 > 0,
    )
    on = on.__class__(on.devices, on.links, queued=False)
    instance = Instance(random_dag(seed, tasks, ccr=ccr, on=on))
    return instance, [draw.choice(own) for own in instance.allowed], drawn_keys(instance, draw)


def drawn_keys(instance: Instance, draw: random.Random) -> list[float]:
    """Keys that grow from each cluster to those that wait for it."""
    keys: list[float] = []
    for earlier in instance.before:
        keys.append(max((keys[r] for r in earlier), default=0.0) + draw.random())
    return keys


@given(problems, st.booleans())
@settings(max_examples=60, deadline=None)
def test_times_are_those_of_the_simulation(made, eager):
    instance, device, keys = drawn(*made)
    timed = evaluate(instance, device, keys, eager=eager)
    simulation = played(timed)
    if exact(timed):
        assert simulation.makespan == pytest.approx(timed.makespan, rel=1e-9)
        assert simulation.start[: instance.clusters] == pytest.approx(timed.start, rel=1e-9)
        assert simulation.end[: instance.clusters] == pytest.approx(timed.end, rel=1e-9)


@given(problems)
@settings(max_examples=30, deadline=None)
def test_lanes_of_eager_devices_idle_only_for_want_of_runs(made):
    instance, device, keys = drawn(*made)
    timed = evaluate(instance, device, keys, eager=True)
    instance, simulation = instance, played(timed)
    for r, d in enumerate(device):
        if exact(timed) and timed.start[r] > simulation.ready[r] * (1 + 1e-9):
            at_work = [
                s
                for s, e in enumerate(device)
                if e == d and timed.start[s] < timed.start[r] <= timed.end[s] * (1 + 1e-12)
            ]
            assert len(at_work) >= len(instance.lane_names[d])


def test_circular_lists_never_end():
    """Of two clusters of a chain on one device, the second first."""
    instance = Instance(chain(2, machine(1)))
    assert evaluate(instance, [0, 0], [0.0, 1.0]).makespan < math.inf
    assert evaluate(instance, [0, 0], [1.0, 0.0]).makespan == math.inf
    assert evaluate(instance, [0, 1], [1.0, 0.0]).makespan < math.inf
