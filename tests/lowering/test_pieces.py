"""Pieces: stretches of tasks as one step. Proved as the program was, the same answer in bad orders, nothing lost."""

from __future__ import annotations

import random
from dataclasses import replace

import adversary
import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st
from naive import machine, plan
from program_text import parse
from randoms import random_graph, random_places
from samples import every, given, same, sequential

from autopar.errors import ProgramError
from autopar.ir.graph import Graph, Task
from autopar.ir.program import Compute, Piece, Program, Record, Wait, tasks_of
from autopar.lowering.check import check
from autopar.lowering.lower import lower
from autopar.lowering.rewrites import pieced


def pieces(program: Program) -> list[Piece]:
    return [step for lane in program.lanes for step in lane.steps if isinstance(step, Piece)]


def nothing(_: Task) -> bool:
    return False


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@drawn(st.integers(0, 10**6))
def test_any_program_in_pieces_is_right(seed: int) -> None:
    """Any graph on any lanes, any tasks held back: proved, right in bad orders, and no more memory than was."""
    rng = random.Random(seed)
    made = random_graph(rng, rng.randrange(2, 30))
    free = machine(rng.randrange(1, 4), rng.randrange(0, 3))
    where = random_places(rng, made, [lane for device in free.devices for lane in device.compute_lanes])
    whole = lower(plan(made, free, where, workspace={t.name: 64 for t in made.tasks if rng.random() < 0.1}))
    held = {task.name for task in made.tasks if rng.random() < rng.choice([0.0, 0.2])}
    program = pieced(whole, made, lambda task: task.name in held)
    check(program, made)
    assert parse(str(program)) == program
    ours = [task for lane in program.lanes for step in lane.steps for task in tasks_of(step)]
    assert sorted(ours) == sorted(task.name for task in made.tasks)
    assert not {task for piece in pieces(program) for task in piece.tasks} & held
    tensors = given(made, seed)
    for order in range(3):
        assert same(adversary.run(program, made, None, tensors, order), sequential(made, tensors))


@pytest.mark.parametrize("each", every(), ids=lambda each: each.costed.graph.name)
def test_pieces_are_as_long_as_can_be(each) -> None:
    """Between two pieces of a lane there is an event, a copy, or a task that moves no data."""
    made = each.costed.graph
    # What a piece holds at once may be more than its tasks held in turn.
    program = pieced(replace(lower(each), caps=()), made, nothing)
    check(program, made)
    for lane in program.lanes:
        open_piece = False
        for step in lane.steps:
            if isinstance(step, Piece):
                assert not open_piece
                open_piece = True
            elif isinstance(step, Record | Wait) or (
                isinstance(step, Compute) and made.task[step.task].random
            ):
                open_piece = False
            elif isinstance(step, Compute):
                assert made.task[step.task].free


def chain() -> tuple[Graph, Program]:
    rng = random.Random(3)
    made = random_graph(rng, 12)
    return made, pieced(lower(plan(made, machine(1), ["cpu"])), made, nothing)


def test_invalid_pieces_are_refused() -> None:
    made, program = chain()
    (piece,) = pieces(program)
    lane = program.lanes[0]

    def broken(**changes: object) -> Program:
        steps = tuple(replace(piece, **changes) if step is piece else step for step in lane.steps)
        return replace(program, lanes=(replace(lane, steps=steps),))

    for changes, message in (
        ({"tasks": piece.tasks[::-1]}, "is read before the task that makes it"),
        ({"reads": piece.reads[1:]}, "it reads .*, its tasks"),
        ({"tasks": piece.tasks[:-1]}, "no lane runs task|none of its tasks makes|is read before"),
        ({"tasks": (*piece.tasks, piece.tasks[0])}, "has run before"),
        ({"writes": piece.writes[1:]}, "no step makes"),
    ):
        with pytest.raises(ProgramError, match=message):
            check(broken(**changes), made)
    lent = program.buffer[piece.reads[0]].storage
    roots = {buffer.storage for buffer in program.buffers if buffer.storage != buffer.name}
    own = next(name for name in piece.writes if name not in roots)
    buffers = tuple(replace(b, storage=lent) if b.name == own else b for b in program.buffers)
    with pytest.raises(ProgramError, match="shares storage with"):
        check(replace(program, buffers=buffers), made)
