"""Where memory is short: runs follow what they read, and come just before they are needed."""

from __future__ import annotations

from feasible import problems
from graphs import KB, MS, build, machine

from autopar.planner import place
from autopar.planner.lists.memory_first import just_in_time
from autopar.planner.model.instance import Instance


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
