"""Holding a run against eager: what it must let through, what it must stop, and what it must leave as it was."""

import contextlib
import math

import pytest
import torch
from dynamo_graphs import served
from torch import nn

import autopar
from autopar.ir.device import Device
from autopar.ir.machine import Machine
from autopar.session.compare import Snapshot, coarse, error, limit
from autopar.session.compiled_graph import CompiledGraph
from autopar.session.eager_check import Eager


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


def test_nan_and_infinity_equal_themselves_alone():
    nan, inf = math.nan, math.inf
    a = torch.tensor([1.0, nan, inf, -inf])
    assert error(a.clone(), a) == 0.0
    for wrong in ([1.0, 2.0, inf, -inf], [1.0, nan, -inf, -inf], [nan, nan, inf, -inf]):
        assert error(torch.tensor(wrong), a) == inf
    assert error(torch.full((2,), nan), torch.full((2,), nan)) == 0.0


def test_error_is_relative_to_the_largest_reference():
    reference = torch.tensor([100.0, 0.0])
    assert error(torch.tensor([100.0, 1e-4]), reference) == pytest.approx(1e-6)
    assert error(torch.zeros(3), reference) == math.inf
    assert error(reference.double(), reference) == math.inf
    assert error(torch.tensor([1, 2]), torch.tensor([1, 3])) == math.inf
    assert error(torch.zeros(0), torch.zeros(0)) == 0.0
    assert limit(torch.zeros(1, dtype=torch.int64)) == 0.0 < limit(reference)


@pytest.mark.parametrize("wrong", [0, 1])
def test_float64_lets_rounding_through_and_nothing_else(wrong):
    class Cancel(nn.Module):
        def forward(self, x):
            return (x + 1e6).sum(1) - 1e6 * x.shape[1]

    torch.manual_seed(0)
    model, x = Cancel(), torch.rand(64, 33)
    graph, prepared, args = served(model, x)
    reference = Eager(prepared.captured, graph.module, args)
    other = x.flip(1).add(1e6).sum(1) - 1e6 * x.shape[1]
    assert error(other, model(x)) > limit(other)
    if wrong:
        with pytest.raises(autopar.DifferenceError):
            reference.judge([other * 10 + 100])
    else:
        reference.judge([other])


@pytest.mark.parametrize("wrong", [0.0, 1e-6])
def test_a_result_that_is_zero_but_for_rounding_is_judged_by_what_went_into_it(wrong):
    class Centred(nn.Module):
        def forward(self, x):
            x = x - x.mean(1, keepdim=True)
            return x, x.mean((1, 2))

    def flipped(x):
        return x.flip(2).mean((1, 2)) + wrong

    torch.manual_seed(0)
    model, refused = Centred(), 0
    for _ in range(20):
        x = torch.randn(1, 7, 4)
        graph, prepared, args = served(model, x)
        centred = model(x)[0]
        try:
            Eager(prepared.captured, graph.module, args).judge([centred, flipped(centred)])
        except autopar.DifferenceError:
            refused += 1
    assert refused == (20 if wrong else 0)


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x):
        return nn.functional.dropout(self.norm(x), 0.5, training=True)


def test_a_reference_changes_nothing_of_the_callers():
    model, x = Norm().train(), torch.randn(8, 4)
    graph, prepared, args = served(model, x)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.manual_seed(3)
    state = torch.get_rng_state()
    reference = Eager(prepared.captured, graph.module, args)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    mean = next(v for k, v in reference.updates.items() if "running_mean" in k)
    assert not torch.equal(mean, before["norm.running_mean"])


def test_a_wrong_answer_is_named_and_the_signature_forgotten(monkeypatch):
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval(), torch.randn(3, 4)
    fast = autopar.compile(model, ["cpu"])
    run = CompiledGraph.run
    monkeypatch.setattr(CompiledGraph, "run", lambda *call: [found + 1 for found in run(*call)])
    with pytest.raises(
        autopar.DifferenceError, match=r"output 0 is not eager's: error .*placed execution is at fault"
    ):
        fast(x)
    monkeypatch.undo()
    assert torch.equal(fast(x), model(x))


