"""The simulation starts everything as early as queues, wires, the host and the links allow, and no
earlier."""

import pytest
from feasible import problems
from graphs import MS, build, chain, diamond, machine, parts_of_mlp, random_dag
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import simulate

from autopar.errors import PlanError
from autopar.ir.device import Device, Link
from autopar.ir.machine import Machine
from autopar.ir.plan import Plan
from autopar.planner.model.simulator import Schedule

US = 1e-6
CPU, E0, E1 = "cpu/0", "emulated:0/0", "emulated:1/0"


def played(costed, lanes, copies=None) -> Plan:
    plan = simulate(costed, Schedule("by hand", lanes, copies or {}))
    assert problems(plan) == []
    return plan


def start(timing, name):
    return {step.cluster: step.start for step in timing.placed}[name]


def end(timing, name):
    return {step.cluster: step.end for step in timing.placed}[name]


# cpu        a ──▶ d
# emulated:0   └▶ b ┘    b waits for a and the wire, d for b and the wire
def test_a_transfer_lies_between_two_devices():
    on = machine(1, latency_s=10 * US, bytes_per_s=1e9)
    c = build({"a": (["x"], MS), "b": (["a"], MS), "d": (["b"], MS)}, on, nbytes=10**6)
    t = played(c, {CPU: ("a", "d"), E0: ("b",)})
    assert [(m.value, m.src, m.dst) for m in t.transfers] == [
        ("a", "cpu", "emulated:0"),
        ("b", "emulated:0", "cpu"),
    ]
    assert start(t, "b") == pytest.approx(end(t, "a") + 10 * US + MS)
    assert start(t, "d") == pytest.approx(end(t, "b") + 10 * US + MS)
    assert t.makespan == end(t, "d")


def test_a_shared_wire_carries_one_transfer_at_a_time():
    def arrivals(wire):
        on = machine(2, wire=wire, bytes_per_s=1e9)
        c = build({"a": (["x"], MS), "b": (["x"], MS)}, on, nbytes=10**6, deliver="")
        t = played(c, {E0: ("a",), E1: ("b",)})
        return t.makespan, {m.lane for m in t.transfers}

    assert arrivals("own")[1] == {"emulated:0/in", "emulated:1/in"}
    assert arrivals("one")[0] >= arrivals("own")[0] + 0.9 * MS
    assert arrivals(None)[0] == arrivals("own")[0]


def test_without_a_direct_link_a_value_goes_through_the_host():
    on = machine(2, peer=False)
    c = build({"a": (["x"], MS), "b": (["a"], MS)}, on, deliver="")
    t = played(c, {E0: ("a",), E1: ("b",)})
    hops = [(m.src, m.dst) for m in t.transfers if m.value == "a"]
    assert hops == [("emulated:0", "cpu"), ("cpu", "emulated:1")]
    used = build({"a": (["x"], MS), "b": (["a"], MS), "c": (["a"], MS)}, on, deliver="")
    t = played(used, {E0: ("a",), E1: ("b",), CPU: ("c",)})
    assert len([m for m in t.transfers if m.value == "a"]) == 2


# Two CPU queues with tasks that are nothing but Python: the GIL lets one cluster at a time.
def test_the_host_dispatches_one_run_at_a_time():
    def makespan(dispatch_s):
        on = machine(0, cpu_lanes=2, dispatch_s=dispatch_s)
        c = build({f"a{i}": (["x"], 100 * US) for i in range(8)}, on)
        names = list(c.cluster)
        return played(c, {"cpu/0": tuple(names[::2]), "cpu/1": tuple(names[1::2])}).makespan

    assert makespan(100 * US) >= 8 * 100 * US * (1 - 1e-9)
    assert makespan(0.0) == pytest.approx(4 * 100 * US)
    assert makespan(10 * US) == pytest.approx(4 * 100 * US + 10 * US)


def test_copy_lanes_keep_a_given_order():
    c = build({"a": (["x"], MS), "b": (["y"], MS)}, machine(1, bytes_per_s=1e9), nbytes=10**6, deliver="")
    moves = [(v, "cpu", "emulated:0") for v in "yx"]
    t = played(c, {E0: ("b", "a")}, {"emulated:0/in": tuple(moves)})
    assert [m.value for m in t.transfers] == ["y", "x"]
    assert t.transfers[1].ready < t.transfers[1].start


# a ──▶ b    with b before a on the only lane
def test_orders_that_wait_for_each_other_are_an_error():
    with pytest.raises(PlanError, match=r"wait for each other.*'t1' at the head of cpu/0"):
        simulate(chain(2), Schedule("x", {CPU: ("t1", "t0")}))


@pytest.mark.parametrize(
    "lanes, text",
    [
        ({CPU: ("a", "b", "c")}, "leaves out cluster 'd'"),
        ({CPU: ("a", "b", "c", "d", "d")}, "places cluster 'd' twice"),
        ({CPU: ("a", "b", "c", "d", "e")}, "'e', which is not a cluster"),
        ({CPU: ("a", "b", "c"), "gpu/0": ("d",)}, "names the lane 'gpu/0'; there are cpu/0"),
    ],
)
def test_invalid_schedules_are_errors(lanes, text):
    with pytest.raises(PlanError, match=text):
        simulate(diamond(), Schedule("x", lanes))


def test_a_run_where_it_cannot_run_is_an_error():
    c = chain(2, machine(1), seconds=(MS, None))
    with pytest.raises(PlanError, match="'t1' on emulated:0; it can only run on cpu"):
        simulate(c, Schedule("x", {CPU: ("t0",), E0: ("t1",)}))


def test_no_way_between_two_devices_is_an_error():
    on = Machine((Device("cpu", "cpu"), Device("cuda:0", "cuda")), (Link("cpu", "cuda:0", 0.0, 1e9, None),))
    with pytest.raises(PlanError, match="no link leads from cuda:0 to cpu"):
        simulate(chain(1, on), Schedule("x", {"cuda:0/0": ("t0",)}))


# x ─▶ a ─▶ b ─▶ c on one device: at any time two values, and x at home throughout
def test_memory_of_a_chain_is_what_is_in_use():
    t = played(chain(6, machine(0), nbytes=1000), {CPU: tuple(f"t{i}" for i in range(6))})
    assert t.memory[0].peak == 3000
    assert t.memory[0].steps[-1][1] == 2000  # x, and the output


def test_views_share_and_copies_do_not():
    c = parts_of_mlp(2)
    lanes = {CPU: ("p0", "p1", "y"), E0: ("l0_0", "l1_0"), E1: ("l0_1", "l1_1")}
    t = played(c, lanes)
    peaks = {m.device: m.peak for m in t.memory}
    # cpu: x, the weights, y and the two halves that come back; an accelerator: weights, two halves at a time
    assert peaks["cpu"] == 4_000_000 + 2_000_000 + 4_000_000 + 2 * 2_000_000
    assert peaks["emulated:0"] == 2_000_000 + 2 * 2_000_000


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 20), st.integers(0, 10**6))
def test_any_topological_order_on_any_lanes_can_be_carried_out(seed, tasks, where):
    import random

    c = random_dag(seed, tasks, 3)
    draw = random.Random(where)
    lanes: dict[str, list[str]] = {}
    for cluster in c.clusters:
        able = [d for d, s in zip(c.machine.devices, cluster.seconds) if s is not None]
        lanes.setdefault(draw.choice(draw.choice(able).compute_lanes), []).append(cluster.name)
    played(c, {lane: tuple(names) for lane, names in lanes.items()})
