"""Every list that the native search returns is one that can be carried out, as long as the search says; and plans come
about without it, where it was not built."""

import ctypes
import logging
import math
import os
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.instances import planted, small
from benchmarks.judging import described
from benchmarks.varied import varied
from benchmarks.verify import infeasibilities
from graphs import machine, random_dag
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import carried_out, needs_native, timed_again, uncapped, verified

from autopar.errors import PlanError
from autopar.planner import native, place
from autopar.planner.formats import read
from autopar.planner.model.instance import Instance
from autopar.planner.search import KEEP, Annealing, Listed, evaluate
from autopar.planner.search import anneal as search

HEATS = ((0.1, 0.03), (0.03, 0.003))


def begun(instance: Instance, seed: int) -> Annealing | None:
    """A chain from random devices, None where no way leads to a schedule so."""
    draw = random.Random(seed)
    device = [draw.choice(own) for own in instance.allowed]
    for group in instance.members:
        for r in group:
            device[r] = device[group[0]]
    start = evaluate(instance, device, [*range(instance.clusters)], eager=seed % 2 == 0)
    if start.makespan == math.inf:
        return None
    return Annealing(start, 0.0, seed)


def cooled(instance: Instance, seed: int, steps: float) -> list[Listed]:
    """What a chain finds that cools twice, the second time from where the first ended, each timed again."""
    chain = begun(instance, seed)
    for heats in HEATS if chain else ():
        chain.cool(steps, heats, math.inf)
    found = [timed_again(chain.instance, kept) for kept in chain.best] if chain else []
    lengths = [timed.makespan for timed in found]
    assert lengths == sorted(lengths) and len(lengths) <= KEEP
    return found


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler is here")
def test_the_native_search_was_built_here():
    assert native.LIBRARY, native.STATUS
    assert native.STATUS.startswith("native search: ")


@needs_native
@given(st.integers(0, 10**6), st.integers(2, 40), st.sampled_from([0.1, 1.0, 5.0]))
@settings(max_examples=30, deadline=None)
def test_lists_are_as_long_as_the_simulator_says(seed, tasks, ccr):
    """Of devices with several lanes, wires of their own, one or none, and copy queues or none."""
    on = machine(1 + seed % 3, cpu_lanes=1 + seed % 2, wire=("own", "one", None)[seed % 3], peer=seed % 4 > 0)
    instance = Instance(random_dag(seed, tasks, ccr=ccr, on=replace(on, queued=seed % 5 > 0)))
    for timed in cooled(instance, seed, 200 * tasks):
        carried_out(timed)


def plannable(graph):
    """The problem of a graph, None where lists are of no use."""
    try:
        instance = Instance(read(graph))
    except PlanError:
        return None
    return instance if instance.clusters > 1 and len(instance.devices) > 1 else None


@pytest.mark.slow
@needs_native
def test_lists_of_graph_files_of_every_kind_can_be_carried_out():
    """With groups, pins, deliveries, values there are from the start, ways through a third device, missing links."""
    seen = dict.fromkeys(("groups", "deliveries", "given", "ways", "lanes"), 0)
    for seed in range(80):
        graph = uncapped(varied(seed))
        instance = plannable(graph)
        found = cooled(instance, seed, 100 * instance.clusters) if instance else []
        for timed in found[:2]:
            verified(graph, carried_out(timed))
        if found:
            seen["groups"] += bool(instance.members)
            seen["deliveries"] += any(instance.deliver)
            seen["given"] += -1 in instance.maker
            seen["ways"] += any(len(hops or ()) > 1 for row in instance.route for hops in row)
            seen["lanes"] += max(map(len, instance.lane_names)) > 1
    assert min(seen.values()) > 5, seen


def shown(timed: Listed):
    """What makes a list."""
    return [*timed.device], [*timed.keys], timed.eager, timed.makespan


@needs_native
def test_a_chain_ends_at_its_bound():
    instance = Instance(read(planted(0, 20, 2, 1.0)[0]))
    (start,) = begun(instance, 0).best
    chain = Annealing(start, start.makespan, 0)
    chain.cool(1e9, (0.1, 0.003), math.inf)
    assert [shown(best) for best in chain.best] == [shown(start)]


@needs_native
def test_without_memory_a_chain_stays_as_it_is(monkeypatch, caplog):
    class Full:
        def autopar_cool(self, *_):
            return -1

    chain = begun(Instance(read(planted(0, 20, 2, 1.0)[0])), 0)
    start = chain.makespan
    monkeypatch.setattr(native, "LIBRARY", Full())
    chain.cool(100, (0.1, 0.003), math.inf)
    assert [kept.makespan for kept in chain.best] == [start]
    assert "no memory to search for a plan of 20 clusters on 2 devices" in caplog.text


@pytest.fixture
def without(monkeypatch):
    """No native search, and nothing said of it so far."""
    monkeypatch.setattr(native, "LIBRARY", None)
    monkeypatch.setattr(native, "STATUS", native._status(None, "is not there", native.HERE))
    native._warn.cache_clear()
    yield
    native._warn.cache_clear()


@pytest.mark.usefixtures("without")
@pytest.mark.parametrize("graph", [small(3, tasks=12), small(5, tasks=12), planted(0, 510, 4, 1.0)[0]])
def test_without_it_plans_can_be_carried_out(graph):
    plan = place(read(graph))
    assert infeasibilities(graph, described(plan)) == []
    assert not any(candidate.policy == search.POLICY for candidate in plan.candidates)
    alone = [seconds for _, seconds in plan.singles if seconds is not None]
    assert plan.makespan <= min(alone, default=math.inf) * (1 + 1e-9)


@pytest.mark.usefixtures("without")
def test_without_it_one_line_says_what_to_do(caplog):
    caplog.set_level(logging.WARNING, "autopar")
    for seed in (3, 9):
        place(read(small(seed, tasks=16)))
    assert [record.getMessage() for record in caplog.records].count(native.STATUS) == 1


@needs_native
def test_the_reason_names_a_library_that_does_not_load(tmp_path):
    (made,) = (Path(native.__file__).parent).glob("_search.*")
    assert native._loaded(tmp_path) == (None, "was not built when autopar was installed")
    here = tmp_path / made.name
    here.write_bytes(b"not a library")
    library, about = native._loaded(tmp_path)
    assert library is None and about.startswith("does not load (")
    shutil.copy(made, here)
    library, about = native._loaded(tmp_path)
    assert isinstance(library, ctypes.CDLL) and about == str(here)


@needs_native
def test_in_a_clone_it_is_as_new_as_its_sources(tmp_path):
    folder = tmp_path / "autopar" / "planner" / "native"
    folder.mkdir(parents=True)
    (made,) = (Path(native.__file__).parent).glob("_search.*")
    here = Path(shutil.copy(made, folder))
    source = folder / "anneal.c"
    source.write_text("/* changed since */")
    os.utime(source, (here.stat().st_mtime + 1,) * 2)
    assert native._loaded(folder)[0] is not None
    (tmp_path / "pyproject.toml").write_text("")
    assert native._loaded(folder) == (None, f"was built before its sources were changed ({here})")


def test_the_reason_names_what_to_type(tmp_path):
    folder = tmp_path / "autopar" / "planner" / "native"
    said = native._status(None, "was not built", folder)
    assert "the native search was not built;" in said and said.endswith("--no-cache-dir autopar")
    (tmp_path / "pyproject.toml").write_text("")
    assert native._status(None, "was not built", folder).endswith(f"type: pip install -e {tmp_path}")
    assert "\n" not in said and "apt install gcc" in said
