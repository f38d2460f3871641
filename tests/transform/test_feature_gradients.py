"""What is cut along features is cut in the backward too: gradients, in parts or whole, are those of the whole graph."""

from __future__ import annotations

import pytest
import torch
from capturing import joint
from hypothesis import given, settings
from hypothesis import strategies as st
from tensor_models import GPT, Attention, Block, Gated, mlp
from test_split import interpret
from torch import nn

from autopar.ir.graph import JOIN, Graph
from autopar.transform.feature_split import LABEL, products, split_features

pytestmark = pytest.mark.slow


def halves(model: nn.Module, *args: torch.Tensor, parts: int = 2) -> tuple[Graph, Graph, float]:
    """The joint graph of a call, the same cut along features, and the largest difference in float64 of an output or a
    gradient."""
    model = model.double()
    captured = joint(model, args)
    graph = captured.graph
    cut = split_features(graph, parts, [stretch.tasks[0] for stretch in products(graph, parts)]).check()
    tangents = [torch.randn(graph.value[name].shape, dtype=torch.float64) for name, _ in captured.tangents]
    with torch.no_grad():
        inputs = [*captured.flatten(args), *tangents]
        whole, parted = (interpret(each, captured, inputs) for each in (graph, cut))
    return graph, cut, max(float((whole[name] - parted[name]).abs().max()) for name in graph.outputs)


def rows(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64)


@settings(max_examples=8, deadline=None)
@given(st.sampled_from([2, 3, 4]), st.integers(1, 3), st.integers(1, 4), st.booleans(), st.booleans())
def test_a_pair_is_trained_in_parts(parts: int, each: int, batch: int, bias: bool, deep: bool) -> None:
    wide = parts * each
    model = nn.Sequential(nn.Linear(5, wide, bias), nn.GELU(), nn.Linear(wide, 3, bias))
    x = rows(batch, 2, 5) if deep else rows(batch, 5)
    _, cut, off = halves(model, x, parts=parts)
    assert off < 1e-12 and cut.split.startswith(LABEL)
    # Each weight is read in parts alone, and each gradient of one is joined once, where the caller gets it.
    assert not cut.readers["0.weight"] and not cut.readers["2.weight"]
    assert [task.target for task in cut.tasks].count(JOIN) == (3 if bias else 2)


@pytest.mark.parametrize(
    "model, x",
    [
        (Gated(), rows(4, 8)),
        (Attention(16, 4, True), rows(2, 5, 16)),
        (Block(16, 4, False), rows(2, 5, 16)),
        (GPT(), torch.arange(16).view(2, 8)),
    ],
    ids=["gated", "attention", "block", "gpt"],
)
@pytest.mark.parametrize("parts", [2, 4])
def test_gates_and_heads_are_trained_in_parts(model: nn.Module, x: torch.Tensor, parts: int) -> None:
    graph, cut, off = halves(model, x, parts=parts)
    assert off < 1e-12
    backward = [task.origin for task in cut.tasks if task.part and task.phase == "backward"]
    products = [
        task.name for task in graph.tasks if task.phase == "backward" and task.target == "aten.mm.default"
    ]
    in_parts = [name for name in products if name in backward]
    # All but those of a head that is tied to an embedding.
    assert len(in_parts) >= len(products) - 2 and all(backward.count(name) == parts for name in backward)
    assert sum(task.flops for task in cut.tasks) == sum(task.flops for task in graph.tasks)


@pytest.mark.parametrize("train", [True, False])
def test_dropouts_within_draw_their_masks_whole(train: bool) -> None:
    model, x = mlp(dropout=0.5).train(train), torch.randn(4, 8)
    captured = joint(model, (x,))
    graph = captured.graph
    cut = split_features(graph, 2, [stretch.tasks[0] for stretch in products(graph, 2)])
    drawn = [task for task in cut.tasks if task.random]
    assert cut.split.startswith(LABEL) and not any(task.part for task in drawn) and len(drawn) == 2 * train
    inputs = [*captured.flatten((x,)), torch.ones(4, 8)]
    found = []
    for each in (graph, cut):
        torch.manual_seed(0)
        with torch.no_grad():
            live = interpret(each, captured, inputs)
        found.append([live[name] for name in graph.outputs])
    for whole, parted in zip(*found):
        torch.testing.assert_close(parted, whole)
