"""Plans of tiny graphs beside what brute force finds, which knows nothing of the planner."""

import math

import pytest
from benchmarks.judging import described
from benchmarks.replay import replay
from benchmarks.verify import infeasibilities
from brute import shortest
from taskfiles import link
from tiny import tiny

from autopar.errors import MemoryCapError, PlanError
from autopar.planner import schedule

pytestmark = pytest.mark.slow

PROMISED = 1.02
"""Times its makespan that a plan may take on wires that nobody holds back."""


def held(graph):
    """Hold a plan against the shortest there is and against all that it says of itself; return the ratio of the two, 1
    where nothing can be planned, and inf for a graph that is refused though a plan fits."""
    best = shortest(graph)
    try:
        plan = schedule(graph)
    except MemoryCapError:
        return 1.0 if best == math.inf else math.inf
    except PlanError as error:
        assert "way" in str(error) or "reach" in str(error) or "link" in str(error)
        assert best == math.inf
        return 1.0
    written = described(plan)
    assert infeasibilities(graph, written) == []
    assert replay(graph, written)["makespan_s"] <= plan.makespan * PROMISED * (1 + 1e-9)
    assert plan.lower_bound <= best * (1 + 1e-9)
    assert best * (1 - 1e-9) <= plan.makespan
    return plan.makespan / best if best else 1.0


@pytest.mark.parametrize("first", range(0, 72, 24))
def test_most_plans_are_the_shortest_and_no_bound_is_above_it(first):
    ratios = [held(tiny(seed, exact=seed % 3 > 0)) for seed in range(first, first + 24)]
    assert sum(ratio < 1.01 for ratio in ratios) >= 20


def test_of_copies_that_ask_at_one_moment_the_more_urgent_goes_first():
    def task(name, d0, d1):
        return {"id": name, "seconds": {"d0": d0, "d1": d1}}

    graph = {
        "tasks": [task("a", 0.375, 3.0), task("b", 0.5, 1.0), task("c", 2.0, 1.0), task("d", 1.0, 4.0)],
        "values": [
            {"id": "va", "producer": "a", "consumers": ["d"], "bytes": 512},
            {"id": "vc", "producer": "c", "consumers": ["d"], "bytes": 16},
            {"id": "first", "producer": None, "home": "d1", "consumers": ["a"], "bytes": 64},
            {"id": "urgent", "producer": None, "home": "d0", "consumers": ["c"], "bytes": 64},
        ],
        "devices": [{"name": "d0"}, {"name": "d1"}],
        "links": [
            link("d0", "d1", latency_s=0.5, bytes_per_s=1024.0, wire="w"),
            link("d1", "d0", latency_s=0.0, bytes_per_s=128.0, wire="w"),
        ],
    }
    held(graph)
