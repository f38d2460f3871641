"""Placements for calls that follow each other: periods that hold, bounds below all of them, caps kept."""

import math
import random
from dataclasses import replace
from itertools import pairwise, product

import pytest
from benchmarks.strict_model.bound import bound
from benchmarks.strict_model.contiguous import crossing
from benchmarks.strict_model.search import early
from taskfiles import link, randomly

from autopar.errors import MemoryCapError, PlanError
from autopar.planner import place, schedule
from autopar.planner.formats import described, plain, read, text
from autopar.planner.model.instance import Hop, Instance
from autopar.planner.model.toposort import late
from autopar.planner.throughput.balance import balance
from autopar.planner.throughput.loads import Loads, Net, Standing, busiest, loads_of, share
from autopar.planner.throughput.objective import apart, busy, throughput

pytestmark = [pytest.mark.slow, pytest.mark.thin(4)]


def told(plan, graph):
    """The largest load of a plan, from the graph file and the steps alone."""
    loads = {}
    for step in plan.placed:
        for lane in step.lanes:
            loads[lane] = loads.get(lane, 0.0) + step.end - step.start
    wires = {(one["src"], one["dst"]): one.get("wire", (one["src"], one["dst"])) for one in graph["links"]}
    for t in plan.transfers:
        wire = wires[t.src, t.dst]
        if wire is not None:
            loads["wire", wire] = loads.get(("wire", wire), 0.0) + t.end - t.start
    return max(loads.values(), default=0.0)


@pytest.mark.parametrize("seed", range(15))
def test_the_period_is_the_largest_load_of_what_the_plan_does(seed):
    graph = randomly(random.Random(seed), 14)
    plan = throughput(read(graph))
    assert plan.period == pytest.approx(told(plan, plain(graph)[1]))
    assert plan.lower_bound <= plan.period + 1e-12
    least = plan.lower_bound
    assert plan.gap == (pytest.approx(plan.period / least - 1) if least else math.inf if plan.period else 0.0)


@pytest.mark.parametrize("seed", range(8))
def test_no_placement_is_below_the_bound_and_few_below_the_period(seed):
    draw = random.Random(50 + seed)
    costed = read(randomly(draw, 5))
    plan = throughput(costed)
    ways = list(product([device.name for device in costed.machine.devices], repeat=len(costed.clusters)))
    for at in draw.sample(ways, min(len(ways), 100)):
        where = {cluster.name: name for cluster, name in zip(costed.clusters, at)}
        try:
            other = max(busy(place(plan.costed, lambda _, where=where: where)).values())
        except PlanError:
            continue
        assert plan.lower_bound <= other + 1e-12
        assert plan.period <= other * 1.02 + 1e-12


def test_a_pipeline_is_split_where_one_call_would_not_be():
    graph = {
        "tasks": [{"id": f"t{n}", "seconds": {"p": 1.0, "q": 1.0}} for n in range(8)],
        "values": [
            {"id": f"v{n}", "producer": f"t{n}", "consumers": [f"t{n + 1}"], "bytes": 1000} for n in range(7)
        ],
        "devices": [{"name": "p"}, {"name": "q"}],
        "links": [link("p", "q"), link("q", "p")],
    }
    one, many = (schedule(graph, objective=name) for name in ("latency", "throughput"))
    assert one.period is None
    assert one.makespan == pytest.approx(8)
    assert many.period == pytest.approx(4)
    assert many.lower_bound == pytest.approx(4)
    assert many.makespan >= 8
    assert '"period_s"' in text(many)


@pytest.mark.parametrize("seed", range(10))
def test_caps_hold(seed):
    graph = randomly(random.Random(200 + seed), 14, tight=True)
    try:
        plan = throughput(read(graph))
    except MemoryCapError:
        with pytest.raises(MemoryCapError):
            place(read(graph))
        return
    for memory in plan.memory:
        assert memory.cap is None or memory.peak <= memory.cap
    assert plan.lower_bound <= plan.period + 1e-12


def test_what_calls_in_flight_hold_counts():
    """A value waits seven seconds for its reader beside a chain; a call every second would hold eight of it."""

    def graph(cap):
        chain = [f"t{n}" for n in range(8)]
        return {
            "tasks": [{"id": name, "seconds": {name: 1.0}} for name in chain],
            "values": [
                {"id": "long", "producer": "t0", "consumers": ["t7"], "bytes": 1000},
                *({"id": f"v{n}", "producer": f"t{n}", "consumers": [f"t{n + 1}"], "bytes": 0} for n in range(7)),
            ],
            "devices": [{"name": name, "memory_bytes": cap if name == "t7" else None} for name in chain],
            "links": [{**link(a, b), "latency_s": 0.0} for a in chain for b in chain if a != b],
        }  # fmt: skip

    wide, narrow = (throughput(read(graph(cap))) for cap in (100_000, 2500))
    assert wide.period == pytest.approx(1)
    # It is there for seven seconds, beside one more of it.
    assert 3.5 <= narrow.period <= 3.5 * 1.01


