"""The compiled search takes the same steps as that in Python, to the bit, and is done without where it must be."""

import math
import random
import shutil
import time
from dataclasses import replace

import pytest
from benchmarks.instances import planted, small
from benchmarks.varied import varied
from graphs import machine, random_dag
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.errors import PlanError
from autopar.planner.formats import read
from autopar.planner.model.problem import Problem
from autopar.planner.native.build import _found, built, told
from autopar.planner.search import anneal as search
from autopar.planner.search import chain
from autopar.planner.search import compiled as native
from autopar.planner.search.evaluate import Timed
from autopar.planner.search.network import Network

HEATS = ((0.1, 0.03), (0.03, 0.003))
needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler is here")


@pytest.fixture
def without(monkeypatch, tmp_path):
    """A function that makes `built` look again, with a cache of its own."""
    monkeypatch.setenv("AUTOPAR_CACHE", str(tmp_path))
    _found.cache_clear()
    yield tmp_path
    _found.cache_clear()


def cooled(begin, start: Timed, draw: random.Random, steps: float, until: float = math.inf, copies: int = 0):
    """A chain that has cooled twice, the second time from where the first ended."""
    made = begin(start, 0.0, draw, chain.RUINS, copies)
    for heats in HEATS:
        made.cool(steps, heats, until)
    return made


def shown(kept, runs: int):
    """A list, but for what stands for no run."""
    device = [d for r, d in enumerate(kept.device) if r != runs]
    return device, [*kept.keys], kept.eager, kept.makespan, [*kept.of]


def the_same(problem: Problem, seed: int, steps: float, copies: int = 0) -> bool:
    """Whether some way leads to a schedule to begin from, and copies are made if there may be any; fails where both
    searches do not find the same."""
    network = Network(problem)
    draw = random.Random(seed)
    device = [draw.choice(own) for own in problem.allowed]
    for group in problem.members:
        for r in group:
            device[r] = device[group[0]]
    start = Timed(network, device, [*range(problem.runs)], eager=seed % 2 == 0)
    if start.makespan == math.inf:
        return False
    slow, fast = random.Random(seed), random.Random(seed)
    own = cooled(lambda *more: chain.Chain(network, *more), start, slow, steps, copies=copies)
    compiled = cooled(native.chains(network), start, fast, steps, copies=copies)
    runs = problem.runs
    assert [shown(t, runs) for t in own.best] == [shown(t, runs) for t in compiled.best]
    assert own.spent == compiled.spent
    assert slow.getstate() == fast.getstate()
    assert own.beside.now.makespan == compiled.now.makespan
    assert own.beside.device[:runs] == compiled.now.device[:runs]
    return not copies or any(kept.of for kept in own.best)


@needs_compiler
def test_it_is_compiled_here(without):
    assert built()
    (made,) = without.iterdir()
    assert told() == f"plans are searched for in C, by {made}"


@needs_compiler
@given(st.integers(0, 10**6), st.integers(2, 40), st.sampled_from([0.1, 1.0, 5.0]))
@settings(max_examples=30, deadline=None)
def test_the_same_steps_as_in_python(seed, tasks, ccr):
    """Of devices with several lanes, wires of their own, one or none, and copy queues or none."""
    on = machine(1 + seed % 3, cpu_lanes=1 + seed % 2, wire=("own", "one", None)[seed % 3], peer=seed % 4 > 0)
    on = replace(on, queued=seed % 5 > 0)
    assert the_same(Problem(random_dag(seed, tasks, ccr=ccr, on=on)), seed, 200 * tasks)


@needs_compiler
def test_the_same_steps_on_graph_files_of_every_kind():
    """With groups, pins, deliveries, values there are from the start, ways through a third device, missing links."""
    seen = dict.fromkeys(("groups", "deliveries", "given", "ways", "lanes"), 0)
    for seed in range(120):
        try:
            problem = Problem(read(varied(seed)))
        except PlanError:
            continue
        if problem.runs < 2 or len(problem.devices) < 2 or problem.modes:
            continue
        if the_same(problem, seed, 100 * problem.runs):
            seen["groups"] += bool(problem.members)
            seen["deliveries"] += any(problem.deliver)
            seen["given"] += -1 in problem.maker
            seen["ways"] += any(len(hops or ()) > 1 for row in problem.route for hops in row)
            seen["lanes"] += max(map(len, problem.lane_names)) > 1
    assert min(seen.values()) > 5, seen


