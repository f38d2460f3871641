"""Where nothing that is tried fits, something that does is searched for."""

import json
import math
import random
import time

import pytest
from benchmarks.judging import without_solver
from benchmarks.verify import infeasibilities
from taskfiles import randomly
from test_bounds import random_schedule

from autopar.errors import MemoryCapError
from autopar.planner import portfolio as search
from autopar.planner import schedule
from autopar.planner.candidates import Race
from autopar.planner.formats import described, read
from autopar.planner.lists.identical import single
from autopar.planner.model.instance import Instance
from autopar.planner.model.simulator import Play
from autopar.planner.model.timing import memory
from autopar.planner.search.climb import climb


def short(seed: int):
    """A random graph whose caps are the peaks of a random schedule of it: something fits."""
    draw = random.Random(seed)
    graph = randomly(draw, draw.choice((6, 12, 25, 50)))
    instance = Instance(read(graph))
    peaks = {m.device: m.peak for m in memory(Play(instance, random_schedule(instance, draw)))}
    for device in graph["devices"]:
        device["memory_bytes"] = peaks[device["name"]]
    return graph


@pytest.mark.parametrize("seed", [4, 79, 82, 93, 100])
def test_what_fits_is_found_where_no_policy_finds_it(seed, monkeypatch):
    graph = short(seed)
    with without_solver():
        found = schedule(graph)
        again = schedule(graph)
    assert not infeasibilities(graph, json.loads(json.dumps(described(found))))
    assert again.makespan == found.makespan
    monkeypatch.setattr(search, "climb", lambda *_: False)
    with without_solver(), pytest.raises(MemoryCapError, match="nothing that was tried fits"):
        schedule(graph)


def test_what_can_never_fit_is_refused_all_the_same():
    graph = short(8)
    for device in graph["devices"]:
        device["memory_bytes"] = 1
    with pytest.raises(MemoryCapError, match="nothing that was tried fits"):
        schedule(graph)


def test_nothing_is_entered_without_steps_or_time():
    instance = Instance(read(short(8)))
    race = Race(instance)
    for d in range(len(instance.devices)):
        for own in single(instance, d):
            race.enter(own)
    before = len(race.entries)
    assert not climb(race, 0)
    race.until = time.monotonic() - 1
    assert not climb(race, 10**6)
    assert len(race.entries) == before
    race.until = math.inf
    assert climb(race, 10**6)
    assert len(race.entries) == before + 1 and not race.entries[-1].over
