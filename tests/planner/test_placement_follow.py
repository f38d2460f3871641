"""Where memory is short: runs follow what they read, and come just before they are needed."""

from __future__ import annotations

import pytest
from feasible import problems
from graphs import KB, MS, build, machine, random_dag
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.planner import place
from autopar.planner.candidates import Race
from autopar.planner.lists.memory_first import just_in_time
from autopar.planner.model.instance import Instance
from autopar.planner.model.simulator import Schedule
from autopar.planner.policies import enter_fitting


def remembering(pairs: int, on, *, temporaries_first: bool = False, later: int = 50):
    """A forward that keeps 100 kB for each of its parts, and a backward that reads them and adds up a sum, of `later`
    kB."""
    tasks: dict = {}
    for i in range(pairs):
        tasks |= {f"f{i}": (["x"], MS), f"s{i}": ([f"f{i}"], MS)}
    tasks["loss"] = ([f"s{i}" for i in range(pairs)], MS)
    late = {f"t{i}": ([f"f{i}", "loss"], MS) for i in range(pairs)}
    sums = {f"b{i}": ([f"t{i}", *([f"b{i - 1}"] if i else [])], MS) for i in range(pairs)}
    order = (
        [*late.items(), *sums.items()]
        if temporaries_first
        else [item for pair in zip(late.items(), sums.items()) for item in pair]
    )
    tasks |= dict(order)
    sizes = {
        f"{kind}{i}": size
        for kind, size in (("f", 100 * KB), ("t", later * KB), ("b", later * KB))
        for i in range(pairs)
    }
    return build(tasks, on, nbytes=sizes, outputs=["loss", f"b{pairs - 1}"], deliver="")


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 30), st.integers(1, 4))
def test_every_run_comes_once_and_after_what_it_waits_for(seed, tasks, width):
    instance = Instance(random_dag(seed, tasks, width, 1.0, deliver="cpu"))
    order = just_in_time(instance)
    assert sorted(order) == list(range(instance.clusters))
    place_of = {r: position for position, r in enumerate(order)}
    assert all(place_of[p] < place_of[r] for r in order for p in instance.before[r])


@pytest.mark.slow
def test_a_long_chain_needs_no_recursion():
    count = 10_000
    tasks: dict = {f"c{i}": ([f"c{i - 1}" if i else "x"], MS) for i in range(count)}
    assert just_in_time(Instance(build(tasks, machine(1)))) == list(range(count))


def test_temporaries_come_just_before_they_are_added():
    instance = Instance(remembering(6, machine(1), temporaries_first=True))
    names = [instance.names[r] for r in just_in_time(instance)]
    made = [name for name in names if name[0] in "tb"]
    gaps = [names.index(f"b{i}") - names.index(f"t{i}") for i in range(6)]
    assert max(gaps) <= 2, made


def test_two_devices_do_what_neither_can_alone():
    pairs = 10
    caps = {"cpu": 100 * KB, "emulated:0": 950 * KB, "emulated:1": 950 * KB}
    costed = remembering(pairs, machine(2, memory=caps), temporaries_first=True)
    plan = place(costed)
    assert problems(plan) == []
    assert all(memory.cap is None or memory.peak <= memory.cap for memory in plan.memory)
    assert all(seconds is None for _, seconds in plan.singles)


def test_what_is_remembered_leaves_room_for_temporaries_that_are_larger():
    caps = {"cpu": 100 * KB, "emulated:0": 1475 * KB, "emulated:1": 1475 * KB}
    plan = place(remembering(6, machine(2, memory=caps), later=400), "follow")
    assert problems(plan) == []
    assert all(memory.cap is None or memory.peak <= memory.cap for memory in plan.memory)


def test_backward_runs_are_where_the_forward_left_what_they_read():
    caps = {"cpu": 100 * KB, "emulated:0": 950 * KB, "emulated:1": 950 * KB}
    plan = place(remembering(10, machine(2, memory=caps)), "follow")
    where = {step.cluster: step.device for step in plan.placed}
    apart = [i for i in range(10) if where[f"f{i}"] != where[f"t{i}"]]
    assert len(apart) <= 2 and len({where[f"f{i}"] for i in range(10)}) == 2
    moved = sum(transfer.bytes for transfer in plan.transfers)
    assert moved < 1100 * KB, "what is kept was moved to be read"
    assert problems(plan) == []


def test_what_tighter_caps_cannot_change_is_not_tried_again():
    costed = remembering(4, machine(1, memory={"cpu": 300 * KB, "emulated:0": 300 * KB}))
    instance = Instance(costed)
    rooms: list[float] = []

    def stubborn(instance: Instance, room: float = 1.0) -> Schedule:
        rooms.append(room)
        return Schedule("stubborn", {"cpu/0": instance.names})

    race = Race(instance)
    entry = enter_fitting(race, stubborn)
    assert entry is not None and entry.over and len(race.entries) == 1 and len(rooms) > 1
    # Where the caps are a small part of what is needed, no share of them is worth a schedule.
    small = remembering(4, machine(1, memory={"cpu": 30 * KB, "emulated:0": 30 * KB}))
    rooms.clear()
    hopeless = enter_fitting(Race(Instance(small)), stubborn)
    assert hopeless is not None and hopeless.over and rooms == [1.0]
