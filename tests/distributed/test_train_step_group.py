"""`autopar.train_step(…, process_group=…)`: ranks with rows and plans of their own, and one loss curve."""

from __future__ import annotations

import functools
from typing import Any

import numpy
import pytest
import torch
import torch.distributed as dist
from helpers.grid import apart, grid
from helpers.ranks import ranks
from helpers.replicas_of import (
    KINDS,
    SETS,
    Branches,
    averaged,
    batches,
    gradients,
    loss_of,
    model,
    own,
    same,
    sgd,
    trained,
    values,
)
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import autopar

pytestmark = pytest.mark.slow

STEPS, FEWER = 50, 12
"""Steps, and those of models that take all in the grid."""
CLIP = 0.3
UNLIKE = ("mixed", "cpu", "lanes", "two")
"""Each rank plans for itself."""


def _step(network: nn.Module, kind: str, devices: str, optimizer: Any = sgd, **options: Any) -> Any:
    made = optimizer(network.parameters())
    options = {"process_group": True, **SETS[devices], **options}
    return autopar.train_step(network, loss_of(kind), made, **options)


def _adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01)


OPTIMIZERS = {"sgd": sgd, "adam": _adam}


def _trained(rank: int, count: int, kind: str, optimizer: str, dtype: str, steps: int) -> Any:
    precision = getattr(torch, dtype)
    network = model(kind, precision, seed=rank)
    step = _step(network, kind, UNLIKE[rank % len(UNLIKE)], OPTIMIZERS[optimizer], clip_norm=CLIP)
    data = batches(kind, steps, dtype=precision)
    losses = [step(*own(batch, rank, count)).item() for batch in data]
    said = step.explain()
    step.close()
    return losses, values(network), said


@pytest.mark.parametrize(
    ("count", "kind", "optimizer", "dtype", "allowed", "steps"),
    [
        (2, "gpt", "sgd", "float64", 1e-9, FEWER),
        pytest.param(4, "mlp", "sgd", "float64", 1e-9, FEWER, marks=pytest.mark.release),
        pytest.param(2, "skips", "adam", "float64", 1e-8, FEWER, marks=pytest.mark.release),
        pytest.param(2, "mlp", "sgd", "float32", 1e-4, STEPS, marks=pytest.mark.release),
        pytest.param(2, "skips", "adam", "float64", 1e-8, STEPS, marks=pytest.mark.grid),
        *grid("train_step", lambda name, count: (count, KINDS[name], "sgd", "float64", 1e-9, STEPS)),
    ],
)
def test_steps_are_those_of_one_process(count, kind, optimizer, dtype, allowed, steps, record_property):
    precision = getattr(torch, dtype)
    alone = model(kind, precision)
    expected = trained(
        alone, batches(kind, steps, dtype=precision), kind, OPTIMIZERS[optimizer], clip_norm=CLIP
    )
    # Each batch is another.
    assert steps < STEPS or expected[-1] < expected[0]
    answers = ranks(count, _trained, count, kind, optimizer, dtype, steps)
    found = averaged([losses for losses, *_ in answers])
    record_property("apart", apart(found, expected))
    assert found == pytest.approx(expected, abs=allowed)
    for losses, state, said in answers:
        same(state, values(alone), allowed)
        assert losses != answers[0][0] or losses is answers[0][0], "a rank's loss is that of its own rows"
        assert f"averaged over {count} ranks over gloo" in said


def _accumulated(rank: int) -> Any:
    """By one step: gradients that wait, those left by an update, and weights after the next; then the same model from
    new weights, with an update that fails: weights and gradients before it and after, and weights after the next."""
    network = model("mlp")
    step = _step(network, "mlp", "mixed")
    first, second, third, fourth = (own(batch, rank, 2) for batch in batches("mlp", 4))
    step(*first, accumulate=True)
    with step.no_sync():
        step(*second)
    waiting = gradients(network)
    step(*third)
    left = gradients(network)
    step(*fourth)
    adds_up = waiting, left, values(network)

    network.load_state_dict(model("mlp").state_dict())
    step.optimizer.state.clear()
    step(*first, accumulate=True)
    before = values(network), gradients(network)

    def fails(*_: Any) -> None:
        raise ValueError("not now")

    hook = step.optimizer.register_step_pre_hook(fails)
    with pytest.raises(ValueError, match="not now"):
        step(*second)
    after = values(network), gradients(network)
    hook.remove()
    step(*second)
    step.close()
    return adds_up, (before, after, values(network))


@pytest.fixture(scope="module")
def accumulated() -> Any:
    """Results of both ranks."""
    return ranks(2, _accumulated)


