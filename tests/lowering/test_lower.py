"""Programs from plans: right, the same answer, as few waits as can be, memory within its caps."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import adversary
import pytest
from fake_devices import run_fake
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st
from naive import machine, plan, value
from program_text import parse
from randoms import random_graph, random_places
from redundant import redundant
from samples import R, every, fork, given, graph, op, same, sequential, towers

from autopar.errors import MemoryCapError, PlanError
from autopar.ir.graph import Graph, Ref, Task
from autopar.ir.program import Compute, Copy, Free, Program, Record, Wait
from autopar.lowering.check import check
from autopar.lowering.lower import lower

PLANS = {f"{index} {each.costed.graph.name}": each for index, each in enumerate(every())}


def count(program: Program, kind: type) -> int:
    return sum(isinstance(step, kind) for lane in program.lanes for step in lane.steps)


@pytest.mark.slow
@pytest.mark.parametrize("each", PLANS.values(), ids=PLANS)
def test_samples(each) -> None:
    """Every task in the plan's order, every transfer a copy, no event without a wait, no device mixed."""
    program, made = lower(each), each.costed.graph
    assert redundant(program, made) == ()
    for lane in program.lanes:
        ours = [step.task for step in lane.steps if isinstance(step, Compute)]
        theirs = [p.cluster for p in each.orders[lane.name] if p in each.placed]
        assert ours == theirs
    assert count(program, Copy) == len(each.transfers)
    events = {s.event for lane in program.lanes for s in lane.steps if isinstance(s, Record)}
    assert events == {s.event for lane in program.lanes for s in lane.steps if isinstance(s, Wait)}
    assert [program.buffer[name].value for name in program.outputs] == list(made.outputs)
    fakes = run_fake(program, made)
    assert {fake.device.type for fake in fakes.values()} == {"cpu"}


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@drawn(st.integers(0, 10**6))
def test_random_graphs_anywhere(seed: int) -> None:
    """Any graph on any devices with any caps: proved, nothing to spare, and right in bad orders."""
    rng = random.Random(seed)
    made = random_graph(rng, rng.randrange(2, 30))
    lanes, accelerators = rng.randrange(1, 4), rng.randrange(0, 3)
    free = machine(lanes, accelerators)
    where = random_places(rng, made, [lane for device in free.devices for lane in device.compute_lanes])
    seconds = {task.name: rng.choice([0.1, 1.0, 3.0]) for task in made.tasks}
    workspace = {task.name: 64 for task in made.tasks if rng.random() < 0.1}
    program = lower(plan(made, free, where, seconds=seconds, workspace=workspace))
    peaks = check(program, made)
    assert redundant(program, made) == ()
    tensors = given(made, seed)
    right = sequential(made, tensors)
    for order in range(4):
        assert same(adversary.run(program, made, None, tensors, order), right)
    for share in (0.9, 0.75, 0.6):
        caps = {peak.device: int(peak.bytes * share) for peak in peaks if rng.random() < 0.8}
        try:
            capped = lower(
                plan(made, machine(lanes, accelerators, caps), where, seconds=seconds, workspace=workspace)
            )
        except MemoryCapError:
            continue
        assert redundant(capped, made) == ()
        assert all(peak.bytes <= peak.cap for peak in check(capped, made) if peak.cap is not None)
        assert same(adversary.run(capped, made, None, tensors, seed), right)


def chain(tasks: int) -> Graph:
    values = [value("x", kind="input"), *(value(f"v{i}") for i in range(tasks))]
    made = [op(f"t{i}", "aten.sin.default", R(f"v{i - 1}" if i else "x"), (f"v{i}",)) for i in range(tasks)]
    return graph("chain", values, made, (f"v{tasks - 1}",))


@pytest.mark.slow
def test_long_chain_is_neither_slow_nor_deep() -> None:
    """5,000 tasks that change device each time, lowered and checked; time is that of the processor, so that other load
    does not count."""
    made = chain(5_000)
    each = plan(made, machine(), ["cpu", "emulated:0", "emulated:1"])
    start = time.process_time()
    program = lower(each)
    check(program, made)
    assert time.process_time() - start < 2.5
    assert count(program, Compute) == 5_000


HASHED = """
import random, sys
from naive import machine, plan
from randoms import random_graph, random_places
from autopar.lowering.check import check
from autopar.lowering.lower import lower
rng = random.Random(3)
made = random_graph(rng, 40)
on = machine(2, 2, {"emulated:0": 64 * 14, "cpu": 64 * 40})
lanes = [lane for device in on.devices for lane in device.compute_lanes]
program = lower(plan(made, on, random_places(rng, made, lanes)))
check(program, made)
assert "torch" not in sys.modules
print(program)
"""


