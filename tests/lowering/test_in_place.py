"""Updates in place: last in the only lane, proved, and refused by the proof wherever an old value is still needed."""

from __future__ import annotations

import random
from dataclasses import replace

import adversary
import pytest
from hypothesis import example, settings
from hypothesis import given as drawn
from hypothesis import strategies as st
from naive import machine, plan
from program_text import parse
from randoms import training
from samples import given, same, sequential, step

from autopar.errors import ProgramError
from autopar.ir.graph import Graph, Task
from autopar.ir.program import Compute, Free, Program, tasks_of
from autopar.lowering.check import check
from autopar.lowering.lower import lower
from autopar.lowering.rewrites import overwriting


def updates(task: Task) -> bool:
    return task.name.startswith("new ") or task.name == "n"


def over(program: Program) -> dict[str, str]:
    """The values that are written into the memory of another one, which was there before the call."""
    roots = {buffer.name: program.buffer[buffer.storage] for buffer in program.buffers}
    return {
        made: roots[made].name
        for made, _ in program.updates
        if made != roots[made].name and roots[made].kind == "given"
    }


def alone() -> Program:
    return lower(plan(step(), machine(1, 0), ["cpu"] * 6))


def moved(program: Program, task: str, to: int) -> Program:
    """The program with a task at another place of its lane."""
    (lane,) = program.lanes
    steps = list(lane.steps)
    steps.insert(to, steps.pop(next(i for i, s in enumerate(steps) if task in tasks_of(s))))
    return replace(program, lanes=(replace(lane, steps=tuple(steps)),))


def test_the_only_lane_updates_last_in_the_memory_of_the_old_value() -> None:
    program = overwriting(alone(), step(), updates)
    assert over(program) == {"n_@cpu": "w@cpu"}
    names = [name for each in program.lanes[0].steps for name in tasks_of(each)]
    assert names[-1] == "n"
    before, after = check(alone(), step()), check(program, step())
    assert after[0].bytes <= before[0].bytes
    assert parse(str(program)) == program


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@drawn(st.integers(0, 10**6))
@example(125)  # one update reads what another one replaces
def test_any_step_of_one_lane_is_proved_and_right(seed: int) -> None:
    rng = random.Random(seed)
    made = training(rng, rng.randrange(2, 24))
    whole = lower(plan(made, machine(1, 0), ["cpu"] * len(made.tasks)))
    program = overwriting(whole, made, updates)
    check(program, made)
    returned = {whole.buffer[name].storage for name in whole.outputs}
    expected = {m for m, s in whole.updates if m not in returned and f"{s}@cpu" not in returned}
    assert set(over(program)) <= expected
    assert expected or program == whole
    late = [
        s for s in program.lanes[0].steps if isinstance(s, Compute) and set(s.writes) & set(over(program))
    ]
    rest = [s for s in program.lanes[0].steps if not isinstance(s, Free)]
    assert rest[len(rest) - len(late) :] == late
    tensors = given(made, seed)
    assert same(adversary.run(program, made, None, tensors, seed), sequential(made, tensors))


def test_with_more_lanes_second_buffers_stay() -> None:
    two = lower(plan(step(), machine(2, 0), ["cpu/0", "cpu/0", "cpu/1", "cpu/1", "cpu/0", "cpu/0"]))
    assert len(two.lanes) == 2 and overwriting(two, step(), updates) is two


def test_values_still_needed_keep_their_buffers() -> None:
    program = alone()
    assert overwriting(program, step(), lambda _: False) is program
    weight = replace(step(), outputs=("g_", "w"))
    returned = lower(plan(weight, machine(1, 0), ["cpu"] * 6))
    assert overwriting(returned, weight, updates) is returned
    new = replace(step(), outputs=("g_", "n_"))
    shown = lower(plan(new, machine(1, 0), ["cpu"] * 6))
    assert overwriting(shown, new, updates) is shown


def in_memory_of(program: Program, made: str, old: str) -> Program:
    """The program with a result in the memory of another buffer."""
    return replace(
        program, buffers=tuple(replace(b, storage=old) if b.name == made else b for b in program.buffers)
    )


def test_the_proof_is_of_any_number_of_lanes() -> None:
    """A lane whose readers of the weight the update follows may be another one; any other step must come before too."""
    where = ["cpu/0", "cpu/0", "cpu/1", "cpu/1", "cpu/0", "cpu/0"]
    check(in_memory_of(lower(plan(step(), machine(2, 0), where)), "n_@cpu", "w@cpu"), step())
    more = longer()
    beside = in_memory_of(lower(plan(more, machine(2, 0), ["cpu/0"] * 6 + ["cpu/1"])), "n_@cpu", "w@cpu")
    with pytest.raises(ProgramError, match=r"overwrites w@cpu|overwrites what was there before the call"):
        check(beside, more)


def test_the_proof_refuses_memory_that_is_returned_or_of_another_value() -> None:
    program = overwriting(alone(), step(), updates)
    with pytest.raises(ProgramError, match="w@cpu, which is returned"):
        check(replace(program, outputs=("w@cpu",)), replace(step(), outputs=("w",)))
    with pytest.raises(ProgramError, match=r"shares storage with x@cpu|not the value that it updates"):
        check(in_memory_of(program, "n_@cpu", "x@cpu"), step())


def longer() -> Graph:
    """A step whose weight is read once more, for a second output."""
    made = step()
    values = (*made.values, replace(made.value["a_"], name="z_", storage="z_"))
    tasks = (*made.tasks, replace(made.task["a"], name="z", outputs=("z_",)))
    return replace(made, values=values, tasks=tasks, outputs=("g_", "z_")).check()


def test_an_update_before_a_reader_or_anything_that_may_fail_is_refused() -> None:
    more = longer()
    program = overwriting(lower(plan(more, machine(1, 0), ["cpu"] * 7)), more, updates)
    assert tasks_of(next(s for s in reversed(program.lanes[0].steps) if tasks_of(s))) == ("n",)
    early = moved(program, "n", [tasks_of(s) for s in program.lanes[0].steps].index(("z",)))
    with pytest.raises(ProgramError, match=r"overwrites"):
        check(early, more)
    other = replace(more, tasks=tuple(
        replace(task, args=more.task["g"].args) if task.name == "z" else task for task in more.tasks
    ))  # fmt: skip
    program = overwriting(lower(plan(other, machine(1, 0), ["cpu"] * 7)), other, updates)
    early = moved(program, "n", [tasks_of(s) for s in program.lanes[0].steps].index(("z",)))
    with pytest.raises(ProgramError, match="overwrites what was there before the call"):
        check(early, other)
