"""State that changes from call to call: copied and kept, or updated by the call and carried to who reads it."""

from __future__ import annotations

import random
from dataclasses import replace

import adversary
import pytest
from feasible import problems
from graphs import MS, costed, machine
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st
from naive import machine as naive_machine
from naive import plan as naive_plan
from naive import value
from program_text import parse
from randoms import random_places, training
from redundant import redundant
from samples import R, given, graph, on, op, same, sequential, step

from autopar.errors import MemoryCapError, PlanError, ProgramError
from autopar.ir.costed import CostedGraph, TaskCost
from autopar.ir.device import Link
from autopar.ir.graph import Graph
from autopar.ir.plan import Plan
from autopar.ir.program import Copy, Program
from autopar.lowering.check import check
from autopar.lowering.lower import lower
from autopar.planner import POLICIES, place
from autopar.planner.bounds import lower_bound
from autopar.planner.model.instance import Instance


def priced(rng: random.Random, made: Graph, memory: dict[str, int] | None = None) -> CostedGraph:
    """On a CPU and up to two accelerators, at random speeds; state at home anywhere."""
    gpus, peer, wire = rng.choice((1, 2, 2)), rng.random() < 0.7, rng.choice(("own", "one", None))
    unit = machine(
        gpus, cpu_lanes=rng.choice((1, 2)), bytes_per_s=64 / MS, wire=wire, peer=peer, memory=memory
    )
    costs = [TaskCost(t.name, tuple(rng.uniform(0.3, 3) * MS for _ in unit.devices)) for t in made.tasks]
    homes = {s: rng.choice([d.name for d in unit.devices]) for s in made.state}
    return costed(made, unit, costs, homes=homes, shortest_s=rng.choice((0.0, 2 * MS)))


def wrong(plan: Plan) -> list[str]:
    """What is wrong with a plan; the judge of memory does not see views into what stays inside a fused cluster."""
    fused = any(len(cluster.tasks) > 1 for cluster in plan.costed.clusters)
    return [text for text in problems(plan) if not (fused and "the plan says" in text)]


def copies(program: Program) -> set[tuple[str, str]]:
    return {(s.src, s.dst) for lane in program.lanes for s in lane.steps if isinstance(s, Copy)}


def test_new_values_go_to_their_home_and_to_every_reader() -> None:
    program = lower(naive_plan(step(), naive_machine(), on("cpu")))
    check(program, step())
    assert set(program.keeps) == {("n_@emulated:0", "w"), ("n_@emulated:1", "w")}
    assert program.updates == (("n_@cpu", "w"),)
    assert {("n_@cpu", "n_@emulated:0"), ("n_@cpu", "n_@emulated:1")} <= copies(program)
    assert not any(src.startswith("w@") for src, _ in copies(program)), "the old value is resident"


def test_nothing_is_moved_to_where_it_was_made() -> None:
    program = lower(naive_plan(step(), naive_machine(), on("emulated:1")))
    check(program, step())
    moved = {pair for pair in copies(program) if pair[0].startswith("n_")}
    assert moved == {("n_@emulated:1", "n_@cpu"), ("n_@emulated:1", "n_@emulated:0")}
    assert set(program.keeps) == {("n_@emulated:0", "w"), ("n_@emulated:1", "w")}
    alone = lower(naive_plan(step(), naive_machine(), ["cpu"]))
    assert alone.keeps == () and redundant(alone, step()) == ()


def test_copies_of_what_changes_are_made_in_the_call_and_kept() -> None:
    made = step(carried=(), changing=("w",))
    program = lower(naive_plan(made, naive_machine(), on("cpu")))
    assert redundant(program, made) == ()
    assert set(program.keeps) == {("w@emulated:0", "w"), ("w@emulated:1", "w")}
    assert {buffer.kind for buffer in program.buffers if buffer.value == "w"} == {"given", "result"}


def test_an_update_that_is_also_an_output() -> None:
    made = replace(step(), outputs=("g_", "n_"))
    program = lower(naive_plan(made, naive_machine(), on("emulated:0")))
    check(program, made)
    assert program.outputs[1] == "n_@cpu" and len(program.keeps) == 2


def test_graphs_that_cannot_be_carried_are_refused() -> None:
    with pytest.raises(PlanError, match=r"'x' is said to change from call to call.* but is not state"):
        replace(step(), carried=("x",)).check()
    with pytest.raises(PlanError, match="the new value of the carried state 'w', is made by no task"):
        replace(step(), updates=(("x", "w"),)).check()


