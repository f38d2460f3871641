"""Where nothing that is tried fits, something that does is searched for."""

import json
import random

import pytest
from benchmarks.judging import described
from benchmarks.verify import infeasibilities
from oracles import needs_native
from taskfiles import randomly
from test_bounds import random_schedule

from autopar.errors import MemoryCapError
from autopar.planner import schedule
from autopar.planner.formats import read
from autopar.planner.model.instance import Instance
from autopar.planner.model.simulator import Simulation
from autopar.planner.model.timing import memory


def short(seed: int):
    """A random graph whose caps are the peaks of a random schedule of it: something fits."""
    draw = random.Random(seed)
    graph = randomly(draw, draw.choice((6, 12, 25, 50)))
    instance = Instance(read(graph))
    peaks = {m.device: m.peak for m in memory(Simulation(instance, random_schedule(instance, draw)))}
    for device in graph["devices"]:
        device["memory_bytes"] = peaks[device["name"]]
    return graph


@needs_native
@pytest.mark.slow
def test_most_of_what_fits_is_found():
    refused = 0
    for seed in range(20):
        graph = short(seed)
        try:
            plan = schedule(graph)
        except MemoryCapError:
            refused += 1
            continue
        assert not infeasibilities(graph, json.loads(json.dumps(described(plan))))
    assert refused <= 2


def test_graphs_that_can_never_fit_are_refused():
    graph = short(8)
    for device in graph["devices"]:
        device["memory_bytes"] = 1
    with pytest.raises(MemoryCapError, match="nothing that was tried fits"):
        schedule(graph)
