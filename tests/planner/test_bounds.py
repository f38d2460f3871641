"""Lower bounds: never above a schedule that can be carried out, and tight where that is known."""

import random

import graphs
import pytest
from benchmarks.instances import planted, small
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.errors import TooLongError
from autopar.planner import place
from autopar.planner.bounds import lower_bound
from autopar.planner.formats import read
from autopar.planner.model.instance import Instance
from autopar.planner.model.simulator import Schedule, Simulation


def random_schedule(instance, draw):
    """Clusters in a random topological order, each on a random lane of a random device it may go to."""
    lanes = {lane: [] for names in instance.lane_names for lane in names}
    missing = [len(before) for before in instance.before]
    ready = [r for r in range(instance.clusters) if not missing[r]]
    chosen = {}
    few = draw.sample(range(len(instance.devices)), draw.randint(1, len(instance.devices)))
    while ready:
        r = ready.pop(draw.randrange(len(ready)))
        d = draw.choice([d for d in instance.allowed[r] if d in few] or instance.allowed[r])
        if instance.group[r] >= 0:
            d = chosen.setdefault(instance.group[r], d)
        lanes[draw.choice(instance.lane_names[d])].append(instance.names[r])
        for later in instance.after[r]:
            missing[later] -= 1
            if not missing[later]:
                ready.append(later)
    return Schedule("random", {lane: tuple(names) for lane, names in lanes.items()})


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10**6), share=st.floats(0.1, 1.5))
def test_no_more_is_proven_than_is_enough(seed, share):
    costed = read(small(seed, tasks=12))
    whole = lower_bound(Instance(costed))
    found = lower_bound(Instance(costed), share * whole)
    assert min(share, 1.0) * whole * (1 - 1e-9) <= found <= whole * (1 + 1e-9)
    plan = place(costed)
    assert place(costed, below=plan.makespan * 1.1).makespan == plan.makespan
    with pytest.raises(TooLongError, match="no plan takes less"):
        place(costed, below=plan.lower_bound * (1 - 1e-9))


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 40), st.sampled_from([0.1, 1.0, 10.0]), st.integers(1, 4))
def test_no_schedule_is_below_the_bound(seed, tasks, ratio, devices):
    instance = Instance(graphs.random_dag(seed, tasks, devices, ccr=ratio))
    bound = lower_bound(instance)
    for number in range(5):
        simulation = Simulation(instance, random_schedule(instance, random.Random(number)))
        assert bound <= simulation.makespan * (1 + 1e-9)


@pytest.mark.parametrize("ratio", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("speeds", [None, (1.0, 2.0, 4.0)])
def test_a_planted_optimum_is_the_bound(ratio, speeds):
    for seed in range(3):
        graph, length = planted(seed, 60, 3, ratio, speeds=speeds)
        assert lower_bound(Instance(read(graph))) == pytest.approx(length, rel=1e-3)
        assert lower_bound(Instance(read(graph))) <= length * (1 + 1e-9)


def test_necessary_transfers_bound_the_schedule():
    inputs = [
        {"id": f"x{k}", "producer": None, "home": "cpu", "consumers": [f"t{k}"], "bytes": 100}
        for k in range(8)
    ]
    graph = {
        "tasks": [{"id": f"t{k}", "seconds": {"gpu": 0.1}} for k in range(8)],
        "values": inputs,
        "devices": [{"name": "cpu", "lanes": 1}, {"name": "gpu", "lanes": 4}],
        "links": [{"src": "cpu", "dst": "gpu", "latency_s": 0.0, "bytes_per_s": 100.0, "wire": "bus"}],
    }
    assert 8.0 * 0.999 <= lower_bound(Instance(read(graph))) <= 8.1


def relayed(slow: float, wire: str | None) -> float:
    """The bound of a graph whose four inputs come to `q` over a link of `slow` seconds each, or in 2 s through `r`."""
    inputs = [
        {"id": f"x{k}", "producer": None, "home": "p", "consumers": [f"t{k}"], "bytes": 1} for k in range(4)
    ]
    ends = {"pq": slow, "pr": 1.0, "rq": 1.0}
    own = {} if wire is None else {"wire": wire}
    graph = {
        "tasks": [{"id": f"t{k}", "seconds": {"q": 0.1}} for k in range(4)],
        "values": inputs,
        "devices": [{"name": name, "lanes": 4} for name in "pqr"],
        "links": [
            {"src": a, "dst": b, "latency_s": 0.0, "bytes_per_s": 1 / seconds, **own}
            for (a, b), seconds in ends.items()
        ],
    }
    return lower_bound(Instance(read(graph)))


def test_avoidable_transfers_do_not_bound_the_schedule():
    # Through r the last of four inputs is there after 5 s; two by each way take 3 s, and all over a bus 8 s or more.
    assert relayed(100.0, None) <= 5.1
    assert relayed(1.5, None) <= 3.1
    assert 3.9 <= relayed(100.0, "bus") <= 8.1


def test_tasks_that_do_not_fit_the_fastest_device_go_elsewhere():
    tasks = [{"id": f"t{k}", "seconds": {"a": 1.0, "b": 5.0}, "state_bytes": 10} for k in range(10)]
    graph = {"tasks": tasks, "values": [], "links": []}
    graph["devices"] = [{"name": "a", "lanes": 1, "memory_bytes": 50}, {"name": "b", "lanes": 1}]
    # Five tasks fit on a; the other five take 25 s on b.
    assert 20.0 < lower_bound(Instance(read(graph))) <= 25.0


def test_state_that_several_read_takes_room_once():
    on = graphs.machine(1, memory={"emulated:0": 150 * graphs.KB})
    tasks = {name: (["x"], (1000 * graphs.MS, graphs.MS)) for name in "ab"}
    costed = graphs.build(tasks, on, nbytes=1, state={"w": (100 * graphs.KB, "ab")})
    plan = place(costed)
    assert lower_bound(Instance(costed)) <= plan.makespan < 10 * graphs.MS
