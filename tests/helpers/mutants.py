"""Programs with one step gone or moved: each wait and copy deleted, each free of a shared buffer moved too
early, each new copy of state given up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from autopar.ir.program import Compute, Copy, Free, Program, Step, Wait


def mutants(program: Program) -> Iterator[tuple[str, tuple[str, int], Program]]:
    """(what was done, the step it was done to, the program after it)."""
    readers: dict[str, set[str]] = {}
    for lane in program.lanes:
        for step in lane.steps:
            for name in touched(step):
                readers.setdefault(name, set()).add(lane.name)
    for lane in program.lanes:
        for position, step in enumerate(lane.steps):
            rest = lane.steps[:position] + lane.steps[position + 1 :]
            if isinstance(step, (Wait, Copy)):
                yield f"delete {step}", (lane.name, position), with_steps(program, lane.name, rest)
            if isinstance(step, Free) and readers[step.buffer] - {lane.name}:
                own = [
                    at
                    for at, other in enumerate(lane.steps[:position])
                    if shares(program, step.buffer, other)
                ]
                early = own[-1] + 1
                crossed = lane.steps[early:position]
                if any(isinstance(other, Wait) for other in crossed):
                    steps = lane.steps[:early] + (step,) + crossed + lane.steps[position + 1 :]
                    yield f"hoist {step}", (lane.name, position), with_steps(program, lane.name, steps)
    updated = {target for _, target in program.updates}
    for position, (buffer, state) in enumerate(program.keeps):
        # Of what changes between calls a copy is made in each call, so giving one up costs only time.
        if state in updated:
            less = tuple(pair for pair in program.keeps if pair != (buffer, state))
            yield f"give up {buffer}", ("keeps", position), replace(program, keeps=less)


def touched(step: Step) -> tuple[str, ...]:
    """Buffers a step reads or makes."""
    if isinstance(step, Compute):
        return step.reads + step.writes
    return (step.src, step.dst) if isinstance(step, Copy) else ()


def shares(program: Program, buffer: str, step: Step) -> bool:
    """True if a step reads or makes a buffer over the same storage."""
    storage = program.buffer[buffer].storage
    return any(program.buffer[name].storage == storage for name in touched(step))


def with_steps(program: Program, name: str, steps: tuple[Step, ...]) -> Program:
    """The program with other steps in one lane."""
    lanes = tuple(replace(lane, steps=steps) if lane.name == name else lane for lane in program.lanes)
    return replace(program, lanes=lanes)