class Masked(nn.Module):
    def forward(self, x, rows):
        mask = (1.0 - rows.float())[:, None] * torch.finfo(torch.float32).min
        return torch.softmax(x @ x.transpose(1, 2) + mask, -1) @ x


class Largest(nn.Module):
    def forward(self, x):
        return x * (x == x.amax(-1, keepdim=True))


class Classes(nn.Module):
    def forward(self, x):
        counted = nn.functional.one_hot(x.relu().round().long(), 8).float()
        return counted + torch.floor(x.round() * 2)[..., None]


INEXACT = {
    "masked": (Masked(), (torch.linspace(-1, 1, 60).view(3, 5, 4), torch.ones(3, 5, dtype=torch.long))),
    "largest": (Largest(), (torch.linspace(-1, 1, 24).view(4, 6),)),
    "classes": (Classes(), (torch.linspace(-2, 2, 24).view(4, 6),)),
}
"""Models whose results would be others if numbers that are exact, such as the ones of a mask, were not."""


@pytest.mark.parametrize("factor", [1.01, 0.0, -1.0])
@pytest.mark.parametrize("name", INEXACT)
def test_numbers_that_are_exact_give_no_room_for_wrong_answers(monkeypatch, name, factor):
    model, args = INEXACT[name]
    fast, run = autopar.compile(model, ["cpu"]), CompiledGraph.run
    monkeypatch.setattr(CompiledGraph, "run", lambda *call: [found * factor for found in run(*call)])
    with pytest.raises(autopar.DifferenceError, match="output 0 is not eager's"):
        fast(*args)


STATED = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-2, torch.bfloat16: 2e-2}
"""Tolerance that docs/limits.md allows a sum of parts; half precision by a few of its last bits."""


@pytest.mark.parametrize("dtype", STATED, ids=str)
@pytest.mark.parametrize("share", [0.5, 2.0])
def test_the_first_call_may_be_off_by_what_is_stated_and_no_more(monkeypatch, dtype, share):
    """The largest entry is off by a share of what is allowed."""
    model, x = nn.Linear(4, 4).to(dtype), torch.randn(3, 4, dtype=dtype)
    fast, run = autopar.compile(model, ["cpu"]), CompiledGraph.run

    def bent(*call):
        (output,) = run(*call)
        largest = output.abs().argmax()
        output.view(-1)[largest] *= 1 + share * STATED[dtype]
        return [output]

    monkeypatch.setattr(CompiledGraph, "run", bent)
    if share < 1:
        assert error(fast(x), model(x)) > 0
    else:
        with pytest.raises(autopar.DifferenceError, match="output 0 is not eager's"):
            fast(x)


@pytest.mark.parametrize("drop", [0.0, 0.5])
@pytest.mark.parametrize("off", [1e-9, 1e-3])
def test_an_answer_that_was_converted_is_as_precise_as_what_it_was_computed_from(monkeypatch, drop, off):
    class Converted(nn.Sequential):
        def forward(self, x):
            return super().forward(x).double()

    torch.manual_seed(0)
    fast, run = autopar.compile(Converted(nn.Dropout(drop), nn.Linear(64, 4)), ["cpu"]), CompiledGraph.run
    monkeypatch.setattr(CompiledGraph, "run", lambda *call: [found * (1 + off) for found in run(*call)])
    if off < 1e-5:
        fast(torch.randn(3, 64))
    else:
        with pytest.raises(autopar.DifferenceError, match="output 0 is not eager's"):
            fast(torch.randn(3, 64))


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.5, 2.0])
def test_a_change_of_state_may_be_off_by_as_much(monkeypatch, share):
    model, x = nn.BatchNorm1d(4), torch.randn(8, 4)
    fast, run = autopar.compile(model, ["cpu"]), CompiledGraph.run

    def bent(*call):
        output = run(*call)
        model.running_var *= 1 + share * STATED[torch.float32]
        return output

    monkeypatch.setattr(CompiledGraph, "run", bent)
    if share < 1:
        fast(x)
    else:
        with pytest.raises(autopar.DifferenceError, match="running_var is not eager's"):
            fast(x)


