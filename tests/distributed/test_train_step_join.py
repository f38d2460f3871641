"""`step.join()`: ranks that take different numbers of steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.ranks import ranks
from helpers.replicas_of import batches, loss_of, model, own, same, values
from torch import nn

import autopar
from autopar import DeviceError

pytestmark = pytest.mark.slow

COUNT, CLIP = 2, 0.3


def _optimizer(network: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(network.parameters(), lr=0.01)


def _joined(rank: int, kind: str, steps: tuple[int, int], by_all: bool) -> Any:
    """Steps within `join`, as many as the rank has batches, and one more that both take."""
    network = model(kind, seed=rank)
    optimizer = _optimizer(network)
    step = autopar.train_step(network, loss_of(kind), optimizer, ["cpu"], clip_norm=CLIP, process_group=True)
    *data, last = batches(kind, max(steps) + 1)
    with step.join(divide_by_initial_world_size=by_all):
        for batch in data[: steps[rank]]:
            step(*own(batch, rank, COUNT))
    step(*own(last, rank, COUNT))
    step.close()
    moments = [state["exp_avg"].numpy(force=True).copy() for state in optimizer.state.values()]
    return values(network), dict(enumerate(moments))


def _expected(kind: str, steps: tuple[int, int], by_all: bool) -> dict[str, Any]:
    """The same in one process: a rank without rows has no loss."""
    network = model(kind)
    optimizer, criterion = _optimizer(network), loss_of(kind)
    data = [*batches(kind, max(steps) + 1)]
    for number, batch in enumerate(data):
        active = [rank for rank, count in enumerate(steps) if number < count or number == len(data) - 1]
        losses = [criterion(network(x), y) for x, y in (own(batch, rank, COUNT) for rank in active)]
        optimizer.zero_grad()
        (sum(losses) / (COUNT if by_all else len(active))).backward()
        nn.utils.clip_grad_norm_(network.parameters(), CLIP)
        optimizer.step()
    return values(network)


@pytest.mark.parametrize(
    ("kind", "steps", "by_all"), [("normed", (1, 4), True), ("mlp", (0, 3), False), ("mlp", (3, 1), True)]
)
def test_ranks_without_batches_take_part_in_the_steps_of_the_others(kind, steps, by_all):
    (weights, moments), (others, their) = ranks(COUNT, _joined, kind, steps, by_all)
    same(others, weights, 0)
    same(their, moments, 0)
    parameters = {name for name, _ in model(kind).named_parameters()}
    expected = _expected(kind, steps, by_all)
    same(
        {name: each for name, each in weights.items() if name in parameters},
        {name: each for name, each in expected.items() if name in parameters},
    )
    if kind == "normed":
        assert weights["norm.num_batches_tracked"] == max(steps) + 1, "those of a rank that has batches"


def _windows(rank: int, step: Any, data: list[Any], counts: tuple[int, int]) -> None:
    """Windows of two batches, the last of which may be incomplete."""
    for number, batch in enumerate(data[: counts[rank]]):
        step(*own(batch, rank, COUNT), accumulate=number % 2 == 0)


def _left(rank: int, counts: tuple[int, int], by_all: bool) -> Any:
    network = model("mlp")
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    step = autopar.train_step(network, loss_of("mlp"), optimizer, ["cpu"], process_group=True)
    *data, last = batches("mlp", max(counts) + 1)
    with step.join(divide_by_initial_world_size=by_all):
        _windows(rank, step, data, counts)
    left = next(network.parameters()).grad is not None
    step(*own(last, rank, COUNT))
    step.close()
    return values(network), left


@pytest.mark.parametrize(("counts", "by_all"), [((3, 6), True), ((3, 6), False), ((4, 5), False)])
def test_what_a_rank_has_accumulated_when_its_batches_end_goes_into_its_next_step(counts, by_all):
    network, criterion = model("mlp"), loss_of("mlp")
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    *data, last = batches("mlp", max(counts) + 1)
    waiting: list[list[Any]] = [data[:count] for count in counts]
    for number in range(max(counts) // 2 + 1):
        final = number == max(counts) // 2
        windows = [[*each, last] if final else each[:2] for each in waiting]
        waiting = [[] if final else each[2:] for each in waiting]
        losses = [
            criterion(network(x), y)
            for rank, window in enumerate(windows)
            for x, y in (own(batch, rank, COUNT) for batch in window)
        ]
        optimizer.zero_grad()
        (sum(losses) / (COUNT if by_all else sum(map(bool, windows)))).backward()
        optimizer.step()
    (weights, first), (others, second) = ranks(COUNT, _left, counts, by_all)
    same(others, weights, 0)
    same(weights, values(network))
    assert [first, second] == [False, counts[1] % 2 == 1]


def _thrown(rank: int) -> str:
    network = model("mlp")
    step = autopar.train_step(network, loss_of("mlp"), _optimizer(network), ["cpu"], process_group=True)
    try:
        with step.join(throw_on_early_termination=True):
            for batch in [*batches("mlp", 3)][: rank + 1]:
                step(*own(batch, rank, COUNT))
    except RuntimeError as error:
        return str(error)
    return ""


def test_all_ranks_may_end_with_the_first_that_has_no_batches():
    first, second = ranks(COUNT, _thrown)
    assert "Rank 0 exhausted" in first and "one rank that exhausted inputs" in second


def test_one_process_has_nobody_to_join():
    network = model("mlp")
    step = autopar.train_step(network, loss_of("mlp"), _optimizer(network), ["cpu"])
    with pytest.raises(DeviceError, match="give train_step a process_group="):
        step.join()
