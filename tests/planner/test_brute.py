"""Plans of tiny graphs beside what brute force finds, which knows nothing of the planner."""

import math

import pytest
from benchmarks.replay import replay
from benchmarks.verify import infeasibilities
from brute import shortest
from taskfiles import link
from tiny import tiny

from autopar.errors import MemoryCapError, PlanError
from autopar.planner import schedule
from autopar.planner.formats import described

pytestmark = [pytest.mark.slow, pytest.mark.thin(3)]

ABOVE = 1.01
"""Times the shortest that a plan may take."""
PROMISED = 1.02
"""Times its makespan that a plan may take on wires that nobody holds back."""


def held(graph):
    """A plan against the shortest there is and against all that it says of itself."""
    best = shortest(graph)
    try:
        plan = schedule(graph)
    except MemoryCapError:
        assert best == math.inf
        return
    except PlanError as error:
        assert "way" in str(error) or "reach" in str(error) or "link" in str(error)
        assert best == math.inf
        return
    written = described(plan)
    assert infeasibilities(graph, written) == []
    assert plan.makespan <= best * ABOVE
    assert replay(graph, written)["makespan_s"] <= plan.makespan * PROMISED * (1 + 1e-9)
    for bound in (plan.lower_bound, plan.bound_once):
        assert bound <= best * (1 + 1e-9)
    assert plan.lower_bound <= plan.makespan
    assert plan.costed.again or plan.bound_once <= plan.makespan
    period = schedule(graph, objective="throughput")
    assert infeasibilities(graph, described(period)) == []
    assert period.lower_bound <= period.period <= period.makespan * (1 + 1e-9)


@pytest.mark.parametrize("first", range(0, 72, 12))
def test_no_plan_is_above_the_shortest_and_no_bound_either(first):
    for seed in range(first, first + 12):
        held(tiny(seed, exact=seed % 3 > 0))


# Plans at up to 2.2 times the shortest, bounds above it, and graphs refused though they fit.
@pytest.mark.parametrize("seed", [3376, 390, 648, 260, 1167, 386, 2062, 2549, 881, 2878, 4129])
def test_what_was_wrong_once_no_longer_is(seed):
    held(tiny(seed))


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