def test_planning_ahead_does_not_use_up_the_check(monkeypatch):
    model, x = nn.Linear(4, 4), torch.randn(3, 4)
    fast, run = autopar.compile(model, ["cpu"], example_inputs=(x,)), CompiledGraph.run
    monkeypatch.setattr(CompiledGraph, "run", lambda *call: [found + 1 for found in run(*call)])
    with pytest.raises(autopar.DifferenceError):
        fast(x)
    monkeypatch.undo()
    assert torch.equal(fast(x), model(x))
    monkeypatch.setattr(
        Eager, "__init__", lambda *_, **__: pytest.fail("only the first call is held against it")
    )
    assert torch.equal(fast(x), model(x))


def test_never_checks_when_told_so(monkeypatch):
    monkeypatch.setattr(Eager, "__init__", lambda *_, **__: pytest.fail("eager ran"))
    autopar.compile(nn.Linear(2, 2), ["cpu"], check="never")(torch.ones(1, 2))
    with pytest.raises(pytest.fail.Exception):
        autopar.compile(nn.Linear(2, 2), ["cpu"])(torch.ones(1, 2))


class Both(nn.Module):
    """Changes its input and a buffer, and draws; raises when told to."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x, fail=False):
        x.add_(torch.rand(4))
        self.seen.add_(x[0])
        if fail:
            raise ValueError("no")
        return x * 2


@pytest.mark.parametrize("fail", [False, True])
def test_a_snapshot_puts_back_inputs_buffers_and_generators_also_when_the_call_raises(fail):
    model, x = Both(), torch.randn(8, 4)
    _, prepared, args = served(model, x)
    before, seen, random = x.clone(), model.seen.clone(), torch.get_rng_state()
    snapshot = Snapshot(prepared.captured, args)
    with contextlib.suppress(ValueError), snapshot.restored():
        model(x, fail)
    assert torch.equal(x, before) and torch.equal(model.seen, seen)
    assert torch.equal(torch.get_rng_state(), random)


def test_a_checked_call_changes_its_input_once():
    model, x = Both(), torch.randn(8, 4)
    twin, y = Both(), x.clone()
    fast, random = autopar.compile(model, ["cpu"], check="always"), torch.get_rng_state()
    for _ in range(3):
        fast(x)
    torch.set_rng_state(random)
    for _ in range(3):
        twin(y)
    assert torch.equal(x, y) and torch.equal(model.seen, twin.seen)


@pytest.mark.slow
def test_memory_that_nobody_has_written_to_is_not_compared():
    def filled(x: torch.Tensor) -> torch.Tensor:
        made = [torch.empty_like(x) for _ in range(8)]
        torch._dynamo.graph_break()
        for number, item in enumerate(made):
            item.copy_(x + number)
        return torch.stack(made)

    fast = autopar.compile(filled, ["cpu"], check="always")
    with torch.no_grad():
        for number in range(5):
            x = torch.full((64,), float(number))
            assert (fast(x)[3] == number + 3).all()
            # What is freed here is what the next call gets.
            del x
    fast.close()


@pytest.mark.slow
def test_what_is_nothing_but_rounding_in_half_precision_is_let_through():
    """The gradients of biases in front of a BatchNorm, which are zero in exact arithmetic, of a batch in two parts."""
    torch.manual_seed(0)
    blocks = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3)]
    ends = [nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)]
    fast = autopar.compile(nn.Sequential(*blocks, *ends), ["cpu*2"], split=2)
    x = torch.randn(8, 3, 12, 12, generator=torch.Generator().manual_seed(1))
    with torch.enable_grad(), torch.autocast("cpu", torch.bfloat16):
        fast(x)
    assert fast.plan.costed.graph.split
    fast.close()


def test_tf32_is_allowed_for_where_a_gpu_may_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine((Device("cpu", "cpu"), Device("cuda:0", "cuda")), ())
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 2)), torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        conv, linear = (
            autopar.plan(each, ["cpu"], example_inputs=(given,)).costed.graph
            for each, given in ((model, x), (model[2], torch.randn(2, 144)))
        )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    assert coarse(machine, linear) == 0 < coarse(machine, conv) == coarse(machine)
    assert coarse(Machine(machine.devices[:1], ()), conv) == 0
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    assert coarse(machine, conv) == 0
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    assert coarse(machine, conv) == 0
