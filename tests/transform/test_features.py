"""Products cut along features give what the whole gives, gradients included, and are cut only where one row leaves
nothing else."""

from __future__ import annotations

import pytest
import torch
from capturing import capture, joint
from executing import execute, given
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st
from tensor_models import GPT, Attention, Block, Gated, mlp
from torch import nn

import autopar
from autopar.errors import PlanError
from autopar.ir.device import Device, Link
from autopar.ir.graph import JOIN, SUM, Graph
from autopar.ir.machine import Machine
from autopar.transform.feature_split import LABEL, products, split_features
from autopar.transform.features import stretches

pytestmark = pytest.mark.slow


def lanes(flops: float = 1e6) -> Machine:
    """One CPU of two lanes, at a rate of its own."""
    return Machine((Device("cpu", "cpu", lanes=2, flops=(("float32", flops),), bytes_per_s=1e12),))


def two(flops: float = 1e6) -> Machine:
    """Two devices with memories of their own, and links between them that cost little."""
    rates = {"flops": (("float32", flops),), "bytes_per_s": 1e12}
    devices = (Device("cpu", "cpu", **rates), Device("cuda:0", "cuda", **rates))
    links = (Link("cpu", "cuda:0", 1e-5, 1e10, None), Link("cuda:0", "cpu", 1e-5, 1e10, None))
    return Machine(devices, links, absent=True)


def halves(
    model: nn.Module, *args: torch.Tensor, parts: int = 2, trained: bool = False
) -> tuple[Graph, Graph, float]:
    """The graph of a call, differentiated if `trained`, the same cut along features, and the largest difference of
    their outputs and gradients."""
    with torch.set_grad_enabled(trained):
        captured = joint(model.double() if trained else model.eval(), args)
    graph = captured.graph
    cut = split_features(graph, parts, [stretch.tasks[0] for stretch in products(graph, parts)]).check()
    whole, parted = (execute(each, captured, given(captured, args)) for each in (graph, cut))
    return graph, cut, max(float((whole[name] - parted[name]).abs().max()) for name in graph.outputs)


@settings(max_examples=5, deadline=None)
@drawn(st.sampled_from([2, 3, 4]), st.integers(1, 3), st.booleans(), st.booleans())
def test_attention_is_cut_by_heads(parts: int, each: int, sizes: bool, more: bool) -> None:
    heads = parts * each
    model = Attention(4 * heads, heads, sizes)
    graph, cut, off = halves(model, torch.randn(1 + more, 5, 4 * heads), parts=parts)
    assert off < 1e-5 and cut.split.startswith(LABEL)
    named = [task.origin for task in cut.tasks if task.part]
    assert all(named.count(name) == parts for name in named)
    assert sum(task.flops for task in cut.tasks) == sum(task.flops for task in graph.tasks)


@pytest.mark.parametrize("model", [mlp(), Gated()], ids=["mlp", "gated"])
def test_a_pair_adds_up_once_and_its_bias_is_added_once(model: nn.Module) -> None:
    _, cut, off = halves(model, torch.randn(1, 8))
    assert off < 1e-5 and [task.target for task in cut.tasks].count(SUM) == 1


def test_tied_heads_and_tables_are_cut_by_words() -> None:
    graph, cut, off = halves(GPT(), torch.arange(8).view(1, 8))
    assert off < 1e-5
    found = stretches(graph, 2, ())
    (vocabulary,) = [stretch for stretch in found if stretch.embeddings and stretch.columns]
    assert {*vocabulary.tasks} <= {task.origin for task in cut.tasks if task.part}
    assert not cut.readers["words.weight"]


@settings(max_examples=12, deadline=None)
@drawn(st.sampled_from([2, 3]), st.integers(1, 4), st.lists(st.integers(0, 11), min_size=1, max_size=9))
def test_words_are_looked_up_in_the_part_that_has_them(parts: int, width: int, words: list[int]) -> None:
    model = nn.Embedding(12, width)
    model.weight.data[0] = torch.inf
    with torch.no_grad():
        captured = capture(model, (torch.tensor(words),), {})
        cut = split_features(captured.graph, parts, [products(captured.graph, parts)[0].tasks[0]]).check()
        live = execute(cut, captured, [torch.tensor(words)])
        assert torch.equal(live[cut.outputs[0]], model(torch.tensor(words)))
        for wrong in (12, -1):
            with pytest.raises(IndexError):
                execute(cut, captured, [torch.tensor([*words[1:], wrong])])


def test_no_stretch_shares_a_task_with_another() -> None:
    with torch.no_grad():
        graph = capture(GPT().eval(), (torch.arange(8).view(1, 8),), {}).graph
    named = [name for stretch in stretches(graph, 2, ()) if not stretch.refusal for name in stretch.tasks]
    assert len(named) == len(set(named)) and len(named) > 10


@torch.no_grad()
def test_one_row_is_cut_along_features_where_that_is_predicted_to_be_shorter() -> None:
    model, row, rows = mlp(64).eval(), torch.randn(1, 8), torch.randn(8, 8)
    plan = autopar.plan(model, two(), example_inputs=(row,), measure=False)
    assert plan.costed.graph.split.startswith(LABEL) and plan.makespan < 0.7 * plan.best_single[1]
    quick = autopar.plan(model, two(1e15), example_inputs=(row,), measure=False)
    batch = autopar.plan(model, two(), example_inputs=(rows,), measure=False)
    assert not quick.costed.graph.split and not batch.costed.graph.split.startswith(LABEL)
    for machine, wanted in ((two(), None), (lanes(), "auto")):
        whole = autopar.plan(model, machine, example_inputs=(row,), measure=False, split=wanted)
        assert not whole.costed.graph.split
    with pytest.raises(PlanError, match="several lanes"):
        autopar.plan(nn.GELU(), lanes(), example_inputs=(row,), split="features", measure=False)


def rows(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64)


@settings(max_examples=8, deadline=None)
@drawn(st.sampled_from([2, 3, 4]), st.integers(1, 3), st.integers(1, 4), st.booleans(), st.booleans())
def test_a_pair_is_trained_in_parts(parts: int, each: int, batch: int, bias: bool, deep: bool) -> None:
    wide = parts * each
    model = nn.Sequential(nn.Linear(5, wide, bias), nn.GELU(), nn.Linear(wide, 3, bias))
    x = rows(batch, 2, 5) if deep else rows(batch, 5)
    _, cut, off = halves(model, x, parts=parts, trained=True)
    assert off < 1e-12 and cut.split.startswith(LABEL)
    # Each weight is read in parts alone, and each gradient of one is joined once, where the caller gets it.
    assert not cut.readers["0.weight"] and not cut.readers["2.weight"]
    assert [task.target for task in cut.tasks].count(JOIN) == (3 if bias else 2)


@pytest.mark.parametrize(
    "model, x, parts",
    [
        (Gated(), rows(4, 8), 2),
        (Attention(16, 4, True), rows(2, 5, 16), 4),
        (Block(16, 4, False), rows(2, 5, 16), 2),
        (GPT(), torch.arange(16).view(2, 8), 4),
    ],
    ids=["gated", "attention", "block", "gpt"],
)
def test_gates_and_heads_are_trained_in_parts(model: nn.Module, x: torch.Tensor, parts: int) -> None:
    graph, cut, off = halves(model, x, parts=parts, trained=True)
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
        live = execute(each, captured, inputs)
        found.append([live[name] for name in graph.outputs])
    for whole, parted in zip(*found):
        torch.testing.assert_close(parted, whole)
