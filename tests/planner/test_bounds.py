"""Lower bounds: never above a schedule that can be carried out, and tight where that is known."""

import importlib
import random

import graphs
import pytest
from benchmarks.instances import planted, small
from hypothesis import given, settings
from hypothesis import strategies as st
from taskfiles import randomly

from autopar.errors import PlanError, TooLongError
from autopar.planner import place
from autopar.planner.bounds import lower_bound
from autopar.planner.bounds.ancestors import joined, local
from autopar.planner.bounds.critical_path import paths
from autopar.planner.formats import read
from autopar.planner.formats.read import stg
from autopar.planner.model.instance import Instance
from autopar.planner.model.simulator import Play, Schedule


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


def test_a_search_that_ends_early_loses_a_thousandth(monkeypatch):
    load = importlib.import_module("autopar.planner.bounds.load")
    taken, most = [], 0

    class Counted(load._Mean):
        def add(self, *given):
            taken.append(given)
            return super().add(*given)

    for seed in range(4):
        instance = Instance(read(small(seed, tasks=40)))
        path = paths(instance)
        with monkeypatch.context() as patch:
            patch.setattr(load, "NEAR", -1.0)
            whole, _ = load.load(instance, path)
        with monkeypatch.context() as patch:
            patch.setattr(load, "_Mean", Counted)
            early, _ = load.load(instance, path)
        most += load.ROUNDS
        assert early >= whole * (1 - 1.5 * load.NEAR)
    assert len(taken) < 0.8 * most


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 40), st.sampled_from([0.1, 1.0, 10.0]), st.integers(1, 4))
def test_no_schedule_is_below_the_bound(seed, tasks, ratio, devices):
    instance = Instance(graphs.random_dag(seed, tasks, devices, ccr=ratio))
    bound = lower_bound(instance)
    for number in range(5):
        play = Play(instance, random_schedule(instance, random.Random(number)))
        assert bound <= play.makespan * (1 + 1e-9)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 25), st.sampled_from([0.3, 3.0]), st.booleans())
def test_no_schedule_of_a_graph_with_copies_is_below_the_bound(seed, tasks, ratio, even):
    draw = random.Random(seed)
    graph = small(seed, tasks=tasks, ratio=ratio)
    if even:
        for task in graph["tasks"]:
            task["seconds"] = {device["name"]: 1e-3 for device in graph["devices"]}
    bound = lower_bound(Instance(read(graph)))
    for _ in range(5):
        instance = Instance(read(copied(graph, draw)))
        play = Play(instance, random_schedule(instance, draw))
        assert bound <= play.makespan * (1 + 1e-9)


def copied(graph, draw):
    """The graph with some tasks twice, on devices of their own; each reader reads of either, as it happens."""
    tasks, values = [], []
    twice = {task["id"] for task in graph["tasks"] if draw.random() < 0.4 and len(task["seconds"]) > 1}
    for task in graph["tasks"]:
        if task["id"] in twice:
            one, other = draw.sample(sorted(task["seconds"]), 2)
            tasks += [task | {"pin": one}, task | {"id": task["id"] + "'", "pin": other}]
        else:
            tasks.append(task)
    names = {task["id"] for task in tasks}
    for value in graph["values"]:
        readers = [c for name in value["consumers"] for c in (name, name + "'") if c in names]
        if value["producer"] in twice:
            there = [draw.random() < 0.5 for _ in readers]
            own = [r for r, second in zip(readers, there) if not second]
            rest = [r for r, second in zip(readers, there) if second]
            values.append(value | {"consumers": own})
            more = {"id": value["id"] + "'", "producer": value["producer"] + "'", "consumers": rest}
            values.append(value | more)
        else:
            values.append(value | {"consumers": readers})
    return graph | {"tasks": tasks, "values": [value for value in values if value["consumers"]]}


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(3, 16), st.sampled_from([1.0, 6.0]))
def test_no_copy_of_a_run_starts_before_its_head(seed, tasks, ratio):
    draw = random.Random(seed)
    graph = small(seed, tasks=tasks, ratio=ratio)
    whole = Instance(read(graph))
    head = local(whole, paths(whole)).head
    for _ in range(5):
        instance = Instance(read(copied(graph, draw)))
        play = Play(instance, random_schedule(instance, draw))
        for r, name in enumerate(instance.names):
            first = head[whole.number[name.removesuffix("'")], play.device[r]]
            assert first <= play.start[r] * (1 + 1e-9)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(3, 10))
