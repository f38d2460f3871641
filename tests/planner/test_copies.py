"""Lists with copies are timed as they are carried out, and what changes them keeps them lists."""

import math
import random
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracles import carried_out, needs_native, timed_again, verified
from test_duplicate import wanted

from autopar.ir.costed import repeatable
from autopar.planner import search
from autopar.planner.formats import read
from autopar.planner.model.instance import Instance
from autopar.planner.search import Annealing, Listed, evaluate

pytestmark = needs_native

seeds = st.integers(0, 10**6)


def drawn(seed: int, changes: int = 6) -> Iterator[tuple[Instance, Listed]]:
    """Lists of random devices after each of some changes, nearly all of them of copies."""
    draw = random.Random(seed)
    instance = Instance(read(wanted(seed)))
    device = [draw.choice(own) for own in instance.allowed]
    start = evaluate(instance, device, [*range(instance.clusters)], eager=True)
    chain = Annealing(start, 0.0, seed, copies=10**6)
    for _ in range(changes):
        # So hot that hardly any is turned down; one step is one change.
        chain.cool(1, (1.0, 1.0), math.inf)
        yield instance, chain.now


@pytest.mark.slow
@given(seeds)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_times_are_those_of_the_simulation(seed):
    *_, (instance, kept) = drawn(seed)
    timed = timed_again(instance, kept)
    entry = carried_out(timed)
    assert entry.makespan == pytest.approx(timed.makespan, rel=1e-9)
    verified(wanted(seed), entry)
    copies = {copy for copy, _ in entry.play.instance.costed.again}
    assert len(copies.intersection(entry.play.instance.names)) == len(timed.of)


@given(seeds)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_copy_is_read_where_its_run_is_not(seed):
    for instance, kept in drawn(seed, changes=9):
        clusters = instance.clusters
        copies = [*zip(kept.of, kept.device[clusters + 1 :])]
        assert len({*copies}) == len(copies) <= search.MOST
        there = {*copies, *enumerate(kept.device[:clusters])}
        for r, d in copies:
            assert kept.device[r] != d and repeatable(instance.costed, instance.costed.clusters[r])
            assert any(
                d in instance.deliver[v] or any((reader, d) in there for reader in instance.readers[v])
                for v in instance.makes[r]
            )


def test_copies_come_and_go():
    counts = [len(kept.of) for seed in range(5) for _, kept in drawn(seed, changes=20)]
    assert max(counts) > 3 and any(b < a for a, b in pairwise(counts))


def test_where_all_places_are_taken_no_copy_is_made(monkeypatch):
    monkeypatch.setattr(search, "MOST", 2)
    assert max(len(kept.of) for seed in range(10) for _, kept in drawn(seed, changes=12)) == 2