@pytest.mark.slow
def test_same_text_under_any_hash_seed_and_without_torch() -> None:
    path = os.pathsep.join([str(Path(__file__).parents[1] / "helpers"), str(Path(__file__).parents[2])])
    texts = {
        subprocess.run(
            [sys.executable, "-c", HASHED],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1")
    }
    assert len(texts) == 1
    assert parse(texts.pop()).lanes


def test_waits_that_follow_from_others_are_not_made() -> None:
    """R reads a and b, both from cpu/0: one wait, for the later of them, is enough; then c through cpu/1
    covers both.

    cpu/0: a  b
    cpu/1:       c(b)
    cpu/2:             r(a, b, c)
    """
    tasks = [op(name, "aten.sin.default", R("x")) for name in "ab"]
    tasks += [op("c", "aten.sin.default", R("b_")), op("r", "aten.stack.default", (R("a_", "b_", "c_"),))]
    made = graph("covered", [value("x", kind="input"), value("r_", (3, 4, 4))], tasks, ("r_",))
    program = lower(plan(made, machine(3, 0), {"a": "cpu/0", "b": "cpu/0", "c": "cpu/1", "r": "cpu/2"}))
    steps = program.lane["cpu/2"].steps
    assert [type(step) for step in steps[:2]] == [Wait, Compute]
    assert redundant(program, made) == ()


def test_caps_add_waits_only_where_they_bind() -> None:
    free = lower(fork(2))
    peaks = {peak.device: peak.bytes for peak in check(free)}
    roomy = lower(fork(2, peaks))
    assert roomy.lanes == free.lanes
    loose = {peak.device: peak.bytes for peak in check(lower(towers()))}
    tight = lower(towers({"emulated:0": loose["emulated:0"] - 64}))
    assert count(tight, Wait) >= count(lower(towers()), Wait)
    assert all(peak.bytes <= peak.cap for peak in check(tight) if peak.cap is not None)


def test_cap_too_small_says_what_would_fit() -> None:
    with pytest.raises(
        MemoryCapError, match=r"needs .* on emulated:0.* of the cap of .* Raise it with memory="
    ):
        lower(towers({"emulated:0": 64 * 2}))
    with pytest.raises(MemoryCapError, match=r"inputs and state on cpu take .* before anything runs"):
        lower(towers({"cpu": 100}))


def test_results_where_they_are_wanted() -> None:
    """An input, a state value and an alias as results; one result twice; one that stays where it was made."""
    tasks = [op("a", "aten.sin.default", R("x")), op("v", "aten.t.default", R("a_"), ("v",), free=True)]
    values = [value("x", kind="input"), value("w", kind="state"), value("v", storage="a_")]
    made = graph("results", values, tasks, ("x", "w", "v", "v", "a_"))
    each = plan(made, machine(), ["emulated:0"])
    program = lower(each)
    check(program, made)
    assert program.outputs == ("x@cpu", "w@cpu", "v@cpu", "v@cpu", "a_@cpu")
    stay = replace(each.costed, deliver=(*each.costed.deliver[:4], ("a_", "")))
    moves = tuple(t for t in each.transfers if t.value != "a_")
    program = lower(replace(each, costed=stay, transfers=moves))
    check(program, made)
    assert program.outputs[-1] == "a_@emulated:0"
    assert program.buffer["a_@emulated:0"].kind == "result"
    tensors = given(made)
    assert same(adversary.run(program, made, None, tensors, 1), sequential(made, tensors))


def test_unused_outputs_are_freed_at_once() -> None:
    task = Task("m", "aten.sort.default", (Ref("x"), 0), (), ("s", "i"), unpack=True)
    values = [value("x", kind="input"), value("s"), value("i", dtype="int64")]
    steps = lower(plan(graph("sort", values, [task], ("s",)), machine(), ["cpu"])).lanes[0].steps
    assert steps[1:] == (Free("i@cpu"),)


def test_broken_plans_are_refused() -> None:
    each = fork()
    first = each.transfers[0]
    with pytest.raises(PlanError, match="which the plan never brings there; add a Transfer"):
        lower(replace(each, transfers=each.transfers[1:]))
    with pytest.raises(PlanError, match=r"makes .* twice"):
        lower(replace(each, transfers=(*each.transfers, replace(first, start=first.start + 1))))
    late = tuple(replace(p, start=99.0, end=100.0) if p.cluster == "s0" else p for p in each.placed)
    with pytest.raises(PlanError, match="go round in a circle"):
        lower(replace(each, placed=late))


def test_errors_name_values_also_with_the_sign_of_a_device_in_them() -> None:
    """`value@device` is read from its end."""
    task = op("f", "aten.sin.default", R("x@home"))
    made = plan(graph("signs", [value("x@home", kind="input")], [task], ("f_",)), machine(), ["emulated:0"])
    into, out = sorted(made.transfers, key=lambda moved: moved.value != "x@home")
    for transfers, message in (
        ((out,), "on emulated:0 reads 'x@home', which the plan never brings there"),
        ((into,), "never brings the result 'f_' to cpu"),
        ((replace(into, src="emulated:1"), out),
         "moves 'x@home' from emulated:1 to emulated:0, but it never is on emulated:1"),
    ):  # fmt: skip
        with pytest.raises(PlanError, match=message):
            lower(replace(made, transfers=transfers))