def test_accumulated_gradients_are_reduced_once_at_the_step(accumulated):
    alone = model("mlp")
    stepped, criterion = sgd(alone.parameters()), loss_of("mlp")
    for number, (x, y) in enumerate(batches("mlp", 4)):
        criterion(alone(x), y).backward()
        if number > 1:
            stepped.step()
            stepped.zero_grad()
    answers = [adds_up for adds_up, _ in accumulated]
    assert abs(answers[0][0]["0.weight"] - answers[1][0]["0.weight"]).max() > 1e-3, "not reduced yet"
    for _, left, state in answers:
        assert not any(item is not None for item in left.values())
        same(state, values(alone))


def test_a_step_that_fails_leaves_weights_and_waiting_gradients(accumulated):
    alone = model("mlp")
    stepped, criterion = sgd(alone.parameters()), loss_of("mlp")
    for x, y in batches("mlp", 2):
        criterion(alone(x), y).backward()
    stepped.step()
    for _, (before, after, state) in accumulated:
        for ours, expected in zip(after, before, strict=True):
            same(ours, expected, 0)
        same(state, values(alone))


def _normed(rank: int) -> Any:
    """Buffers after each step, and those of DistributedDataParallel before each forward."""
    network, plain = model("normed", seed=rank), model("normed", seed=rank)
    with torch.no_grad():
        for buffer in (*network.buffers(), *plain.buffers()):
            buffer.add_(rank)
    network.register_buffer("fixed", torch.arange(3))
    ddp = DistributedDataParallel(plain)
    step = _step(network, "normed", UNLIKE[rank])
    found = []
    for batch in batches("normed", 3):
        x, y = own(batch, rank, 2)
        trained(ddp, [(x, y)], "normed", functools.partial(torch.optim.SGD, lr=0.1))
        step(x, y)
        ours = {name: each.numpy(force=True).copy() for name, each in network.named_buffers()}
        found.append((ours, {name: each.numpy(force=True).copy() for name, each in plain.named_buffers()}))
    step.close()
    return found


def test_buffers_are_the_first_ranks_after_each_step():
    first, second = ranks(2, _normed)
    ours, plain = first[0]
    same({name: each for name, each in ours.items() if name != "fixed"}, plain)
    for (ours, _), (others, _) in zip(first, second, strict=True):
        same(others, ours, 0)


def _branches(rank: int) -> Any:
    """Weights after steps of a placed step, and of plain DistributedDataParallel."""
    found = []
    for placed in (True, False):
        torch.manual_seed(0)
        network = Branches().double()
        # Decay moves every weight that has a gradient, zero or not.
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1, weight_decay=0.1)
        data = [
            (*own(batch, rank, 2), rank if number else 0) for number, batch in enumerate(batches("mlp", 4))
        ]
        if placed:
            step = autopar.train_step(
                network, None, optimizer, **SETS["mixed"], process_group=True,
                step_fn=lambda model, x, y, which: nn.functional.mse_loss(model(x, which), y),
            )  # fmt: skip
            for x, y, which in data:
                step(x, y, which)
            step.close()
        else:
            ddp = DistributedDataParallel(network, find_unused_parameters=True)
            for x, y, which in data:
                optimizer.zero_grad()
                nn.functional.mse_loss(ddp(x, which), y).backward()
                optimizer.step()
        found.append(values(network))
    return found


def test_ranks_may_take_other_branches():
    torch.manual_seed(0)
    before = values(Branches().double())
    for ours, plain in ranks(2, _branches):
        same(ours, plain)
        assert (ours["experts.2.weight"] == before["experts.2.weight"]).all()
        assert (ours["experts.1.weight"] != before["experts.1.weight"]).all()


def _scaled(rank: int) -> Any:
    """Weights and scale after each step; in the second the rows of one rank overflow."""
    network = model("mlp", torch.float32)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=100)
    step = _step(network, "mlp", UNLIKE[rank], scaler=scaler, clip_norm=CLIP)
    found = []
    for number, batch in enumerate(batches("mlp", 3, dtype=torch.float32)):
        x, y = own(batch, rank, 2)
        step(x, y * float("inf") if (rank, number) == (1, 1) else y)
        found.append((values(network), scaler.get_scale()))
    step.close()
    return found


def test_no_rank_steps_where_one_overflows():
    alone = model("mlp", torch.float32)
    kept = [batch for number, batch in enumerate(batches("mlp", 3, dtype=torch.float32)) if number != 1]
    trained(alone, kept, "mlp", clip_norm=CLIP)
    for found in ranks(2, _scaled):
        assert [scale for _, scale in found] == [8, 4, 4]
        same(found[1][0], found[0][0], 0)
        same(found[2][0], values(alone), 1e-4)


