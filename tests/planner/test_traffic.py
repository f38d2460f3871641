"""Work and transfers traded at best: never above the linear program whose dual it is, and near it."""

import random

import pytest
from benchmarks.feasible import varied
from benchmarks.instances import small

from autopar.planner.bounds import lower_bound
from autopar.planner.bounds.critical_path import paths
from autopar.planner.bounds.load import load
from autopar.planner.bounds.traffic import traffic
from autopar.planner.formats import read
from autopar.planner.model.instance import Instance


def pairs(count: int, trip: float, wire: str | None):
    """Pairs of tasks, the first of which is quick on p and the second, which reads it, on q."""
    tasks, values = [], []
    for k in range(count):
        tasks.append({"id": f"a{k}", "seconds": {"p": 1.0, "q": 3.0}})
        tasks.append({"id": f"b{k}", "seconds": {"p": 3.0, "q": 1.0}})
        values.append({"id": f"v{k}", "producer": f"a{k}", "consumers": [f"b{k}"], "bytes": 1})
    links = [
        {"src": a, "dst": b, "latency_s": 0.0, "bytes_per_s": 1 / trip, "wire": wire} for a, b in ("pq", "qp")
    ]
    return {"tasks": tasks, "values": values, "devices": [{"name": name} for name in "pq"], "links": links}


def bound(graph):
    return lower_bound(Instance(read(graph)))


def test_what_is_computed_where_it_is_quick_crosses_a_wire():
    # With three pairs apart both lanes take 37 s; with a fourth they take 36, and the wire 40.
    assert 36.0 <= bound(pairs(20, 10.0, "bus")) <= 37.0
    assert bound(pairs(20, 0.1, "bus")) <= 21.2


def test_what_has_a_wire_for_each_number_of_transfers_bounds_nothing():
    assert bound(pairs(20, 10.0, None)) <= 22.0


def test_a_value_crosses_once_for_all_its_readers():
    graph = pairs(20, 10.0, "bus")
    one = {"id": "v", "producer": "a0", "consumers": [f"b{k}" for k in range(20)], "bytes": 1}
    assert bound({**graph, "values": [one]}) <= 1.0 + 10.0 + 20.0


def test_payments_cancel_but_for_rounding():
    """A graph that takes no time where all is on one device; 7e-21 s were once claimed."""
    assert bound(varied(525)) == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("ratio", [1.0, 5.0])
def test_the_bound_is_near_the_linear_program(ratio):
    pytest.importorskip("ortools")
    shares = []
    for seed in range(12):
        tasks = random.Random(seed).randint(5, 40)
        instance = Instance(read(small(seed, tasks=tasks, ratio=ratio)))
        path = paths(instance)
        shared = load(instance, path)
        found, best = traffic(instance, path, shared, 0.0), program(instance, path)
        assert found <= best * (1 + 1e-6)
        if found:
            shares.append(found / best)
    assert len(shares) >= 5 and sum(shares) / len(shares) >= 0.85


def program(instance, path):
    """The optimum of the linear program: parts of runs on devices, parts of values over links."""
    from ortools.linear_solver import pywraplp

    solver = pywraplp.Solver.CreateSolver("GLOP")
    longest = solver.NumVar(0, solver.infinity(), "")
    at = [{d: solver.NumVar(0, 1, "") for d in able} for able in instance.able]
    for own in at:
        solver.Add(sum(own.values()) >= 1)
    idle = (path.head.min(axis=0) + path.tail.min(axis=0)).clip(max=path.length)
    for d, names in enumerate(instance.lane_names):
        work = sum(own[d] * instance.seconds[r][d] for r, own in enumerate(at) if d in own)
        solver.Add(work + len(names) * float(idle[d]) <= len(names) * longest)
    carried: dict[int, list] = {}
    for v, readers in enumerate(instance.readers):
        maker = at[instance.maker[v]]
        for d in range(len(instance.devices)):
            comes = maker.get(d, 0)
            for row in instance.route:
                for hop in row[d] or ():
                    part = solver.NumVar(0, 1, "")
                    comes += part
                    carried.setdefault(hop.lane, []).append(part * hop.seconds(instance.bytes[v]))
            for r in readers:
                solver.Add(comes >= at[r].get(d, 0))
    for parts in carried.values():
        solver.Add(sum(parts) <= longest)
    solver.Minimize(longest)
    assert solver.Solve() == pywraplp.Solver.OPTIMAL
    return solver.Objective().Value()
