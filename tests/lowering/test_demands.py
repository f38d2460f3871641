"""Order of tasks around changes in place where no edge of the graph says it, and far down a lane."""

from __future__ import annotations

import random
from dataclasses import replace

import adversary
import pytest
from naive import machine, plan, value
from randoms import random_places
from samples import R, given, graph, op, same, sequential

from autopar.errors import PlanError, ProgramError
from autopar.ir.graph import Graph
from autopar.ir.program import Buffer, Compute, Lane, Program, Record, Step, Wait
from autopar.lowering.check import check
from autopar.lowering.lower import lower


def refusal(program: Program, made: Graph) -> str:
    """The first line of what is wrong, empty when nothing is."""
    try:
        check(program, made)
    except ProgramError as error:
        return str(error)
    return ""


def wrong(program: Program, made: Graph, seeds: range) -> bool:
    right = sequential(made, given(made))
    return any(not same(adversary.run(program, made, None, given(made), seed), right) for seed in seeds)


@pytest.mark.parametrize(("reader", "lane"), [("cpu/1", "cpu/1"), ("emulated:0/0", "emulated:0/in")])
def test_a_change_waits_for_those_who_read_before_it(reader: str, lane: str) -> None:
    """Readers on another lane of the device, and the copy that takes what a reader elsewhere must see."""
    values = [value("x", kind="input"), value("b", storage="a_")]
    tasks = [
        op("a", "aten.sin.default", R("x")),
        op("r", "aten.exp.default", R("a_")),
        op("w", "aten.add_.Tensor", R("a_", "x"), ("b",), writes=("a_",)),
    ]
    bare = graph("bare", values, tasks, ("r_", "b"))
    where = {"a": "cpu/0", "r": reader, "w": "cpu/0"}
    program = lower(plan(bare, machine(2), where))
    check(program)
    message = (
        rf"\(task 'w'\) changes a_@cpu in place, used before, but nothing makes it follow .* lane {lane}"
    )
    assert wrong(program, bare, range(20))
    with pytest.raises(ProgramError, match=message):
        check(program, bare)


def test_a_reader_waits_for_the_changes_before_it() -> None:
    values = [value("x", kind="input"), value("b", storage="a_")]
    tasks = [
        op("a", "aten.sin.default", R("x")),
        op("w", "aten.add_.Tensor", R("a_", "x"), ("b",), writes=("a_",)),
        op("r", "aten.exp.default", R("a_")),
    ]
    bare = graph("bare", values, tasks, ("r_", "b"))
    program = lower(plan(bare, machine(2), {"a": "cpu/0", "w": "cpu/0", "r": "cpu/1"}))
    assert wrong(program, bare, range(20))
    with pytest.raises(ProgramError, match=r"\(task 'r'\) uses a_@cpu, which is changed in place before"):
        check(program, bare)


def contested(rng: random.Random) -> Graph:
    """Two values that tasks read and change in place in turn, by the value itself or by what the last change made;
    no edge says in which order."""
    values, tasks = [value("x", kind="input")], []
    names = {root: [f"{root}_"] for root in "ab"}
    for root in names:
        tasks.append(op(root, "aten.sin.default", R("x")))
    for index in range(rng.randrange(2, 7)):
        root = rng.choice("ab")
        seen = rng.choice(names[root])
        if rng.random() < 0.5:
            tasks.append(op(f"r{index}", "aten.exp.default", R(seen)))
        else:
            values.append(value(f"w{index}", storage=f"{root}_"))
            tasks.append(op(f"c{index}", "aten.add_.Tensor", R(seen, "x"), (f"w{index}",), writes=(seen,)))
            names[root].append(f"w{index}")
    made = [name for task in tasks for name in task.outputs]
    return graph("contested", values, tasks, tuple(made))


def test_what_the_check_lets_through_is_right_without_a_single_edge() -> None:
    """A program that passes is right in every order; one that is refused for a change is seen to be wrong."""
    passed = refused = seen = 0
    for seed in range(100):
        rng, on = random.Random(seed), machine(2, seed % 2)
        made = contested(rng)
        lanes = [lane for device in on.devices for lane in device.compute_lanes]
        program = lower(plan(made, on, random_places(rng, made, lanes)))
        why = refusal(program, made)
        found = wrong(program, made, range(30))
        assert why or not found, (seed, str(program))
        assert not why or "in place" in why
        passed += not why
        refused += bool(why)
        seen += found
    assert min(passed, refused) > 20
    assert seen > 0.8 * refused


@pytest.mark.parametrize("far", [2, 200])
@pytest.mark.parametrize("through", [False, True])
def test_a_wait_that_is_needed_far_behind_it_is_not_redundant(far: int, through: bool) -> None:
    """Steps later in its lane, or in a lane that waits for this one; without that step it is."""
    steps: dict[str, list[Step]] = {
        "a/0": [Compute("first", (), ("x@a",)), Record("done")],
        "a/1": [Wait("done")],
    }
    buffers = [Buffer("x@a", "x", "a", 8, "x@a", "result")]
    for number in range(far):
        name = f"v{number}@a"
        buffers.append(Buffer(name, f"v{number}", "a", 8, name, "result"))
        steps["a/1"].append(Compute(f"t{number}", (), (name,)))
    reader = "a/2" if through else "a/1"
    if through:
        steps["a/1"].append(Record("passed"))
        steps[reader] = [Wait("passed")]
    buffers.append(Buffer("y@a", "y", "a", 8, "y@a", "result"))
    lanes = tuple(Lane(lane, "a", tuple(found)) for lane, found in steps.items())
    idle = Program("idle", lanes, tuple(buffers[:-1]), ())
    assert ("a/1", 0) in check(idle).redundant
    steps[reader].append(Compute("last", ("x@a",), ("y@a",)))
    lanes = tuple(Lane(lane, "a", tuple(found)) for lane, found in steps.items())
    assert check(Program("busy", lanes, tuple(buffers), ())).redundant == ()


def test_an_error_names_values_as_they_are_also_with_the_sign_of_a_device_in_them() -> None:
    """`value@device` is read from its end."""
    values = [value("x@home", kind="input")]
    made = plan(
        graph("signs", values, [op("f", "aten.sin.default", R("x@home"))], ("f_",)), machine(), ["emulated:0"]
    )
    with pytest.raises(PlanError, match=r"on emulated:0 reads 'x@home', which the plan never brings there"):
        lower(replace(made, transfers=tuple(t for t in made.transfers if t.value != "x@home")))
    with pytest.raises(PlanError, match=r"never brings the result 'f_' to cpu"):
        lower(replace(made, transfers=tuple(t for t in made.transfers if t.value != "f_")))
    moved = tuple(replace(t, src="emulated:1") if t.value == "x@home" else t for t in made.transfers)
    with pytest.raises(
        PlanError, match=r"moves 'x@home' from emulated:1 to emulated:0, but it never is on emulated:1"
    ):
        lower(replace(made, transfers=moved))
