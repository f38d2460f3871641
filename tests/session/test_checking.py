"""Holding a run against eager: what it must let through, what it must stop, and what it must leave as it was."""

import contextlib
import math
from collections.abc import Callable

import pytest
import torch
from dynamo_graphs import served
from torch import nn

import autopar
from autopar.ir.device import Device
from autopar.ir.machine import Machine
from autopar.session.compare import Snapshot, coarse, error, limit
from autopar.session.model_session import ModelSession


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


@pytest.fixture
def bend(monkeypatch):
    """Have each placed run return what a function makes of its results."""
    run = ModelSession.run

    def apply(change: Callable[[list[torch.Tensor]], list[torch.Tensor]]) -> None:
        monkeypatch.setattr(ModelSession, "run", lambda *call: change(run(*call)))

    return apply


def scaled(factor: float) -> Callable[[list[torch.Tensor]], list[torch.Tensor]]:
    return lambda results: [result * factor for result in results]


def holds(
    allowed: bool, call: Callable[..., object], *args: torch.Tensor, match: str = "output 0 is not eager's"
):
    """The call passes its check, or is refused."""
    with contextlib.nullcontext() if allowed else pytest.raises(autopar.DifferenceError, match=match):
        return call(*args)


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


@pytest.mark.parametrize("wrong", [False, True])
def test_float64_lets_rounding_through_and_nothing_else(bend, wrong):
    def model(x):
        return (x + 1e6).sum(1) - 1e6 * x.shape[1]

    torch.manual_seed(0)
    x = torch.rand(64, 33)
    other = x.flip(1).add(1e6).sum(1) - 1e6 * x.shape[1]
    assert error(other, model(x)) > limit(other)
    bend(lambda _: [other * 10 + 100 if wrong else other.clone()])
    holds(not wrong, autopar.compile(model, ["cpu"]), x)


class Masked(nn.Module):
    def forward(self, x, rows):
        mask = (1.0 - rows.float())[:, None] * torch.finfo(torch.float32).min
        return torch.softmax(x @ x.transpose(1, 2) + mask, -1) @ x


class Classes(nn.Module):
    def forward(self, x):
        counted = nn.functional.one_hot(x.relu().round().long(), 8).float()
        return counted + torch.floor(x.round() * 2)[..., None]


INEXACT = {
    "masked": (Masked(), (torch.linspace(-1, 1, 60).view(3, 5, 4), torch.ones(3, 5, dtype=torch.long))),
    "largest": (lambda x: x * (x == x.amax(-1, keepdim=True)), (torch.linspace(-1, 1, 24).view(4, 6),)),
    "classes": (Classes(), (torch.linspace(-2, 2, 24).view(4, 6),)),
}
"""Models whose results would be others if numbers that are exact, such as the ones of a mask, were not."""


@pytest.mark.parametrize("factor", [1.01, 0.0, -1.0, math.nan])
@pytest.mark.parametrize("name", INEXACT)
def test_numbers_that_are_exact_give_no_room_for_wrong_answers(bend, name, factor):
    model, args = INEXACT[name]
    fast = autopar.compile(model, ["cpu"])
    bend(scaled(factor))
    holds(
        False,
        fast,
        *args,
        match=r'output 0 is not eager\'s: error .*placed execution is at fault.*check="never"',
    )
    bend(scaled(1.0))
    assert torch.equal(fast(*args), model(*args)), "the signature is forgotten"


STATED = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-2, torch.bfloat16: 2e-2}
"""Tolerance that docs/limits.md allows a sum of parts; half precision by a few of its last bits."""


@pytest.mark.parametrize("dtype", STATED, ids=str)
@pytest.mark.parametrize("share", [0.5, 2.0])
def test_the_first_call_may_be_off_by_what_is_stated_and_no_more(bend, dtype, share):
    """The largest entry is off by a share of what is allowed."""
    torch.manual_seed(0)
    model, x = nn.Linear(4, 4).to(dtype), torch.randn(3, 4, dtype=dtype)
    fast = autopar.compile(model, ["cpu"])

    def bent(results):
        (output,) = results
        output.view(-1)[output.abs().argmax()] *= 1 + share * STATED[dtype]
        return [output]

    bend(bent)
    found = holds(share < 1, fast, x)
    assert found is None or error(found, model(x)) > 0


@pytest.mark.parametrize("drop", [0.0, 0.5])
@pytest.mark.parametrize("off", [1e-9, 1e-3])
def test_an_answer_that_was_converted_is_as_precise_as_what_it_was_computed_from(bend, drop, off):
    class Converted(nn.Sequential):
        def forward(self, x):
            return super().forward(x).double()

    torch.manual_seed(0)
    fast = autopar.compile(Converted(nn.Dropout(drop), nn.Linear(64, 4)), ["cpu"])
    bend(scaled(1 + off))
    holds(off < 1e-5, fast, torch.randn(3, 64))


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.5, 2.0])
def test_a_change_of_state_may_be_off_by_as_much(bend, share):
    model = nn.BatchNorm1d(4)
    fast = autopar.compile(model, ["cpu"])

    def bent(results):
        model.running_var *= 1 + share * STATED[torch.float32]
        return results

    bend(bent)
    holds(share < 1, fast, torch.randn(8, 4), match="running_var is not eager's")


@pytest.mark.parametrize(("check", "refused"), [("first", [1]), ("always", [1, 3]), ("never", [])])
def test_calls_are_checked_when_they_should_be(bend, check, refused):
    """The first after planning ahead, each, or none."""
    model, x = nn.Linear(4, 4), torch.randn(3, 4)
    fast = autopar.compile(model, ["cpu"], example_inputs=(x,), check=check)
    for call, factor in enumerate((2.0, 1.0, 2.0), 1):
        bend(scaled(factor))
        holds(call not in refused, fast, x)


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
