"""Lists timed one by one are what a simulation makes of them; what is critical is; changes are schedules."""

import math
import random

import pytest
from benchmarks.instances import planted, small
from graphs import machine, random_dag
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.planner.formats import read
from autopar.planner.model.problem import Problem
from autopar.planner.model.simulator import Play
from autopar.planner.search.evaluate import Timed
from autopar.planner.search.moves import Neighbourhood
from autopar.planner.search.network import Network

problems = st.tuples(st.integers(0, 10**6), st.integers(1, 30), st.sampled_from([0.1, 1.0, 5.0]))


def drawn(seed: int, tasks: int, ccr: float):
    """A random problem, and devices and keys for it."""
    draw = random.Random(seed)
    on = machine(
        draw.randint(1, 3),
        cpu_lanes=draw.randint(1, 3),
        wire=("own", "one", None)[seed % 3],
        peer=seed % 4 > 0,
    )
    on = on.__class__(on.devices, on.links, queued=False)
    problem = Problem(random_dag(seed, tasks, ccr=ccr, on=on))
    return problem, Network(problem), [draw.choice(own) for own in problem.allowed], drawn_keys(problem, draw)


def drawn_keys(problem: Problem, draw: random.Random) -> list[float]:
    """Keys that grow from each run to those that wait for it."""
    keys: list[float] = []
    for earlier in problem.before:
        keys.append(max((keys[r] for r in earlier), default=0.0) + draw.random())
    return keys


def played(timed: Timed) -> Play:
    """What `simulate` makes of the orders of a timed list."""
    return Play(timed.network.problem, timed.schedule("test"))


def direct(problem: Problem) -> bool:
    """Whether no way leads through a third device: second hops are served with the first here."""
    return all(len(hops or ()) < 2 for row in problem.route for hops in row)


@given(problems, st.booleans())
@settings(max_examples=60, deadline=None)
def test_times_are_those_of_the_simulation(made, eager):
    problem, network, device, keys = drawn(*made)
    timed = Timed(network, device, keys, eager=eager)
    play = played(timed)
    # Where a device has several lanes their orders do not say which of two runs on different lanes starts first.
    if direct(problem) and (eager or max(network.lanes) == 1):
        assert play.makespan == pytest.approx(timed.makespan, rel=1e-9)
        assert play.start[: problem.runs] == pytest.approx(timed.start, rel=1e-9)


@given(problems)
@settings(max_examples=30, deadline=None)
def test_lanes_of_eager_devices_idle_only_for_want_of_runs(made):
    _, network, device, keys = drawn(*made)
    timed = Timed(network, device, keys, eager=True)
    for r, d in enumerate(device):
        if timed.start[r] > timed.ready[r] * (1 + 1e-12):
            at_work = [
                s
                for s, e in enumerate(device)
                if e == d and timed.start[s] < timed.start[r] <= timed.end[s] * (1 + 1e-12)
            ]
            assert len(at_work) >= network.lanes[d]


@given(problems)
@settings(max_examples=30, deadline=None)
def test_no_tail_is_longer_than_what_follows_and_some_run_is_critical(made):
    problem, network, device, keys = drawn(*made)
    timed = Timed(network, device, keys)
    timed.tails()
    spans = [timed.end[r] + timed.tail[r] for r in range(problem.runs)]
    assert max(spans) <= timed.makespan * (1 + 1e-9)
    assert all(wanted <= tail for wanted, tail in zip(timed.wanted, timed.tail))
    assert timed.critical()


@given(problems)
@settings(max_examples=20, deadline=None)
def test_a_list_is_given_up_only_where_it_is_too_long(made):
    _, network, device, keys = drawn(*made)
    length = Timed(network, device, keys).makespan
    assert Timed(network, device, keys, limit=length * (1 + 1e-9)).makespan == length
    assert Timed(network, device, keys, limit=length * (1 - 1e-6)).makespan >= length


@pytest.mark.parametrize("graph", [planted(1, 40, 4, 1.0)[0], small(16, tasks=30), small(10, tasks=30)])
def test_every_change_is_a_schedule(graph):
    network, draw = Network(Problem(read(graph))), random.Random(0)
    problem = network.problem
    start = Timed(network, [own[0] for own in problem.allowed], drawn_keys(problem, draw))
    beside = Neighbourhood(network, draw, start)
    changes = 0
    for _ in range(100):
        device, keys = [*beside.device], [*beside.keys]
        found = draw.choice((beside.moved, beside.shifted, beside.exchanged))(beside.run(), math.inf)
        many = draw.choice((beside.gathered, beside.stretched))(beside.run())
        for r, d, key in found[1] if found else ():
            device[r], keys[r] = d, key
        for own in (device, many) if many else (device,):
            timed = Timed(network, own, keys)
            assert timed.makespan == pytest.approx(played(timed).makespan, rel=1e-9)
            assert all(d in problem.allowed[r] for r, d in enumerate(own))
        changes += device != beside.device or keys != beside.keys
        beside.stand(Timed(network, device, keys))
    assert changes > 10
