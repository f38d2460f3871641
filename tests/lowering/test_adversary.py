"""The adversary: right programs survive it, poison reads as poison, and every order it takes is permitted."""

from __future__ import annotations

import adversary
import pytest
import torch
from mutants import with_steps
from naive import machine, plan, value
from samples import R, given, graph, op, towers

from autopar.ir.program import Copy, Free, Record
from autopar.lowering.lower import lower


def poisoned(dtype: str, target: str = "aten.clone.default") -> torch.Tensor:
    """What a task reads when the copy of its input is gone."""
    values = [value("x", kind="input", dtype=dtype), value("a_", dtype=dtype)]
    made = graph("poison", values, [op("a", target, R("x"))], ("a_",))
    program = lower(plan(made, machine(), ["emulated:0"]))
    lane = program.lane["emulated:0/in"]
    steps = tuple(step for step in lane.steps if not isinstance(step, Copy))
    tensors = {"x": torch.zeros(4, 4, dtype=getattr(torch, dtype))}
    return adversary.run(with_steps(program, lane.name, steps), made, None, tensors, 0)[0][0]


def test_poison_of_every_kind() -> None:
    assert poisoned("float32").isnan().all()
    assert poisoned("complex64").isnan().all()
    assert (poisoned("int64") == torch.iinfo(torch.int64).max).all()
    assert poisoned("bool").any()


def test_a_view_of_freed_memory_is_poison() -> None:
    """An alias that the graph does not know of is found out: the base is overwritten when it is freed."""
    values = [value("x", kind="input"), value("v")]
    tasks = [
        op("a", "aten.sin.default", R("x")),
        op("v", "aten.t.default", R("a_"), ("v",)),
        op("b", "aten.cos.default", R("v")),
    ]
    made = graph("hidden alias", values, tasks, ("b_",))
    program = lower(plan(made, machine(), ["cpu"]))
    assert adversary.run(program, made, None, given(made), 0)[0][0].isnan().all()


def test_memory_and_deadlock_are_violations() -> None:
    each = towers({"emulated:0": 64 * 4, "emulated:1": 64 * 4})
    made, program = each.costed.graph, lower(each)
    lane = program.lane["emulated:0/0"]
    late = tuple(s for s in lane.steps if not isinstance(s, Free)) + tuple(
        s for s in lane.steps if isinstance(s, Free)
    )
    with pytest.raises(adversary.Violation, match="over its cap of 256"):
        adversary.run(with_steps(program, lane.name, late), made, None, given(made), 0)
    mute = tuple(s for s in lane.steps if not isinstance(s, Record))
    with pytest.raises(adversary.Violation, match="no lane can go on"):
        adversary.run(with_steps(program, lane.name, mute), made, None, given(made), 0)


def test_every_permitted_interleaving_of_two_steps_is_taken() -> None:
    """Two lanes that nothing orders: some seeds run one first, some the other."""
    tasks = [op("a", "note_a", R("x")), op("b", "note_b", R("x"))]
    made = graph("two", [value("x", kind="input")], tasks, ("a_", "b_"))
    program = lower(plan(made, machine(2, 0), {"a": "cpu/0", "b": "cpu/1"}))
    seen = set()
    for seed in range(20):
        order: list[str] = []
        calls = {f"note_{n}": lambda x, n=n, order=order: (order.append(n), x.clone())[1] for n in "ab"}
        adversary.run(program, made, calls, given(made), seed)
        seen.add("".join(order))
    assert seen == {"ab", "ba"}
