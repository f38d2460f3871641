"""Every step that keeps a program right is needed, is known to be needed, and is missed in a real run.

The check must flag a program with a wait or copy deleted, a free moved too early or a new copy of state given
up, unless it had named that step redundant before; and since a check that flags everything would pass that, an
adversary must find a wrong answer where it flags, and none where it does not.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import adversary
import pytest
from mutants import mutants, with_steps
from naive import machine, plan
from randoms import random_graph, random_places, training
from redundant import redundant
from samples import every, given, same, sequential

from autopar.errors import MemoryCapError, ProgramError
from autopar.ir.graph import Graph
from autopar.ir.plan import Plan
from autopar.ir.program import Program, Wait
from autopar.lowering.check import check
from autopar.lowering.lower import lower

SEEDS = 100
PLANS = {f"{index} {plan.costed.graph.name}": plan for index, plan in enumerate(every())}


def flagged(program: Program, graph: Graph) -> bool:
    try:
        check(program, graph)
    except ProgramError:
        return True
    return False


def wrong(program: Program, graph: Graph, seeds: range) -> int | None:
    """The first seed with a wrong answer."""
    tensors, turns = given(graph), 2 if program.keeps or graph.carried else 1
    right = sequential(graph, tensors, turns)
    for seed in seeds:
        try:
            if not same(adversary.run(program, graph, None, tensors, seed, turns), right):
                return seed
        except adversary.Violation:
            return seed
    return None


@pytest.mark.parametrize("each", PLANS.values(), ids=PLANS)
def test_intact_programs_are_right_in_every_order(each: Plan) -> None:
    program, graph = lower(each), each.costed.graph
    assert redundant(program, graph) == ()
    assert wrong(program, graph, range(30)) is None


@pytest.mark.slow
def test_every_deletion_is_flagged_and_the_adversary_finds_it() -> None:
    found = missed = 0
    misses = []
    for name, each in PLANS.items():
        program, graph = lower(each), each.costed.graph
        for what, (lane, position), mutant in mutants(program):
            assert flagged(mutant, graph), f"{name}: {what} at step {position} of {lane} is not flagged"
            if wrong(mutant, graph, range(SEEDS)) is None:
                missed += 1
                misses.append((name, lane, position, what))
            else:
                found += 1
    assert found > 200
    assert found >= 0.95 * (found + missed), misses


@pytest.mark.slow
def test_random_programs_too() -> None:
    """The same for random graphs of views, several outputs and carried state, scattered over
    lanes, some capped.
    """
    found = missed = 0
    for seed in range(16):
        rng = random.Random(seed)
        tasks = rng.randrange(4, 16)
        graph = training(rng, tasks) if seed >= 12 else random_graph(rng, tasks)
        lanes, accelerators = rng.randrange(1, 4), rng.randrange(1, 3)
        free = machine(lanes, accelerators)
        where = random_places(rng, graph, [lane for device in free.devices for lane in device.compute_lanes])
        programs = [lower(plan(graph, free, where))]
        caps = {peak.device: int(peak.bytes * 0.85) for peak in check(programs[0]) if rng.random() < 0.5}
        with contextlib.suppress(MemoryCapError):
            programs.append(lower(plan(graph, machine(lanes, accelerators, caps), where)))
        for program in programs:
            assert redundant(program, graph) == ()
            for what, at, mutant in mutants(program):
                assert flagged(mutant, graph), (seed, what, at)
                seen = wrong(mutant, graph, range(SEEDS)) is not None
                found, missed = found + seen, missed + (not seen)
    assert found > 100
    assert found >= 0.95 * (found + missed)


def padded(program: Program) -> Iterator[tuple[Program, tuple[str, int]]]:
    """The program with one wait more that nothing needs, at each place where an event can be waited for a
    second time.
    """
    for lane in program.lanes:
        for position, step in enumerate(lane.steps):
            if isinstance(step, Wait):
                for later in {position + 1, len(lane.steps)}:
                    steps = lane.steps[:later] + (step,) + lane.steps[later:]
                    yield with_steps(program, lane.name, steps), (lane.name, later)


@pytest.mark.slow
@pytest.mark.parametrize("each", [PLANS["9 orders"]])
def test_what_is_not_needed_is_named_and_not_missed(each: Plan) -> None:
    program, graph = lower(each), each.costed.graph
    for more, added in padded(program):
        named = redundant(more, graph)
        assert added in named
        for what, at, mutant in mutants(more):
            assert flagged(mutant, graph) == (at not in named), (what, at)
            if at in named and at != added:
                assert wrong(mutant, graph, range(12)) is None, (what, at)
