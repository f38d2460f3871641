"""Inference, training and `DataParallel` on an accelerator, as on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from models import MODELS, assert_same, infer, loss, optimizer, steps, train
from rig import COUNT, FIRST, KIND, POLICIES, machine
from torch.utils import _pytree as pytree
from turns import by_turns

import autopar

pytestmark = pytest.mark.gpu
# Accelerators draw random numbers of their own.
NAMES = [name for name in MODELS if name != "dropout"] * 2
WAYS = ("inference", "own loop", "train_step", "DataParallel")


def here(results: Any) -> Any:
    """The results on the CPU."""
    return pytree.tree_map(
        lambda leaf: leaf.detach().cpu() if isinstance(leaf, torch.Tensor) else leaf, results
    )


@by_turns("name, way, home, policy, split", NAMES, WAYS, ["cpu", FIRST], POLICIES, [None, 2])
def test_as_on_the_cpu(name: str, way: str, home: str, policy: str, split: int | None) -> None:
    plain, model = MODELS[name].model(), MODELS[name].model().to(home)
    if name == "tied":  # moving a module to a device of a private type unties its weights
        model.out.weight = model.embed.weight
    batches = MODELS[name].batches((8, 8, 5))
    moved = [x.to(home) for x in batches]
    options: dict[str, Any] = {"policy": POLICIES[policy], "split": split}
    if way == "inference":
        fast = autopar.compile(model.eval(), machine(), **options)
        ours, expected = infer(fast, moved), infer(plain.eval(), batches)
        tensors = [leaf for leaf in pytree.tree_leaves(ours) if isinstance(leaf, torch.Tensor)]
        assert {leaf.device.type for leaf in tensors} == {torch.device(home).type}
    elif way == "own loop":
        ours = train(autopar.compile(model, machine(), **options), model, moved)
        expected = train(plain, plain, batches)
    elif way == "train_step":
        step = autopar.train_step(model, loss, optimizer(model), machine(), **options)
        ours, whole = steps(step, model, moved), train(plain, plain, batches)
        expected = [*whole[:-1:2], whole[-1]]
    else:
        fast = autopar.DataParallel(model, [*range(COUNT)])
        output = fast(moved[0])
        assert {
            leaf.device.type for leaf in pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor)
        } == {KIND}
        plain(batches[0])
        ours, expected = train(fast, model, moved), train(plain, plain, batches)
    assert_same(here(ours), here(expected))