@needs_compiler
def test_the_same_steps_with_copies():
    """On graphs of large values, and on graph files of every kind, without wires too."""
    copied = 0
    for seed in range(60):
        graph = small(seed, tasks=12 + seed % 9, ratio=3.0) if seed % 2 else varied(seed)
        for link in graph["links"] if seed % 5 == 0 else ():
            link["wire"] = None
        try:
            problem = Problem(read(graph))
        except PlanError:
            continue
        if problem.runs > 1 and len(problem.devices) > 1 and not problem.modes:
            copied += the_same(problem, seed, 60 * problem.runs, copies=chain.COPIES)
    assert copied > 15


@needs_compiler
def test_it_ends_when_time_is_up():
    problem = Problem(read(planted(0, 60, 4, 1.0)[0]))
    network = Network(problem)
    start = Timed(network, [own[0] for own in problem.allowed], [*range(problem.runs)])
    began = time.monotonic()
    made = cooled(native.chains(network), start, random.Random(0), 1e9, began + 0.2)
    assert 0 <= made.spent < 1e9
    assert made.best[0].makespan < start.makespan


@needs_compiler
def test_without_memory_a_chain_stays_as_it_is(monkeypatch, caplog):
    class Full:
        def autopar_cool(self, *_):
            return -1

    problem = Problem(read(planted(0, 20, 2, 1.0)[0]))
    network = Network(problem)
    start = Timed(network, [0] * problem.runs, [*range(problem.runs)])
    begin = native.chains(network)
    monkeypatch.setattr(native, "built", Full)
    made = cooled(begin, start, random.Random(0), 100)
    assert [kept.makespan for kept in made.best] == [start.makespan]
    assert "no memory to search for a plan of 20 runs on 2 devices" in caplog.text


@pytest.mark.parametrize(
    ("compiler", "words"),
    [
        ("no-such-compiler", "no C compiler 'no-such-compiler' is found; install one"),
        ("false", "false"),
        ('cc "', "no C compiler 'cc \"' is found"),
        pytest.param("cc --no-such-flag", "no-such-flag", marks=needs_compiler),
    ],
)
def test_without_a_compiler_the_search_is_in_python(without, monkeypatch, caplog, compiler, words):
    monkeypatch.setenv("CC", compiler)
    assert built() is None
    assert told().startswith("plans are searched for in Python, in fewer steps: ")
    assert words in told() and "CC" in told()
    assert told() in caplog.text and "\n" not in told()
    problem = Problem(read(planted(0, 20, 2, 1.0)[0]))
    assert native.chains(Network(problem)) is None
    assert search.anneal(problem, 0.0, steps=4 * search.FIRST * problem.runs)
    assert not [*without.iterdir()], "nothing half made is left"


@needs_compiler
def test_what_does_not_load_is_done_without(without, monkeypatch, caplog):
    assert built()
    (made,) = without.iterdir()
    other = without / "other"
    other.mkdir()
    (other / made.name).write_bytes(b"not a library")
    monkeypatch.setenv("AUTOPAR_CACHE", str(other))
    _found.cache_clear()
    assert built() is None
    assert "AUTOPAR_CACHE another folder" in told()
    assert told() in caplog.text


@needs_compiler
def test_a_folder_that_cannot_be_written(without, monkeypatch, caplog):
    (without / "file").write_text("")
    monkeypatch.setenv("AUTOPAR_CACHE", str(without / "file" / "below"))
    assert built() is None
    assert "AUTOPAR_CACHE another folder" in told()
    assert told() in caplog.text


@needs_compiler
def test_blanks_name_no_compiler(without, monkeypatch):
    monkeypatch.setenv("CC", " ")
    assert built()