BROKEN = {
    "gone": (lambda p: replace(p, keeps=p.keeps[1:]), "out of date after the call, but the program keeps no"),
    "another state": (lambda p: replace(p, keeps=(*p.keeps, (p.keeps[0][0], "x"))), "not a new value of"),
    "another buffer": (
        lambda p: replace(p, keeps=(("w@emulated:0", "w"), p.keeps[1])),
        "memory that was there",
    ),
    "twice": (
        lambda p: replace(p, keeps=(*p.keeps, ("g_@cpu", "w"), ("n_@cpu", "w"))),
        "both g_@cpu and n_@cpu",
    ),
    "at home": (lambda p: replace(p, keeps=(*p.keeps, ("n_@cpu", "w"))), "of which cpu has none"),
    "freed": (
        lambda p: replace(
            p, buffers=tuple(replace(b, kind="made") if b.name == "n_@emulated:0" else b for b in p.buffers)
        ),
        "n_@emulated:0 is of kind made, which is freed",
    ),
    "no buffer": (lambda p: replace(p, keeps=(*p.keeps, ("n_@mars", "w"))), "is not a buffer of the program"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_wrong_keeps_are_named(how: str) -> None:
    broken, message = BROKEN[how]
    program = lower(naive_plan(step(), naive_machine(), on("cpu")))
    with pytest.raises(ProgramError, match=message):
        check(broken(program), step())


def test_a_resident_result_is_where_it_is_read() -> None:
    """State that the caller wants where it resides is not brought there once more, and the bound knows."""
    tasks = [op("y", "aten.sin.default", R("w"))]
    made = graph("both", [value("w", kind="state")], tasks, ("y_", "w"))
    unit = machine(1, bytes_per_s=64 / (20 * MS))
    each = costed(made, unit, [TaskCost("y", (MS, None))], homes={"w": "emulated:0"})
    plan = place(each)
    assert plan.transfers == () and problems(plan) == []
    assert lower_bound(Instance(each)) <= plan.makespan < 2 * MS
    _right(plan, 0)


@pytest.mark.parametrize("policy", ["heft", "heft+lookahead"])
def test_heft_sees_what_carrying_costs(policy: str) -> None:
    """An update that ends sooner on an accelerator, from which its result reaches nobody: all else is elsewhere."""
    tasks = [op("a", "aten.sin.default", R("w")), op("n", "aten.sub.Tensor", R("w", "a_"))]
    made = graph("update", [value("w", kind="state")], tasks, (), [("n_", "w")])
    made = replace(made, carried=("w",)).check()
    far, near = 64 / (20 * MS), 64 / (0.1 * MS)
    names = ("cpu", "emulated:0", "emulated:1")
    links = tuple(
        Link(a, b, 1e-6, far if "emulated:1" in (a, b) and a != "emulated:0" else near, f"{a}>{b}")
        for a in names
        for b in names
        if a != b
    )
    unit = replace(machine(2), links=links)
    costs = [TaskCost("a", (None, MS, None)), TaskCost("n", (9 * MS, 9 * MS, 2 * MS))]
    each = costed(made, unit, costs)
    plan = place(each, policy)
    assert plan.place["n"].device == "emulated:0"
    assert problems(plan) == []


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@drawn(st.integers(0, 10**6))
def test_planned_lowered_checked_and_right_in_every_order(seed: int) -> None:
    rng = random.Random(seed)
    made = training(rng, rng.randrange(2, 16))
    state = rng.getstate()
    each = priced(rng, made)
    plan = place(each, rng.choice(("auto", "single", *POLICIES)))
    assert wrong(plan) == []
    assert lower_bound(Instance(each)) <= plan.makespan * (1 + 1e-9)
    _right(plan, seed)
    rng.setstate(state)
    caps = {device: int(peak * 0.9) for device, peak in plan.peaks.items()}
    try:
        tight = place(priced(rng, made, caps), "auto")
        program = lower(tight)
    except MemoryCapError:
        return
    assert wrong(tight) == []
    _right(tight, seed)
    assert all(peak.bytes <= peak.cap for peak in check(program, made) if peak.cap is not None)


@settings(max_examples=20, deadline=None)
@drawn(st.integers(0, 10**6))
def test_any_placement_of_any_graph(seed: int) -> None:
    rng = random.Random(seed)
    made = training(rng, rng.randrange(2, 20))
    unit = naive_machine(rng.randrange(1, 3), rng.randrange(1, 3))
    lanes = [lane for device in unit.devices for lane in device.compute_lanes]
    _right(naive_plan(made, unit, random_places(rng, made, lanes)), seed)


def _right(plan: Plan, seed: int) -> None:
    program, made = lower(plan), plan.costed.graph
    assert redundant(program, made) == ()
    assert parse(str(program)) == program
    tensors = given(made, seed)
    for order in range(3):
        ours = adversary.run(program, made, None, tensors, order, turns=3)
        assert same(ours, sequential(made, tensors, turns=3))
    for name, state in program.keeps:
        assert state in (*made.carried, *made.changing)
        assert program.buffer[name].device != plan.costed.home[state]
