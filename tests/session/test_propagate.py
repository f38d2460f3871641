"""What another kind of device makes of a task, without that device: taken over, or an error that says where."""

from dataclasses import replace

import pytest
import torch
from capturing import capture
from fake_devices import gpus
from machines import machine
from torch import library, nn

from autopar.errors import PlanError
from autopar.lowering.check import check
from autopar.lowering.lower import lower
from autopar.session import propagate
from autopar.session.options import Options
from autopar.session.stages import plan_captured


def operator(name, on_gpu, returns="Tensor"):
    """An operator that copies its argument on a CPU, and is said to make `on_gpu(x)` elsewhere."""

    def made(x):
        plain = torch.empty_like(x, memory_format=torch.contiguous_format)
        return on_gpu(x) if x.device.type != "cpu" else plain if returns == "Tensor" else [plain]

    library.define(f"autopar_tests::{name}", f"(Tensor x) -> {returns}")
    library.impl(f"autopar_tests::{name}", "cpu", lambda x: x.clone() if returns == "Tensor" else [x.clone()])
    library.register_fake(f"autopar_tests::{name}", made)
    return getattr(torch.ops.autopar_tests, name)


wider = operator("wider", lambda x: x.new_empty(*x.shape[:-1], x.shape[-1] + 1))
turned = operator("turned", lambda x: x.new_empty(x.shape[::-1]).t())
double = operator("double", lambda x: x.new_empty(x.shape, dtype=torch.float64))
twice = operator("twice", lambda x: [torch.empty_like(x), torch.empty_like(x)], "Tensor[]")
nothing = operator("nothing", lambda x: x.sin().nonzero())


class Calls(nn.Module):
    """An operator between others, in a module of its own."""

    def __init__(self, call, after=torch.relu):
        super().__init__()
        self.inner, self.after = Inner(call), after

    def forward(self, x):
        return self.after(self.inner(x.sin()))


class Inner(nn.Module):
    def __init__(self, call):
        super().__init__()
        self.call = call

    def forward(self, x):
        return self.call(x)


def placed(model, x=None, policy="single cuda:0", on=None, **options):
    x = torch.randn(4, 6) if x is None else x
    with torch.no_grad():
        captured = capture(model, (x,))
        settings = Options(policy=policy, split=None, check="never", **options)
        return captured, plan_captured(captured, on or gpus(), settings, [x])


def made(captured, plan, target):
    """The value of an operator as captured, and as planned."""
    task = next(task for task in plan.costed.graph.tasks if target in task.target)
    return captured.graph.value[task.outputs[0]], plan.costed.graph.value[task.outputs[0]]


@pytest.mark.parametrize(
    "kind", ["cuda", *(pytest.param(kind, marks=pytest.mark.release) for kind in ("mps", "xpu"))]
)
def test_strides_are_taken_over(kind):
    captured, plan = placed(Calls(turned), policy=f"single {kind}:0", on=gpus(kind))
    before, now = made(captured, plan, "turned")
    assert (before.order, now.order) == ((), (1, 0))
    assert replace(now, order=()) == before
    before, now = made(captured, plan, "relu")
    assert now.order == (1, 0)


def test_a_view_that_becomes_a_copy_has_memory_of_its_own():
    captured, plan = placed(Calls(turned, lambda h: h.view(-1) + 1))
    before, now = made(captured, plan, "reshape")
    assert before.storage != before.name
    assert now.storage == now.name
    program = lower(plan)
    check(program, plan.costed.graph)
    buffer = program.buffer[f"{now.name}@cuda:0"]
    assert buffer.storage == buffer.name
    assert plan.peaks["cuda:0"] >= 3 * now.bytes


def test_dtypes_within_are_taken_over_with_their_bytes():
    captured, plan = placed(Calls(double, lambda h: h.half().float()))
    before, now = made(captured, plan, "double")
    assert (before.dtype, now.dtype) == ("float32", "float64")
    assert now.bytes == 2 * before.bytes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "words"),
    [
        (wider, r"makes '\w+' as \[4, 7\] of torch.float32 on cuda:0, \[4, 6\] of torch.float32 where"),
        (lambda x: twice(x)[0], "makes 2 tensors on cuda:0, 1 where"),
    ],
)
def test_another_shape_or_number_is_an_error_that_says_where(call, words):
    with pytest.raises(PlanError, match=words) as caught:
        placed(Calls(call))
    text = str(caught.value)
    assert "autopar_tests." in text
    assert " in inner at " in text
    assert "test_propagate.py:" in text
    assert "pins={'inner': 'cpu'}" in text
    placed(Calls(call), policy="round_robin", pins={"inner": "cpu"})


def test_a_result_of_another_dtype_is_an_error():
    with pytest.raises(PlanError, match=r"of torch\.float64 on cuda:0"):
        placed(Calls(double, lambda h: h))


def test_strides_that_a_task_cannot_take_are_an_error():
    def rows(h):
        return torch.view_as_complex(h.view(4, 3, 2)).real.sum(0)

    placed(Calls(lambda x: x.clone(), rows))
    turned_pairs = operator("turned_pairs", lambda x: x.new_empty(2, 3, 4).permute(2, 1, 0))
    with pytest.raises(PlanError, match=r"view_as_complex.*cannot take the strides.*cuda:0"):
        placed(Calls(lambda x: turned_pairs(x.view(4, 3, 2)), lambda h: torch.view_as_complex(h).real.sum(0)))


def test_places_in_memory_that_is_laid_out_otherwise_are_an_error():
    def diagonal(h):
        return h.as_strided((4,), (7,)) + 1

    placed(Calls(lambda x: x.clone(), diagonal))
    with pytest.raises(PlanError, match=r"as_strided.*reads memory by strides.*cuda:0"):
        placed(Calls(turned, diagonal))


def test_an_operator_that_nothing_is_known_of_keeps_what_was_captured():
    captured, plan = placed(Calls(nothing))
    before, now = made(captured, plan, "nothing")
    assert now == before


def test_devices_of_the_captured_type_cost_nothing(monkeypatch):
    monkeypatch.setattr(propagate, "called", None)
    captured, plan = placed(Calls(wider), policy="round_robin", on=machine())
    assert {p.device for p in plan.placed} <= {"cpu", "emulated:0", "emulated:1"}
    assert propagate.propagated(plan, captured) is plan


@pytest.mark.slow
def test_calls_do_not_grow_with_depth(monkeypatch):
    def calls(depth):
        count = 0

        def counted(*args):
            nonlocal count
            count += 1
            return called(*args)

        called = propagate.called
        with monkeypatch.context() as patch:
            patch.setattr(propagate, "called", counted)
            layers = [layer for _ in range(depth) for layer in (nn.Linear(6, 6), nn.LayerNorm(6), nn.GELU())]
            placed(nn.Sequential(*layers))
        return count

    assert 0 < calls(3) == calls(12)
