"""`DistributedDataParallel` around a compiled model: each rank plans for its own devices, and all of it is one process
with the whole batch."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
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
    trained,
    values,
)
from torch import nn
from torch.nn.parallel import DistributedDataParallel

pytestmark = pytest.mark.slow

STEPS, FEWER = 50, 12
"""Steps, and those of models that take all in the grid or on other devices."""


def _placed(network: nn.Module, devices: str, **options: Any) -> tuple[Any, DistributedDataParallel]:
    """A model compiled for these devices, and the same in DistributedDataParallel."""
    import autopar

    fast = autopar.compile(network, **SETS[devices])
    return fast, DistributedDataParallel(fast, **options)


def _trained(rank: int, count: int, kind: str, devices: str, dtype: str, steps: int) -> Any:
    """The losses of a rank, and the weights that it ends with."""
    precision = getattr(torch, dtype)
    fast, ddp = _placed(model(kind, precision, seed=rank), devices)
    data = (own(batch, rank, count) for batch in batches(kind, steps, dtype=precision))
    losses = trained(ddp, data, kind)
    used = {placed.device for placed in fast.plan.placed}
    notes = fast._placement.session.notes()
    fast.close()
    return losses, values(ddp.module), used, notes


@pytest.mark.parametrize(
    ("count", "kind", "devices", "dtype", "allowed", "steps"),
    [
        (2, "mlp", "mixed", "float64", 1e-9, STEPS),
        (2, "skips", "two", "float32", 1e-4, FEWER),
        *(
            pytest.param(2, "mlp", name, "float64", 1e-9, STEPS, marks=pytest.mark.release)
            for name in SETS
            if name != "mixed"
        ),
        pytest.param(2, "gpt", "mixed", "float64", 1e-9, FEWER, marks=pytest.mark.release),
        pytest.param(2, "gpt", "two", "float64", 1e-9, STEPS, marks=pytest.mark.grid),
        pytest.param(2, "skips", "two", "float32", 1e-4, STEPS, marks=pytest.mark.grid),
        *grid("ddp", lambda name, count: (count, KINDS[name], "mixed", "float64", 1e-9, STEPS)),
    ],
)
def test_steps_are_those_of_one_process(count, kind, devices, dtype, allowed, steps, record_property):
    precision = getattr(torch, dtype)
    alone = model(kind, precision)
    expected = trained(alone, batches(kind, steps, dtype=precision), kind)
    answers = ranks(count, _trained, count, kind, devices, dtype, steps)
    # Each batch is another.
    assert steps < STEPS or expected[-1] < expected[0]
    found = averaged([losses for losses, *_ in answers])
    record_property("apart", apart(found, expected))
    assert found == pytest.approx(expected, abs=allowed)
    for _, state, used, notes in answers:
        same(state, values(alone), allowed)
        assert len(used) == len({name.partition("*")[0] for name in SETS[devices]["devices"]})
        assert not notes, "one graph, all of it placed"


OPTIONS: tuple[dict[str, Any], ...] = (
    {"find_unused_parameters": True},
    {"static_graph": True},
    # Several buckets: torch would have graphs cut at them.
    {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.002},
)


def _options(rank: int) -> Any:
    found = []
    for options in OPTIONS:
        fast, ddp = _placed(model("mlp"), "mixed", **options)
        trained(ddp, (own(batch, rank, 2) for batch in batches("mlp", 5)), "mlp")
        plain = DistributedDataParallel(model("mlp"))
        graphs = len(fast._placement.session.graphs)
        found.append((values(ddp.module), graphs, [*ddp.state_dict()] == [*plain.state_dict()]))
        fast.close()
    return found


def test_options_of_ddp_change_nothing():
    alone = model("mlp")
    trained(alone, batches("mlp", 5), "mlp")
    for found in ranks(2, _options):
        for state, graphs, keys in found:
            same(state, values(alone))
            assert graphs == 1 and keys


def _one_model(rank: int) -> Any:
    """One compiled model, called before it is in DistributedDataParallel: outputs before and after the
    weights of the first rank arrive, in inference and in training; then gradients after each of four batches, of which
    the last is reduced."""
    import autopar

    network = model("mlp", seed=rank)
    x = next(iter(batches("mlp", 1)))[0]
    fast = autopar.compile(network, **SETS["mixed"])
    with torch.no_grad():
        before = fast(x).numpy(force=True)
    fast(x).sum().backward()
    ddp = DistributedDataParallel(fast)
    with torch.no_grad():
        after = ddp(x).numpy(force=True)
    outputs = before, after, ddp(x).numpy(force=True)
    ddp.zero_grad()
    found, criterion = [], loss_of("mlp")
    for number, batch in enumerate(batches("mlp", 4)):
        x, y = own(batch, rank, 2)
        with ddp.no_sync() if number < 3 else contextlib.nullcontext():
            criterion(ddp(x), y).backward()
        found.append(gradients(ddp.module))
    fast.close()
    return outputs, found


@pytest.fixture(scope="module")
def one_model() -> Any:
    """Results of both ranks for one model."""
    return ranks(2, _one_model)


def test_copies_on_other_devices_follow_what_ddp_writes(one_model):
    (first, *same_as_first), (second, *others) = (outputs for outputs, _ in one_model)
    assert abs(first - second).max() > 0.01
    for found in (*same_as_first, *others):
        assert abs(found - first).max() < 1e-12


def test_no_sync_adds_up_and_reduces_once(one_model):
    alone, criterion = model("mlp"), loss_of("mlp")
    for x, y in batches("mlp", 4):
        criterion(alone(x), y).backward()
    first, second = (found for _, found in one_model)
    assert abs(first[2]["0.weight"] - second[2]["0.weight"]).max() > 1e-3, "not reduced yet"
    for found in (first, second):
        same(found[-1], gradients(alone))


def _doubled(placed: bool, network: nn.Module, devices: str = "mixed", **options: Any) -> Any:
    """A compiled model, if `placed`, in DistributedDataParallel, and what closes it."""
    if not placed:
        return DistributedDataParallel(network, **options), contextlib.nullcontext()
    fast, ddp = _placed(network, devices, **options)
    return ddp, contextlib.closing(fast)


def _uneven(rank: int, placed: bool) -> Any:
    """One rank has a batch more than the other, and fewer rows in it."""
    ddp, closing = _doubled(placed, model("mlp"))
    data = [own(batch, rank, 2) for batch in batches("mlp", 3)]
    data = data[:2] if rank else [*data[:2], tuple(item[:2] for item in data[2])]
    with closing, ddp.join():
        return trained(ddp, data, "mlp"), values(ddp.module)


def _branches(rank: int, placed: bool) -> Any:
    torch.manual_seed(0)
    network, found = Branches().double(), []
    ddp, closing = _doubled(placed, network, find_unused_parameters=True)
    with closing:
        for number, batch in enumerate(batches("mlp", 3)):
            x, y = own(batch, rank, 2)
            ddp.zero_grad()
            loss_of("mlp")(ddp(x, rank if number else 0), y).backward()
            found.append(gradients(network))
    return found


def _normed(rank: int, placed: bool) -> Any:
    network = model("normed", seed=rank)
    ddp, closing = _doubled(placed, network, "two")
    with closing, torch.no_grad():
        with torch.enable_grad():
            losses = trained(ddp, (own(batch, rank, 2) for batch in batches("normed", 6)), "normed")
        ddp.eval()
        asked = ddp(next(iter(batches("normed", 1)))[0]).numpy(force=True)
    return losses, {**values(network), "asked": asked}


def _questions(rank: int) -> Any:
    """Results of each of three ways to train, with a compiled model and with the plain one."""
    return [(work(rank, True), work(rank, False)) for work in (_uneven, _normed, _branches)]


def test_uneven_batches_in_join_batch_norm_and_other_branches_are_plain_ddps():
    for uneven, normed, (found, expected) in ranks(2, _questions):
        for (losses, state), (plain, wanted) in (uneven, normed):
            assert losses == pytest.approx(plain, abs=1e-9)
            same(state, wanted)
        for number, (ours, wanted) in enumerate(zip(found, expected, strict=True)):
            same(ours, wanted)
            assert ours["experts.2.weight"] is None
            assert (ours["experts.1.weight"] is None) == (number == 0)
