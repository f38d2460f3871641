"""The adversary: right programs survive it, poison reads as poison, and every order it takes is permitted."""

from __future__ import annotations

import adversary
import pytest
import torch
from mutants import with_steps
from naive import machine, plan, value
from samples import R, diamond, given, graph, mlp, op, orders, towers, updates

from autopar.ir.graph import Ref, Task
from autopar.ir.program import Copy, Free, Record
from autopar.lowering.lower import lower


def test_same_seed_same_run() -> None:
    program, made = lower(diamond()), diamond().costed.graph
    lane = program.lanes[-1]
    broken = with_steps(program, lane.name, tuple(s for s in lane.steps if not isinstance(s, Copy)))
    first, second = (adversary.run(broken, made, None, given(made), 5) for _ in range(2))
    assert str(first) == str(second)


@pytest.mark.parametrize("make", [mlp, orders, updates])
def test_the_caller_keeps_what_he_gave(make) -> None:
    """In-place tasks and frees work on clones."""
    made = make().costed.graph
    tensors = given(made)
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    adversary.run(lower(make()), made, None, tensors, 0)
    assert all(torch.equal(tensors[name], before[name]) for name in before)


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


def test_objects_pass_and_are_poisoned() -> None:
    """A Python value is copied as it is; freed, it is a word that no operator takes."""
    calls = {"length": lambda x: x.shape[0], "fill": lambda x, n: x * n}
    values = [value("x", kind="input"), value("n_", (), dtype="object")]
    tasks = [op("n", "length", R("x")), op("f", "fill", R("x", "n_"))]
    made = graph("objects", values, tasks, ("f_",))
    program = lower(plan(made, machine(), ["cpu", "emulated:0"]))
    tensors = {"x": torch.ones(4, 4)}
    assert torch.equal(adversary.run(program, made, calls, tensors, 3)[0][0], torch.full((4, 4), 4.0))
    lane = program.lane["emulated:0/in"]
    steps = tuple(step for step in lane.steps if step != Copy("n_@cpu", "n_@emulated:0"))
    with pytest.raises(adversary.Violation, match="task 'f'"):
        adversary.run(with_steps(program, lane.name, steps), made, calls, tensors, 3)


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


def test_indexing_with_poison_is_a_violation() -> None:
    values = [value("x", kind="input"), value("i", (2,), kind="input", dtype="int64"), value("s_", (2, 4))]
    task = Task("s", "aten.index_select.default", (Ref("x"), 0, Ref("i")), (), ("s_",))
    made = graph("index", values, [task], ("s_",))
    program = lower(plan(made, machine(), ["emulated:0"]))
    lane = program.lane["emulated:0/in"]
    steps = tuple(step for step in lane.steps if step != Copy("i@cpu", "i@emulated:0"))
    tensors = {"x": torch.ones(4, 4), "i": torch.tensor([0, 1])}
    with pytest.raises(adversary.Violation, match="task 's'"):
        adversary.run(with_steps(program, lane.name, steps), made, None, tensors, 0)


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
