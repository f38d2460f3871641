"""Copies of state: one pool for all programs, refreshed when state changed, replaced when the call changed it."""

from __future__ import annotations

import gc
import operator
import weakref
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from naive import machine, plan, value
from samples import R, graph, on, op, step
from stale import stale

from autopar.ir.graph import Graph
from autopar.lowering.check import check
from autopar.lowering.lower import lower
from autopar.runtime import replicas
from autopar.runtime.executor import Executor
from autopar.runtime.flat_transfer import bring
from autopar.runtime.replicas import Replicas

CPU = torch.device("cpu")
FIRST, SECOND = "emulated:0", "emulated:1"


def executor(made: Graph, state: dict, where, pool=None, calls=None, caps=None) -> Executor:
    each = plan(made, machine(caps=caps), where)
    program = lower(each)
    check(program, made)
    captured = SimpleNamespace(
        graph=made, state={name: (state, name) for name in made.state}, calls=calls or {}, home=CPU, sizes=()
    )
    return Executor(captured, each, program, pool)


def after(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.sin(x @ w) + torch.tanh(x @ w)


def reading(where: str = FIRST, spy: list | None = None) -> tuple[Graph, list[str], dict]:
    """Y = w as it is read on a device."""
    target = "look" if spy is not None else "aten.clone.default"
    calls = {"look": lambda w: (spy.append(w), w.clone())[1]} if spy is not None else {}
    values = [value("x", kind="input"), value("w", kind="state")]
    return graph("read", values, [op("y", target, R("w"))], ("y_",)), [where], calls


@pytest.mark.parametrize("where", ["cpu", FIRST, SECOND])
@torch.no_grad()
def test_five_steps_are_the_plain_loop_and_move_nothing_but_what_the_plan_says(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []

    def spy(tensors: list[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
        counts.append(len(tensors))
        return bring(tensors, device)

    monkeypatch.setattr(replicas, "bring", spy)
    state = {"w": torch.nn.Parameter(torch.randn(4, 4))}
    own, w = state["w"], state["w"].clone()
    pool = Replicas()
    run = executor(step(), state, on(where), pool)
    for _ in range(5):
        x = torch.randn(4, 4)
        (g,) = run([x])
        assert torch.equal(g, after(x, w))
        w = w - g
        assert torch.equal(own, w) and state["w"] is own
        assert stale(pool) == []
    assert counts == [1, 1], "one for each device, before the first call"
    run.close()


@torch.no_grad()
def test_a_copy_out_of_date_is_given_up_though_only_another_program_reads_it() -> None:
    state, pool = {"w": torch.randn(4, 4)}, Replicas()
    looks = []
    for device in (FIRST, SECOND):
        made, where, calls = reading(device)
        looks.append(executor(made, state, where, pool, calls))
    x = torch.randn(4, 4)
    for look in looks:
        look([x])
    assert sorted(device for device, _ in pool.there()) == [FIRST, SECOND]
    state["w"].add_(1)
    looks[0]([x])
    assert [device for device, _ in pool.there()] == [FIRST]
    assert torch.equal(looks[1]([x])[0], state["w"])
    for look in looks:
        look.close()


@pytest.mark.slow
@torch.no_grad()
def test_unread_copies_are_freed() -> None:
    seen: list = []
    state, pool = {"w": torch.randn(4, 4)}, Replicas()
    made, where, calls = reading(FIRST, seen)
    look = executor(made, state, where, pool, calls)
    look([torch.zeros(4, 4)])
    old = weakref.ref(seen.pop())
    assert old() is not None
    state["w"].add_(1)
    look([torch.zeros(4, 4)])
    assert old() is None, "replaced"
    last = weakref.ref(seen.pop())
    look.close()
    del look
    gc.collect()
    assert last() is None and stale(pool) == []


@torch.no_grad()
def test_results_and_copies_are_apart() -> None:
    """An update that is also an output, left where it was made: what the caller does to his does no harm."""
    made = replace(step(), outputs=("n_", "g_"))
    each = plan(made, machine(), on(FIRST), deliver=FIRST)
    program = lower(each)
    check(program, made)
    assert program.outputs[0] == f"n_@{FIRST}"
    state = {"w": torch.randn(4, 4)}
    captured = SimpleNamespace(graph=made, state={"w": (state, "w")}, calls={}, home=CPU, sizes=())
    run = Executor(captured, each, program)
    for _ in range(3):
        x, w = torch.randn(4, 4), state["w"].clone()
        new, _ = run([x])
        assert torch.equal(new, w - after(x, w))
        new.zero_()
    run.close()


def test_copies_brought_in_inference_mode_serve_a_backward() -> None:
    state, pool, seen = {"w": torch.randn(4, 4)}, Replicas(), []
    run = executor(reading(FIRST)[0], state, [FIRST], pool)
    with torch.inference_mode():
        run([torch.zeros(4, 4)])
    reads, where, calls = reading(FIRST, seen)
    look = executor(reads, state, where, pool, calls)
    with torch.no_grad():
        look([torch.zeros(4, 4)])
    assert not seen[0].is_inference()
    run.close()
    look.close()


CHANGES = {
    "write": lambda state, key: state[key].add_(1),
    "replace": lambda state, key: state.update({key: state[key] + 1}),
    "move": lambda state, key: setattr(state[key], "data", state[key] + 1),
    "cast": lambda state, key: state.update({key: state[key].to(torch.float64) + 1}),
    "turn": lambda state, key: state.update({key: state[key].t() * 2}),
    "nothing": lambda state, key: None,
}


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.data())
@torch.no_grad()
def test_whatever_happens_to_state_its_copies_are_right_and_none_is_made_twice(data) -> None:
    state = {f"w{i}": torch.randn(2 + i, 3) for i in range(3)}
    pool = Replicas()
    copies = {
        (key, device): pool.replica(pool.master(state, key), device, CPU)
        for key in state
        for device in (FIRST, SECOND)
    }
    masters = list(dict.fromkeys(copy.master for copy in copies.values()))
    for _ in range(data.draw(st.integers(1, 8))):
        key = data.draw(st.sampled_from(sorted(state)))
        CHANGES[data.draw(st.sampled_from(sorted(CHANGES)))](state, key)
        wanted = data.draw(st.lists(st.sampled_from(sorted(copies)), unique=True))
        chosen = [copies[at] for at in wanted]
        tensors = pool.fill(chosen, masters, chosen)
        assert all(map(operator.is_, pool.fill(chosen, masters, chosen), tensors))
        for (name, _), tensor in zip(wanted, tensors, strict=True):
            master = state[name]
            assert torch.equal(tensor, master) and tensor.dtype == master.dtype
            assert tensor.stride() == master.stride() and tensor.data_ptr() != master.data_ptr()
        # A call that updates one: the new value at home, and kept on one device.
        if data.draw(st.booleans()):
            new = state[key] * 3
            state[key].copy_(new)
            pool.keep([(copies[key, FIRST], new)])
            for device in (FIRST, SECOND):
                (copy,) = pool.fill([copies[key, device]], masters, [copies[key, device]])
                assert torch.equal(copy, new) and (copy is new) == (device == FIRST)
        assert stale(pool) == []


@torch.no_grad()
def test_a_step_moves_nothing_but_what_it_wrote() -> None:
    weight, frozen = (torch.nn.Parameter(torch.randn(4, 4)) for _ in range(2))
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9, fused=True)
    weight.grad = torch.ones(4, 4)
    optimizer.step()
    optimizer.state["steps"] = 1
    owner, pool = {"w": weight, "frozen": frozen}, Replicas()
    owners = {"w": owner, "frozen": owner, "momentum_buffer": optimizer.state[weight]}
    masters = [pool.master(held, key) for key, held in owners.items()]
    copies = [pool.replica(master, FIRST, CPU) for master in masters]
    before = pool.fill(copies, masters, copies)
    torch.optim.SGD([torch.nn.Parameter(torch.ones(4))], lr=0.1).step()
    assert all(map(operator.is_, pool.fill(copies, masters, copies), before)), (
        "the optimizer of another model"
    )
    optimizer.step()
    found = pool.fill(copies, masters, copies)
    assert [now is was for now, was in zip(found, before)] == [False, True, False]
    assert torch.equal(found[0], weight)
    assert torch.equal(found[2], optimizer.state[weight]["momentum_buffer"])