def test_no_schedule_is_shorter_than_what_neighbours_prove(seed, tasks):
    draw = random.Random(seed)
    for graph in (small(seed, tasks=tasks), randomly(draw, tasks)):
        try:
            instance = Instance(read(graph))
        except PlanError:
            continue  # Nothing links a maker to a reader.
        known = paths(instance, once=True)
        raised = joined(instance, known)
        assert (raised.head >= known.head).all() and (raised.tail >= known.tail).all()
        for _ in range(5):
            try:
                play = Play(instance, random_schedule(instance, draw))
            except PlanError:
                continue  # What is drawn may wait for itself.
            assert raised.length <= play.makespan * (1 + 1e-9)
            for r, d in enumerate(play.device):
                assert raised.head[r, d] <= play.start[r] * (1 + 1e-9)
                assert play.end[r] + raised.tail[r, d] <= play.makespan * (1 + 1e-9)


def test_inputs_made_or_sent_one_after_the_other_arrive_late():
    # Both inputs of u must be made on one device, or one of them sent; alone, each could be there after a second.
    instance = Instance(read(tree(1.5)))
    known = paths(instance, once=True)
    raised = joined(instance, known)
    u = instance.number["u"]
    assert known.head[u].min() == pytest.approx(1.0)
    assert raised.head[u].min() == pytest.approx(2.0)
    assert raised.length > known.length


def tree(trip: float, lanes: int = 1):
    """Seven tasks of a second, each of three reading what two others make, on three devices."""
    names = "pqr"
    reads = {"u": "ab", "v": "cd", "w": "uv"}
    values = [
        {"id": name, "producer": name, "consumers": [own for own in reads if name in reads[own]], "bytes": 1}
        for name in "abcduv"
    ]
    return {
        "tasks": [{"id": name, "seconds": dict.fromkeys(names, 1.0)} for name in "abcduvw"],
        "values": values,
        "devices": [{"name": name, "lanes": lanes} for name in names],
        "links": [
            {"src": a, "dst": b, "latency_s": 0.0, "bytes_per_s": 1 / trip}
            for a in names
            for b in names
            if a != b
        ],
    }


def test_what_would_come_too_late_is_made_where_it_is_read():
    # All on one device; only a to d apart; each half on a device of its own, but for one task.
    assert lower_bound(Instance(read(tree(10.0)))) == pytest.approx(7.0)
    assert lower_bound(Instance(read(tree(1.5)))) == pytest.approx(5.0)
    assert lower_bound(Instance(read(tree(0.25)))) == pytest.approx(3.5)
    assert 4.0 <= lower_bound(Instance(read(tree(10.0, lanes=2)))) <= 4.5