def in_flight(memory, makespan, period):
    """Most bytes on a device with calls begun so far apart, from what one call has there at each time."""
    base = min(level for _, level in memory.steps)
    calls = int(makespan / period) + 2
    changes = []
    for (start, level), (end, _) in pairwise((*memory.steps, (makespan, 0))):
        changes += [
            change
            for call in range(calls)
            for change in ((call * period + start, level - base), (call * period + end, base - level))
        ]
    peak, now = base, base
    # What ends as another begins is gone by then.
    for _, change in sorted((round(time / period, 9), change) for time, change in changes):
        now += change
        peak = max(peak, now)
    return peak


@pytest.mark.parametrize("seed", range(30))
def test_calls_begin_as_far_apart_as_caps_ask(seed):
    draw = random.Random(900 + seed)
    plan = place(read(randomly(draw, 12)), "heft")
    if not plan.makespan:
        return
    least = max(busy(plan).values())
    most = [in_flight(memory, plan.makespan, least) for memory in plan.memory]
    caps = [max(memory.peak, int(draw.uniform(0.5, 1.1) * top)) for memory, top in zip(plan.memory, most)]
    capped = replace(plan, memory=tuple(replace(memory, cap=cap) for memory, cap in zip(plan.memory, caps)))
    period = apart(capped, least)
    assert least <= period <= max(least, plan.makespan)
    assert all(in_flight(m, plan.makespan, period) <= m.cap for m in capped.memory)
    assert (period == least) == all(top <= cap for top, cap in zip(most, caps))


def test_a_chain_is_shared_out_to_the_lanes_of_its_device():
    """One call does one task after the other, and would need a single lane."""
    graph = {
        "tasks": [{"id": f"t{n}", "seconds": {"a": 1.0}} for n in range(4)],
        "values": [{"id": f"v{n}", "producer": f"t{n}", "consumers": [f"t{n + 1}"], "bytes": 0} for n in range(3)],
        "devices": [{"name": "a", "lanes": 2}],
    }  # fmt: skip
    plan = throughput(read(graph))
    assert (plan.period, plan.makespan) == (pytest.approx(2.0), pytest.approx(4.0))


def weighed(length, values, a, b):
    """What a segment of an order moves, by the definition."""
    total = 0.0
    for made, read_at, seconds in values:
        inside = [a <= r < b for r in read_at]
        if a <= made < b:
            total += seconds * (not all(inside))
        else:
            total += seconds * any(inside)
    return total


@pytest.mark.parametrize("seed", range(20))
def test_crossings_are_by_the_definition(seed):
    draw = random.Random(seed)
    length = draw.randint(1, 9)
    values = [
        (
            draw.randrange(-1, length),
            [draw.randrange(length) for _ in range(draw.randint(1, 4))],
            draw.uniform(0, 3),
        )
        for _ in range(6)
    ]
    found = crossing(length, values)
    for a in range(length + 1):
        for b in range(a + 1, length + 1):
            assert found[a, b] == pytest.approx(weighed(length, values, a, b), abs=1e-9)


@pytest.mark.parametrize("seed", range(10))
def test_loads_kept_up_are_those_of_the_placement(seed):
    draw = random.Random(seed)
    hop = [[(Hop(s, d, -1, 3 + d, 0.1, 1.0),) if s != d else () for d in range(3)] for s in range(3)]
    values = [
        Net(draw.uniform(0, 2), draw.randrange(-1, 6), draw.randrange(3),
              tuple(draw.randrange(6) for _ in range(3)), (draw.randrange(3),))
        for _ in range(8)
    ]  # fmt: skip
    seconds = [[draw.uniform(0, 3) for _ in range(3)] for _ in range(6)]
    loads = Loads(seconds, [1, 2, 1], values, hop, 6, [[1] * 3] * 6, [4, 6, 6], range(6))
    stand = Standing(loads, [0] * 6)
    for _ in range(50):
        stand.move(draw.randrange(6), draw.randrange(3))
    fresh = Standing(loads, stand.at)
    assert stand.load == pytest.approx(fresh.load)
    assert (stand.used, stand.over, stand.lost) == (fresh.used, fresh.over, fresh.lost)
    at, cut = balance(loads)
    best = min(s.period for p in product(range(3), repeat=6) if not (s := Standing(loads, p)).over)
    assert bound(loads) <= best + 1e-12
    assert best <= Standing(loads, at).period <= best * 1.02
    assert not cut


def test_what_fills_all_devices_is_packed():
    """Four devices full to the last byte, with sizes that divide each other."""
    draw = random.Random(0)
    sizes = [2 ** draw.randrange(12) for _ in range(200)]
    sizes += [1] * (-sum(sizes) % 4)
    cap, count = sum(sizes) // 4, len(sizes)
    loads = Loads(
        [[1.0] * 4] * count, [1] * 4, [], [[()] * 4] * 4, 4, [[n] * 4 for n in sizes], [cap] * 4, range(count)
    )
    at, cut = balance(loads, until=0.0)
    assert cut and at and not Standing(loads, at).over


