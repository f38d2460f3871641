"""Models of the usual kinds, run in each way on each kind of machine, compute what they compute in eager."""

from __future__ import annotations

import pytest
import torch
from machines import MACHINES, placed
from models import MODELS, assert_same, infer, loss, optimizer, steps, train
from torch import nn

import autopar

ROWS = (8, 8, 5, 1)


def _inference(name: str, where: str) -> None:
    case = MODELS[name]
    plain, model = case.model().eval(), case.model().eval()
    fast = autopar.compile(model, **placed(where, model))
    batches = case.batches(ROWS)
    assert_same(infer(fast, batches), infer(plain, batches), exact=where == "cpu")
    assert_same(model.state_dict(), plain.state_dict())
    assert "as written" not in fast.explain()
    assert where != "devices" or len({step.device for step in fast.plan.placed}) > 1


def _own_loop(name: str, where: str) -> None:
    case = MODELS[name]
    plain, model = case.model(), case.model()
    batches = case.batches(_trained(name))
    assert_same(
        train(autopar.compile(model, **placed(where, model)), model, batches), train(plain, plain, batches)
    )


def _step(name: str, where: str) -> None:
    case = MODELS[name]
    plain, model = case.model(), case.model()
    step = autopar.train_step(model, loss, optimizer(model), **placed(where, model))
    batches = case.batches(_trained(name))
    whole = train(plain, plain, batches)
    assert_same(steps(step, model, batches), [*whole[:-1:2], whole[-1]])


def _data_parallel(name: str, _: str) -> None:
    case = MODELS[name]
    plain, model = case.model(), case.model()
    batches = case.batches(_trained(name))
    fast = autopar.DataParallel(model, ["emulated:0", "emulated:1"])
    assert_same(train(fast, model, batches), train(plain, plain, batches))


def _trained(name: str) -> tuple[int, ...]:
    # BatchNorm cannot train on one row of one pixel, and a row of it is worth nothing.
    return ROWS[:3] if name == "convolutions" else ROWS


WAYS = {"inference": _inference, "own_loop": _own_loop, "step": _step, "data_parallel": _data_parallel}


def _table() -> list[tuple[str, str, str]]:
    """Each model in each way on one machine in turn; accelerators are in `tests/accelerators/test_rig.py`."""
    return [
        (name, way, [*MACHINES][(m + w) % len(MACHINES)] if way != "data_parallel" else "halves")
        for m, name in enumerate(MODELS)
        for w, way in enumerate(WAYS)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "way", "where"), _table())
def test_results_are_eagers(name: str, way: str, where: str) -> None:
    torch._dynamo.reset()
    WAYS[way](name, where)


def test_the_comparison_can_fail() -> None:
    case = MODELS["mlp"]
    batches = case.batches(ROWS)
    plain, other = case.model(), case.model()
    with torch.no_grad():
        next(other.parameters())[0, 0] += 1e-6
    with pytest.raises(AssertionError):
        assert_same(infer(other, batches), infer(plain, batches))
    assert isinstance(other, nn.Module)
