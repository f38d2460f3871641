"""The executor on hand-made programs: same answer, errors, threads, state, updates."""

from __future__ import annotations

import gc
import threading
import traceback
from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch
from runtime_cases import THREADS, Case, mlp

from autopar.errors import RunError
from autopar.ir.graph import Const, Ref
from autopar.runtime.bind_program import Assembly
from autopar.runtime.lane_threads import intra_op_threads
from autopar.runtime.lanes import accelerator

PLACES = [
    ("cpu/0", "cpu/0", "cpu/0"),
    ("cpu/0", "cpu/1", "cpu/0"),
    ("cpu/1", "cpu/1", "cpu/1"),
    ("emulated:0/0", "emulated:1/0", "cpu/0"),
    ("cpu/0", "emulated:0/0", "emulated:1/0"),
]


EARLIER: set[threading.Thread] = set()
"""Threads of tests of other files."""


def threads() -> list[str]:
    alive = set(threading.enumerate()) - EARLIER
    return sorted(thread.name for thread in alive if thread.name.startswith("autopar"))


@pytest.fixture(scope="module", autouse=True)
def little_to_go_through():
    """What tests of other files left is not looked at by each of the many collections of this one."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_thread_is_left():
    gc.collect()
    EARLIER.clear()
    EARLIER.update(threading.enumerate())
    yield
    gc.collect()
    assert not threads()


@pytest.mark.slow
@pytest.mark.parametrize("places", PLACES)
@torch.no_grad()
def test_equal_to_eager_bit_by_bit(places):
    case, x, eager = mlp(*places)
    executor = case.executor()
    for _ in range(5):
        x = torch.randn_like(x)
        (y,) = executor([x])
        assert torch.equal(y, eager(x))


@pytest.mark.slow
@torch.no_grad()
def test_one_lane_is_run_in_the_callers_thread():
    seen = []
    case = Case(outputs=("y",), calls={"spy": lambda x: seen.append(threading.current_thread()) or x + 1})
    executor = case.task("cpu/0", "y", "spy", Ref("x")).executor()
    executor([torch.zeros(2)])
    assert seen == [threading.current_thread()] and not threads()


def failing(*lanes: str) -> tuple[Case, list[bool]]:
    """Three tasks on three lanes, of which the second fails while the list says so."""
    fail = [True]

    def call(x):
        if fail[0]:
            raise ValueError("no such luck")
        return x * 2

    case = Case(outputs=("c",), calls={"maybe": call})
    case.task(lanes[0], "a", "aten.neg.default", Ref("x")).task(lanes[1], "b", "maybe", Ref("a"))
    return case.task(lanes[2], "c", "aten.neg.default", Ref("b")), fail


@pytest.mark.slow
@pytest.mark.parametrize("lanes", PLACES)
@torch.no_grad()
def test_a_failing_task_is_named_and_the_next_call_works(lanes):
    case, fail = failing(*lanes)
    executor, x = case.executor(), torch.randn(4, 4)
    for record in (False, True):
        for _ in range(3):
            fail[0] = True
            with pytest.raises(RunError) as caught:
                executor.run([x], record=record)
            text = str(caught.value)
            for part in ("'b'", "net.b", "net.py:7", lanes[1], "ValueError: no such luck"):
                assert part in text
            assert isinstance(caught.value.__cause__, ValueError)
            shown = "".join(traceback.format_exception(caught.value.__cause__))
            assert "# task 'b' (maybe) in net.b at net.py:7" in shown, "the line of the generated code"
            fail[0] = False
            assert torch.equal(executor.run([x], record=record)[0][0], x * 2)


@pytest.mark.slow
@torch.no_grad()
def test_updates_are_written_only_after_success():
    count = torch.zeros(4, 4)
    case, fail = failing("cpu/0", "cpu/1", "emulated:0/0")
    case.state = {"count": count}
    case.task("emulated:0/0", "next", "aten.add.Tensor", Ref("count"), 1.0)
    case.task("cpu/0", "moved", "aten.mul.Tensor", Ref("x"), 3.0)
    case.updates = (("next", "count"), ("moved", "x"))
    executor, x = case.executor(), torch.ones(4, 4)
    with pytest.raises(RunError):
        executor([x])
    assert torch.equal(count, torch.zeros(4, 4)) and torch.equal(x, torch.ones(4, 4))
    fail[0] = False
    (c,) = executor([x])
    assert torch.equal(c, torch.full((4, 4), 2.0))
    assert torch.equal(count, torch.ones(4, 4)) and torch.equal(x, torch.full((4, 4), 3.0))


def modes(lane: str) -> tuple[Case, list]:
    seen: list = []

    def look(x):
        state = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")
        seen.append((*state, torch.get_num_threads()))
        return x + 1

    case = Case(outputs=("y",), calls={"look": look}).task("cpu/0", "a", "aten.neg.default", Ref("x"))
    return case.task(lane, "y", "look", Ref("a")), seen


@pytest.mark.parametrize("lane", ["cpu/0", "cpu/1", "emulated:0/0"])
def test_tasks_run_without_autograd_and_autocast_and_in_the_callers_inference_mode(lane):
    case, seen = modes(lane)
    executor, x = case.executor(), torch.zeros(2)
    assert not executor([x])[0].is_inference()
    with torch.inference_mode():
        assert executor([x])[0].is_inference()
    with torch.autocast("cpu", torch.float16), torch.device("meta"):
        executor([x])
    executor([x])
    plain = (False, False, False, THREADS)
    assert seen == [plain, (False, True, *plain[2:]), plain, plain]
    assert torch.is_grad_enabled() and torch.get_num_threads() == THREADS


@pytest.mark.parametrize("lane", ["cpu/0", "cpu/1"])
@torch.no_grad()
def test_a_call_from_inside_the_call_is_refused(lane):
    inner: list = []
    case = Case(outputs=("y",), calls={"again": lambda x: inner[0]([x])[0]})
    case.task("cpu/0", "a", "aten.neg.default", Ref("x")).task(lane, "y", "again", Ref("a"))
    inner.append(case.executor())
    with pytest.raises(RunError, match="from inside its own call"):
        inner[0]([torch.zeros(2)])
    inner[0].close()


@torch.no_grad()
def test_unpacked_outputs_constants_and_odd_arguments():
    case = Case(outputs=("p", "n", "u", "z"), values={"x": torch.zeros(4, 4)})
    case.task(
        "cpu/1", "s", "aten.split_with_sizes.default", Ref("x"), (1, 3), 1, outputs=("p", "q"), unpack=True
    )
    case.task("emulated:0/0", "n", "aten.nan_to_num.default", Ref("q"), float("inf"))
    case.task("cpu/0", "u", "aten.uniform.default", Ref("x"), kwargs=(("from", 2.0), ("to", 2.0)))
    case.task(
        "emulated:0/0",
        "z",
        "aten.full.default",
        (2, 2),
        1,
        kwargs=(("dtype", Const("torch.int16")), ("device", Const("device"))),
    )
    x = torch.randn(4, 4)
    p, n, u, z = case.executor()([x])
    assert torch.equal(p, x[:, :1]) and torch.equal(n, x[:, 1:])
    assert torch.equal(u, torch.full((4, 4), 2.0)) and z.dtype == torch.int16


@pytest.mark.slow
@torch.no_grad()
def test_thousands_of_steps():
    case, before = Case(), "x"
    for i in range(4_000):
        case.task("cpu/0" if i % 100 < 50 else "cpu/1", f"v{i}", "aten.neg.default", Ref(before))
        before = f"v{i}"
    case.outputs = (before,)
    executor, x = case.executor(), torch.randn(4, 4)
    assert torch.equal(executor([x])[0], x)
    executor.close()


class Stubborn(torch.Tensor):
    """A tensor that nobody can copy."""

    def clone(self, **_):
        raise ValueError("not to be copied")


@torch.no_grad()
def test_a_copy_that_fails_is_named():
    case, x, eager = mlp("emulated:0/0", "emulated:0/0", "emulated:0/0")
    executor = case.executor()
    message = (
        r"the copy of x@cpu to x@emulated:0 failed on emulated:0 \(lane emulated:0/in\): ValueError: not to"
    )
    with pytest.raises(RunError, match=message):
        executor([x.as_subclass(Stubborn)])
    torch.testing.assert_close(executor([x])[0], eager(x))
    executor.close()


@pytest.mark.parametrize(("last", "threads"), [("cuda:0/0", 5), ("cpu/0", 1)], ids=["idle host", "busy host"])
def test_transfers_are_staged_with_the_threads_of_an_idle_host(monkeypatch, last, threads):
    monkeypatch.setattr(accelerator, "stream", lambda lane, device: Mock())
    monkeypatch.setattr(torch, "Event", Mock())
    captured, plan, program = mlp("cuda:0/0", "cuda:0/0", last)[0].build()
    machine = plan.costed.machine
    devices = tuple(replace(each, threads=5 if each.name == "cpu" else 1) for each in machine.devices)
    costed = replace(plan.costed, machine=replace(machine, devices=devices))
    assembly = Assembly(captured, replace(plan, costed=costed), program)
    found = {lane.lane.device: count for lane, count in intra_op_threads(assembly).items()}
    assert found["cuda:0"] == threads and found.get("cpu", 5) == 5