@pytest.mark.parametrize("ratio", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("speeds", [None, (1.0, 2.0, 4.0)])
def test_a_planted_optimum_is_the_bound(ratio, speeds):
    for seed in range(3):
        graph, length = planted(seed, 60, 3, ratio, speeds=speeds)
        assert lower_bound(Instance(read(graph))) == pytest.approx(length, rel=1e-3)
        assert lower_bound(Instance(read(graph))) <= length * (1 + 1e-9)


def test_what_must_cross_a_wire_bounds_the_schedule():
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


def test_what_a_value_may_go_round_does_not_bound_the_schedule():
    # Through r the last of four inputs is there after 5 s; two by each way take 3 s, and all over a bus 8 s or more.
    assert relayed(100.0, None) <= 5.1
    assert relayed(1.5, None) <= 3.1
    assert 3.9 <= relayed(100.0, "bus") <= 8.1


def test_what_several_read_crosses_a_wire_once():
    graph = {
        "tasks": [{"id": f"t{k}", "seconds": {"cpu": 100.0, "gpu": 0.1}} for k in range(8)],
        "values": [
            {"id": "x", "producer": None, "home": "cpu", "consumers": [f"t{k}" for k in range(8)], "bytes": 5}
        ],
        "devices": [{"name": "cpu", "lanes": 1}, {"name": "gpu", "lanes": 4}],
        "links": [{"src": "cpu", "dst": "gpu", "latency_s": 0.0, "bytes_per_s": 1.0}],
    }
    assert 5.1 <= lower_bound(Instance(read(graph))) <= 5.2


def test_what_may_be_made_again_where_it_is_wanted_need_not_cross_a_wire():
    names = "pqr"
    graph = {
        "tasks": [
            {"id": "a", "seconds": dict.fromkeys(names, 0.1)},
            *({"id": f"on {d}", "seconds": {d: 1.0}} for d in names),
        ],
        "values": [{"id": "v", "producer": "a", "consumers": [f"on {d}" for d in names], "bytes": 1}],
        "devices": [{"name": d} for d in names],
        "links": [
            {"src": a, "dst": b, "latency_s": 0.0, "bytes_per_s": 1.0, "wire": "bus"}
            for a in names
            for b in names
            if a != b
        ],
    }
    # Nor where it must be delivered.
    wanted = [{"id": f"to {d}", "producer": "a", "consumers": [], "bytes": 5, "deliver_to": d} for d in "pq"]
    fewer = {"tasks": graph["tasks"][:2], "values": [{**graph["values"][0], "consumers": ["on p"]}, *wanted]}
    for own in (graph, {**graph, **fewer}):
        own["tasks"][0].pop("colocate", None)
        assert lower_bound(Instance(read(own))) == pytest.approx(1.1)
        own["tasks"][0]["colocate"] = "alone"
        assert lower_bound(Instance(read(own))) > 1.1


def test_what_does_not_fit_the_fastest_device_is_done_elsewhere():
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


def test_whole_times_make_whole_bounds():
    tasks = [{"id": f"t{k}", "seconds": {"a": 3.0}} for k in range(3)]
    graph = {"tasks": tasks, "values": [], "links": [], "devices": [{"name": "a", "lanes": 2}]}
    assert lower_bound(Instance(read(graph))) == 6.0
    # Not where a transfer, or a way to run that is not the quickest, lasts a part of a second.
    apart = {
        "tasks": [{"id": "s", "seconds": {"a": 1.0}}, {"id": "t", "seconds": {"b": 1.0}}],
        "values": [{"id": "v", "producer": "s", "consumers": ["t"], "bytes": 1}],
        "devices": [{"name": "a"}, {"name": "b"}],
        "links": [{"src": "a", "dst": "b", "latency_s": 0.0, "bytes_per_s": 2.0}],
    }
    assert lower_bound(Instance(read(apart))) == 2.5
    ways = [{"id": name, "seconds": {"a": {"1": 2.5, "2": 2.0}}} for name in "st"]
    assert lower_bound(Instance(read({**graph, "tasks": ways}))) == pytest.approx(2.5)


def test_what_shares_the_machine_between_the_same_two_tasks_adds_up():
    # Each stage is one task, three beside each other on two lanes, and the one that waits for all three.
    stages, tasks, values = 6, [{"id": "0", "seconds": {"a": 2.0}}], []
    for k in range(stages):
        side = [f"{k}-{number}" for number in range(3)]
        tasks += [{"id": name, "seconds": {"a": 3.0}} for name in side]
        tasks.append({"id": str(k + 1), "seconds": {"a": 2.0}})
        values.append({"id": f"from {k}", "producer": str(k), "consumers": side, "bytes": 0})
        for name in side:
            values.append({"id": name, "producer": name, "consumers": [str(k + 1)], "bytes": 0})
    graph = {"tasks": tasks, "values": values, "links": [], "devices": [{"name": "a", "lanes": 2}]}
    assert stages * (4.5 + 2.0) + 2.0 <= lower_bound(Instance(read(graph))) <= stages * (6.0 + 2.0) + 2.0


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 7), st.integers(2, 3))
def test_the_shortest_schedule_on_equal_lanes_is_not_below_the_bound(seed, tasks, lanes):
    draw = random.Random(seed)
    seconds = [float(draw.randint(0, 9)) for _ in range(tasks)]
    waits = [draw.sample(range(r), min(r, draw.randint(0, 3))) for r in range(tasks)]
    lines = [f"{r} {seconds[r]} {len(own)} {' '.join(map(str, own))}" for r, own in enumerate(waits)]
    instance = Instance(read(stg("\n".join([str(tasks), *lines]), lanes)))
    assert lower_bound(instance) <= shortest(seconds, waits, (0.0,) * lanes, {})


def shortest(seconds, waits, free, end):
    """The least makespan that goes on from the tasks placed, each at the earliest in some order."""
    if len(end) == len(seconds):
        return max(end.values())
    found = []
    for r, own in enumerate(waits):
        if r not in end and all(p in end for p in own):
            done = max(free[0], *(end[p] for p in own), 0.0) + seconds[r]
            found.append(shortest(seconds, waits, tuple(sorted((*free[1:], done))), end | {r: done}))
    return min(found)