@pytest.mark.parametrize("seed", range(20))
def test_lanes_are_shared_out_evenly(seed):
    draw = random.Random(seed)
    lanes = draw.randint(1, 4)
    wide = lanes if seed % 2 else 1
    parts = [
        (draw.choice((0.0, draw.uniform(0, 2))), draw.randint(1, wide)) for _ in range(draw.randint(1, 9))
    ]
    busy = [0.0] * lanes
    for (seconds, count), taken in zip(parts, share(parts, lanes)):
        assert len(set(taken)) == count
        for lane in taken:
            busy[lane] += seconds
    assert max(busy) == pytest.approx(busiest(sorted((-seconds, -count) for seconds, count in parts), lanes))
    if wide == 1:
        ways = product(range(lanes), repeat=len(parts)) if lanes ** len(parts) < 3000 else ()
        best = min(
            (
                max(sum(s for (s, _), at in zip(parts, way) if at == lane) for lane in range(lanes))
                for way in ways
            ),
            default=0.0,
        )
        assert best <= max(busy) + 1e-12
        assert not best or max(busy) <= best * (4 / 3 - 1 / (3 * lanes)) + 1e-12


def test_a_task_stays_whole_on_one_lane():
    """Two lanes, a second and three of a half: no call every 1.25 s, though there is as little work as that."""
    graph = {
        "tasks": [{"id": f"t{n}", "seconds": {"a": s}} for n, s in enumerate((1.0, 0.5, 0.5, 0.5))],
        "values": [],
        "devices": [{"name": "a", "lanes": 2}],
        "links": [],
    }
    plan = throughput(read(graph))
    assert plan.period == pytest.approx(1.5)
    assert plan.lower_bound <= plan.period


def test_a_task_that_could_take_more_lanes_says_which_it_takes():
    graph = {
        "tasks": [{"id": "a", "seconds": {"p": {"1": 1.0, "2": 0.9}}}, {"id": "b", "seconds": {"p": 1.0}}],
        "values": [],
        "devices": [{"name": "p", "lanes": 2}],
    }
    one, other = sorted(described(throughput(read(graph)))["tasks"], key=lambda step: step["id"])
    assert one["lanes"] == [one["lane"]] and "lanes" not in other


def test_a_task_takes_more_lanes_where_it_is_longer_than_all_else():
    ways = {"1": 1.0, "2": 0.6}
    graph = {
        "tasks": [{"id": "long", "seconds": {"a": ways}}, {"id": "short", "seconds": {"a": 0.1}}],
        "values": [],
        "devices": [{"name": "a", "lanes": 2}],
        "links": [],
    }
    plan = throughput(read(graph))
    assert plan.period == pytest.approx(0.7)
    assert 0.6 <= plan.lower_bound <= plan.period


@pytest.mark.parametrize("seed", range(10))
def test_orders_follow_what_they_need(seed):
    draw = random.Random(seed)
    before = [[p for p in range(v) if draw.random() < 0.3] for v in range(12)]
    for order in (late(before), late(before, reverse=True), early(before, lambda ready: 0)):
        place_of = {v: index for index, v in enumerate(order)}
        assert sorted(order) == list(range(12))
        assert all(place_of[p] < place_of[v] for v, needs in enumerate(before) for p in needs)


def test_a_long_chain_is_balanced():
    count = 3000
    graph = {
        "tasks": [{"id": f"t{n}", "seconds": {f"d{d}": 1e-3 for d in range(4)}} for n in range(count)],
        "values": [
            {"id": f"v{n}", "producer": f"t{n}", "consumers": [f"t{n + 1}"], "bytes": 10}
            for n in range(count - 1)
        ],
        "devices": [{"name": f"d{d}"} for d in range(4)],
        "links": [link(f"d{a}", f"d{b}") for a in range(4) for b in range(4) if a != b],
    }
    plan = throughput(read(graph))
    assert plan.period <= count * 1e-3 / 4 * 1.05


def test_no_time_is_said():
    plan = throughput(read(randomly(random.Random(3), 14)), budget_s=1e-9)
    assert plan.stopped == "time"


def test_branches_stay_together_whatever_the_order_of_the_file():
    """Forty chains, listed by turns: cut across they would keep the wire busy for longer than any lane."""
    chains, length = 40, 15
    graph = {
        "tasks": [
            {"id": f"t{n}.{chain}", "seconds": {"a": 1e-3, "b": 1e-3}}
            for n in range(length)
            for chain in range(chains)
        ],
        "values": [
            {"id": f"v{n}.{c}", "producer": f"t{n}.{c}", "consumers": [f"t{n + 1}.{c}"], "bytes": 1e6}
            for n in range(length - 1)
            for c in range(chains)
        ],
        "devices": [{"name": "a"}, {"name": "b"}],
        "links": [
            {"src": a, "dst": b, "latency_s": 0.0, "bytes_per_s": 5e7} for a, b in (("a", "b"), ("b", "a"))
        ],
    }
    loads = loads_of(Instance(read(graph)))
    assert Standing(loads, balance(loads)[0]).period <= chains * length / 2 * 1e-3 * 1.02
