"""Lists with copies are timed as they are carried out, and what changes them keeps them lists."""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_duplicate import wanted

from autopar.ir.costed import repeatable
from autopar.planner.duplication.prune import scheduled
from autopar.planner.duplication.search import listed, placed
from autopar.planner.formats import read
from autopar.planner.model.problem import Problem
from autopar.planner.search import duplicates as copies
from autopar.planner.search.evaluate import Timed
from autopar.planner.search.moves import Neighbourhood
from autopar.planner.search.network import Network

seeds = st.integers(0, 10**6)


def drawn(seed: int, changes: int = 6) -> Timed:
    """A list of random devices in which copies have been changed so many times."""
    draw = random.Random(seed)
    network = Network(Problem(read(wanted(seed))))
    device = [draw.choice(own) for own in network.problem.allowed]
    timed = Timed(network, device, [*range(network.runs)], eager=True)
    for _ in range(changes):
        beside = Neighbourhood(network, draw, timed)
        device, keys, of = [*beside.device], [*beside.keys], [*timed.of]
        copies.recopied(beside, device, keys, of)
        copies.tidy(network, device, keys, of)
        timed = Timed(network, device, keys, eager=True, of=of)
    return timed


@given(seeds)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_times_are_those_of_the_simulation(seed):
    timed = drawn(seed)
    entry = scheduled(timed.network.problem, placed(timed))
    assert entry is not None and entry.makespan == pytest.approx(timed.makespan, rel=1e-9)
    again = listed(timed.network, entry)
    assert (
        sorted(again.of) == sorted(timed.of)
        and again.device[: timed.network.runs] == timed.device[: timed.network.runs]
    )
    assert again.makespan == pytest.approx(timed.makespan, rel=1e-9)


@given(seeds)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_copy_is_read_where_its_run_is_not(seed):
    timed = drawn(seed, changes=9)
    served, problem, runs = timed.served, timed.network.problem, timed.network.runs
    costed = problem.costed
    assert len(timed.of) == len(served.on) <= copies.MOST
    for (r, d), i in served.on.items():
        assert timed.device[r] != d == timed.device[i] and repeatable(costed, costed.runs[r])
        wanted_there = any(d in problem.deliver[v] for v in problem.makes[r])
        assert wanted_there or any(readers for _, readers, _ in served.makes[i])
    # Each reads each value from one run or copy, on its own device where there is one.
    for i in served.numbers:
        for v in problem.reads[served.run[i]]:
            sources = [
                j
                for j in (*served.numbers, runs)
                if any(v == w and i in own for w, own, _ in served.makes[j])
            ]
            assert len(sources) == 1
            on = served.on.get((problem.maker[v], timed.device[i]), problem.maker[v])
            assert sources[0] == on or problem.maker[v] < 0


@given(seeds)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_follows_a_copy_is_counted(seed):
    """Whatever ends or comes last is the end of some path, and no path is longer."""
    timed = drawn(seed)
    timed.tails()
    paths = [timed.end[i] + timed.tail[i] for i in timed.served.numbers]
    paths += [came + tail for (*_, came), tail in zip(timed.sent, timed.sent_tail)]
    assert max(paths) == pytest.approx(timed.makespan, rel=1e-9)


def test_where_all_places_are_taken_no_copy_is_made(monkeypatch):
    monkeypatch.setattr(copies, "MOST", 2)
    counts = {len(drawn(seed, changes=12).of) for seed in range(10)}
    assert max(counts) == 2


def test_a_copy_that_is_not_read_goes_and_what_only_it_read():
    timed = next(made for made in map(drawn, range(40)) if len(made.of) > 2)
    network, runs = timed.network, timed.network.runs
    device, keys, of = [*timed.device], [*timed.keys], [*timed.of]
    # All runs where the first is: there is nothing left to copy.
    device[:runs] = [0] * runs
    copies.tidy(network, device, keys, of)
    delivered = {d for own in network.problem.deliver for d in own}
    assert all(d in delivered for d in device[runs + 1 :]) and 0 not in device[runs + 1 :]
    assert len(device) == len(keys) == (runs + 1 + len(of) if of else runs)