def _uneven(rank: int) -> Any:
    """Weights after a step with uneven rows, each rank with the same weight, and each row with the same."""
    found = []
    x, y = next(iter(batches("mlp", 1)))
    mine = (x[:2], y[:2]) if rank else (x[2:], y[2:])
    criterion, share = loss_of("mlp"), torch.tensor(len(mine[0]) * 2 / len(x))
    for options, given in (
        ({}, mine),
        ({"step_fn": lambda model, x, y, share: criterion(model(x), y) * share}, (*mine, share)),
    ):
        network = model("mlp")
        optimizer = torch.optim.SGD(network.parameters(), lr=1.0)
        step = autopar.train_step(
            network, None if options else criterion, optimizer, process_group=True, **SETS["mixed"], **options
        )
        step(*given)
        step.close()
        found.append(values(network))
    return found


def test_each_rank_counts_the_same_whatever_its_rows_unless_the_loss_is_scaled_by_them():
    criterion = loss_of("mlp")
    x, y = next(iter(batches("mlp", 1)))
    expected = []
    for parts in ([(x[:2], y[:2]), (x[2:], y[2:])], [(x, y)]):
        alone = model("mlp")
        (sum(criterion(alone(x), y) for x, y in parts) / len(parts)).backward()
        torch.optim.SGD(alone.parameters(), lr=1.0).step()
        expected.append(values(alone))
    for states in ranks(2, _uneven):
        for state, plain in zip(states, expected, strict=True):
            same(state, plain)


class _Bag(nn.Module):
    """Parameters of any form."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        super().__init__()
        self.all = nn.ParameterList(nn.Parameter(tensor) for tensor in tensors)


def _averages(rank: int, seeds: int) -> Any:
    """Bags of random tensors, some without a gradient on some ranks, averaged in buckets and one by one."""
    from autopar.training import group as module

    module.BUCKET_BYTES = 200
    for seed in range(seeds):
        draw = numpy.random.default_rng(seed)
        kinds = (torch.float32, torch.float64, torch.bfloat16, torch.complex64)
        forms = [
            (tuple(draw.integers(0, 6, draw.integers(0, 4))), kinds[draw.integers(4)])
            for _ in range(draw.integers(1, 9))
        ]
        here = draw.random((3, len(forms))) < 0.7
        torch.manual_seed(10 * seed + rank)
        bag = _Bag([torch.randn(shape, dtype=dtype) for shape, dtype in forms])
        for each in bag.all:
            if each.dim() == 3:
                each.data = each.data.transpose(0, 2).contiguous().transpose(0, 2)
        shared = module.AveragingGroup(True, bag, torch.optim.SGD(bag.parameters()), {})
        expected = []
        for parameter, some, anywhere in zip(bag.all, here[rank], here.any(0), strict=True):
            gradient = torch.randn_like(parameter) if some else torch.zeros_like(parameter)
            parameter.grad = gradient if some else None
            total = torch.view_as_real(gradient.clone()) if gradient.is_complex() else gradient.clone()
            dist.all_reduce(total.div_(3))
            mean = torch.view_as_complex(total) if gradient.is_complex() else total
            expected.append(mean if anywhere else None)
        shared.average()
        for parameter, mean in zip(bag.all, expected, strict=True):
            if mean is None:
                assert parameter.grad is None, seed
            else:
                assert torch.allclose(parameter.grad, mean, atol=1e-2), seed
                assert parameter.grad.stride() == parameter.stride(), seed
    return [each.detach().abs().sum().item() for each in bag.all]


def test_buckets_average_what_each_tensor_alone_would():
    weights = ranks(3, _averages, 25)
    assert weights[1:] == weights[:1] * 2, "all ranks begin with the weights of the first"


def _refused(rank: int) -> list[str]:
    texts = []
    for rows, group in ((4 + rank, True), (4, "world"), (4, dist.new_group([0]))):
        network = nn.Linear(8, rows)
        with pytest.raises(autopar.AutoparError) as refused:
            # The rank of the last group takes part in a group of its own.
            autopar.train_step(
                network, loss_of("mlp"), sgd(network.parameters()), ["cpu"], process_group=group
            )
            raise autopar.AutoparError("")
        texts.append(str(refused.value))
    return texts


def test_models_that_differ_and_groups_that_are_none_are_refused():
    for rank, (shape, kind, outside) in enumerate(ranks(2, _refused)):
        assert "weight" in shape and "[4, 8]" in shape and "[5, 8]" in shape
        assert "new_group" in kind
        assert ("rank 1 is not in the group" in outside) == bool(rank)
