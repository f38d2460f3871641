"""Numbers that no task reads, such as a model's count of its calls: one program serves all, each result is right."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from varying import captures

import autopar

PLACES = (["cpu"], ["cpu", "emulated:0"])
CALLS = 8


class Counting(nn.Module):
    """A model that counts its calls and rows, and returns sums and products of numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.calls, self.rows = 0, 0

    def forward(self, x: torch.Tensor, number: int) -> Any:
        self.calls += 1
        self.rows += x.shape[0]
        return self.linear(x), 3 - number * 2, {"sum": number + self.calls, "length": x.shape[0]}


def programs(fast: Any) -> int:
    """Return the number of programs of all graphs, with those made for other sizes."""
    return sum(
        len(served.programs) + len(served.programs._resized) for served in fast._placement.backend.served
    )


@pytest.mark.parametrize("check", ["first", "always"])
@pytest.mark.parametrize("devices", PLACES)
def test_one_program_serves_all_counts(devices: list[str], check: Any) -> None:
    model = Counting()
    twin, fast = copy.deepcopy(model), autopar.compile(model, devices, check=check)
    x, made = torch.randn(3, 4), []
    with torch.no_grad():
        for number in range(5, 5 + CALLS):
            found, right = fast(x, number), twin(x, number)
            assert torch.equal(found[0], right[0]) and found[1:] == right[1:]
            assert (model.calls, model.rows) == (twin.calls, twin.rows)
            made.append(programs(fast))
    # Dynamo captures the first values as constants.
    assert made[-1] == made[3] and captures(fast) <= 4
    fast.close()


@pytest.mark.parametrize("devices", PLACES)
def test_counts_and_sizes_vary_together(devices: list[str]) -> None:
    model = Counting()
    twin, fast = copy.deepcopy(model), autopar.compile(model, devices)
    with torch.no_grad():
        # A count may be as large as the batch.
        for number in (5, 6, 4, 3, 7, 3, 6, 5):
            x = torch.randn(number, 4)
            for given in (number, 2 * number):
                found, right = fast(x, given), twin(x, given)
                assert torch.equal(found[0], right[0]) and found[1:] == right[1:]
        assert (model.calls, model.rows) == (twin.calls, twin.rows)
    fast.close()


class Reading(Counting):
    """A model with a task that reads the count, and a length that depends on it."""

    def forward(self, x: torch.Tensor, number: int) -> Any:
        made, *rest = super().forward(x, number)
        return made * self.calls, *rest, torch.arange(number)


def test_a_count_that_a_task_reads_is_read_in_each_call() -> None:
    model = Reading()
    twin, fast = copy.deepcopy(model), autopar.compile(model, ["cpu"])
    x = torch.randn(3, 4)
    with torch.no_grad():
        for number in range(5, 5 + CALLS):
            found, right = fast(x, number), twin(x, number)
            assert torch.equal(found[0], right[0]) and found[1:3] == right[1:3]
            assert torch.equal(found[3], right[3])
    fast.close()


class Doubling(nn.Module):
    """A number of many sums of one another, and a count of many steps."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.steps = 0

    def forward(self, x: torch.Tensor, number: int) -> Any:
        for _ in range(40):
            number = number + number - 3
        for _ in range(300):
            self.steps += 1
        return self.linear(x), number


def test_numbers_of_many_sums() -> None:
    model = Doubling()
    twin, fast = copy.deepcopy(model), autopar.compile(model, ["cpu"])
    with torch.no_grad():
        for number in (5, 6, 4, 7):
            x = torch.randn(3, 4)
            assert fast(x, number)[1] == twin(x, number)[1] and model.steps == twin.steps
    assert any(served.region.counts.unread for served in fast._placement.backend.served)
    fast.close()


class Dividing(nn.Module):
    """A model whose numbers may have no value."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, number: int) -> Any:
        return self.linear(x), 100 // number, number % 7, number**2


def test_a_number_that_may_have_no_value_is_computed_as_python_does() -> None:
    model = Dividing()
    fast = autopar.compile(model, ["cpu"])
    x = torch.randn(3, 4)
    with torch.no_grad():
        for number in (5, 6, -8, 9, 13):
            assert fast(x, number)[1:] == model(x, number)[1:]
        with pytest.raises(ZeroDivisionError):
            fast(x, 0)
        assert fast(x, 10)[1:] == model(x, 10)[1:]
    fast.close()


@pytest.mark.parametrize("devices", PLACES)
def test_counts_in_training(devices: list[str]) -> None:
    model = Counting()
    twin, fast = copy.deepcopy(model), autopar.compile(model, devices)
    made = []
    for number in range(5, 5 + CALLS):
        x = torch.randn(3, 4)
        found, right = fast(x, number), twin(x, number)
        assert torch.equal(found[0], right[0]) and found[1:] == right[1:]
        for output, parameters in ((found, model), (right, twin)):
            parameters.zero_grad()
            output[0].square().sum().backward()
        assert torch.equal(model.linear.weight.grad, twin.linear.weight.grad)
        made.append(programs(fast))
    assert model.calls == twin.calls == CALLS and made[-1] == made[3]
    fast.close()


def test_a_training_step_counts_its_calls() -> None:
    class Loss(Counting):
        def forward(self, x: torch.Tensor, number: int) -> Any:
            return super().forward(x, number)[0].square().mean()

    model = Loss()
    step = autopar.train_step(
        model,
        None,
        torch.optim.SGD(model.parameters(), 0.01),
        ["cpu"],
        step_fn=lambda model, x, t: model(x, t),
    )
    for number in range(5, 5 + CALLS):
        step(torch.randn(3, 4), number)
    assert (model.calls, model.rows) == (CALLS, 3 * CALLS)
    assert sum(map(len, step._signatures.kept)) <= 3
    step.close()
