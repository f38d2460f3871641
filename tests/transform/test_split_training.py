"""A joint graph in parts gives what it gives whole: outputs from rows, gradients of weights from sums."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import split_models
import torch
from executing import in_parts
from hypothesis import given, settings
from hypothesis import strategies as st
from split_models import MLP, D
from torch import nn
from turns import by_turns

from autopar.ir.graph import JOIN, PART, SUM, Graph
from autopar.transform.batch_axis import batch_of


class Bag(nn.Module):
    """A small table of words, their mean, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(7, 6), nn.Linear(6, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.words(ids).mean(1))


class Loss(nn.Module):
    """A model whose rows end in one number."""

    def __init__(self, model: nn.Module, loss: Callable[[Any, Any], torch.Tensor]) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return self.loss(self.model(x), target)


class Decoder(nn.Module):
    """Upwards again: transposed convolution, resizing, padding, pieces cut out and put together."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.mix = nn.ConvTranspose2d(3, 4, 2, 2), nn.Conv2d(6, 2, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = nn.functional.interpolate(self.up(x), scale_factor=2, mode="bilinear")
        both = torch.cat([wide[:, :2, 1:-1], nn.functional.pad(wide, (1, 1))[:, :, 1:-1, 1:-1]], 1)
        return nn.functional.glu(self.mix(both), 1).select(2, 0)


class Spread(nn.Module):
    """The gradient of a plain sum is a number that is spread over the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.model = MLP()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x).sum()


F = nn.functional
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], tuple[torch.Tensor, ...]]]] = {
    **{
        name: (lambda model=split_models.MODELS[name][0]: copy.deepcopy(model), split_models.MODELS[name][1])
        for name in ("mlp", "conv", "block", "later")
    },
    "bag": (Bag, lambda n: (torch.randint(7, (n, 5)),)),
    "decoder": (Decoder, lambda n: (torch.randn(n, 3, 5, 5, **D),)),
    "classes": (
        lambda: Loss(MLP(), lambda y, t: F.cross_entropy(y, t, reduction="sum", ignore_index=1)),
        lambda n: (torch.randn(n, 8, **D), torch.arange(n) % 4),
    ),
    "weighed": (
        lambda: Loss(
            MLP(), lambda y, t: F.cross_entropy(y, t, reduction="none", label_smoothing=0.1) @ t.double()
        ),
        lambda n: (torch.randn(n, 8, **D), torch.arange(n) % 4),
    ),
    "distance": (
        lambda: Loss(MLP(), lambda y, t: F.mse_loss(y, t, reduction="sum")),
        lambda n: (torch.randn(n, 8, **D), torch.randn(n, 4, **D)),
    ),
    "gram": (
        lambda: Loss(MLP(), lambda y, t: (y.t() @ y - t).pow(2).sum()),
        lambda n: (torch.randn(n, 8, **D), torch.randn(4, 4, **D)),
    ),
    "spread": (Spread, lambda n: (torch.randn(n, 8, **D),)),
}


def origins(graph: Graph) -> set[str]:
    """Names that cut tasks had in the whole graph."""
    return {task.origin for task in graph.tasks if task.part}


def source(graph: Graph, name: str) -> str:
    """The target of what made a value, views apart."""
    task = graph.task[graph.producer[name]]
    while task.free:
        task = graph.task[graph.producer[task.inputs[0]]]
    return task.target


@pytest.mark.slow
@by_turns("name, sizes", MODELS, [(3, 4, 1), (2, 6)])
def test_a_joint_graph_in_parts_gives_what_it_gives_whole(name: str, sizes: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    make, given = MODELS[name]
    model, args = make().double(), given(sum(sizes))
    captured, parted = in_parts(model, args, sizes, trained=True)
    whole = captured.graph
    assert batch_of(whole) == sum(sizes)
    cut = origins(parted)
    flops = sum(task.flops for task in whole.tasks)
    assert sum(task.flops for task in whole.tasks if task.name in cut) >= 0.95 * flops > 0
    state = {value for value, _ in captured.gradients if whole.value[value].kind == "state"}
    assert len(state) == len([weight for weight in model.parameters() if weight.requires_grad])
    for value, gradient in captured.gradients:
        if value in state:
            assert source(parted, gradient) == SUM, whole.value[value].path
    joins = [task for task in parted.tasks if task.target == JOIN]
    assert {task.outputs[0] for task in joins} <= {*whole.outputs}
    sums = [task for task in parted.tasks if task.target == SUM]
    assert all(len(task.inputs) == len(sizes) for task in sums)


def test_gradients_of_inputs_keep_their_rows() -> None:
    x = torch.randn(8, 8, **D, requires_grad=True)
    captured, parted = in_parts(MLP().double(), (x,), (3, 4, 1), trained=True)
    assert dict(captured.gradients).keys() >= {captured.graph.inputs[0]}
    gradient = dict(captured.gradients)[captured.graph.inputs[0]]
    task = parted.task[parted.producer[gradient]]
    assert (task.target, task.phase) == (JOIN, "backward")


def test_each_task_of_ours_is_in_the_phase_of_who_asks() -> None:
    captured, parted = in_parts(MLP().double(), (torch.randn(8, 8, **D),), (3, 5), trained=True)
    tangent = captured.tangents[0][0]
    output = captured.graph.outputs[0]
    assert parted.task[parted.producer[output]].phase == "forward"
    parts = [task for task in parted.tasks if task.target == PART]
    assert {task.phase for task in parts if tangent in task.inputs} == {"backward"}
    assert {task.phase for task in parts if tangent not in task.inputs} == {"forward"}
    phases = [task.phase for task in parted.tasks]
    assert phases == sorted(phases, key=("forward", "backward").index)
    for task in parted.tasks:
        if task.target == SUM:
            first = parted.task[parted.producer[task.inputs[0]]]
            assert (task.module, task.source, task.phase) == (first.module, first.source, "backward")
            assert task.name == f"{task.outputs[0]}#sum"
            assert task.inputs == tuple(f"{task.outputs[0]}#{index}" for index in range(2))


def test_a_table_much_larger_than_the_rows_is_not_summed() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.head = nn.Embedding(1000, 6), nn.Linear(6, 4)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.words(ids))

    _, parted = in_parts(Words().double(), (torch.randint(1000, (6, 2)),), (3, 3), trained=True)
    (task,) = (task for task in parted.tasks if "embedding_dense_backward" in task.target)
    assert not task.part
    assert any(task.target == "aten.mm.default" and task.part for task in parted.tasks)


@pytest.mark.slow
@settings(max_examples=6, deadline=None)
@given(st.data())
def test_any_differentiable_program_is_the_same_in_parts(data: st.DataObject) -> None:
    """Random programs over a pool of values with a weight: views, products, norms, reductions, joins."""
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    steps: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]] = {
        "linear": lambda a, b, w: F.linear(a, w) / 3,
        "residual": lambda a, b, w: a.relu() - b.mean(1, keepdim=True),
        "flat": lambda a, b, w: a.reshape(-1).view(a.shape) + 1,
        "flip": lambda a, b, w: a.flip(0) + b,
        "scale": lambda a, b, w: a * w[0] + b,
        "turn": lambda a, b, w: a.transpose(0, 1).contiguous().transpose(0, 1) * b,
        "merge": lambda a, b, w: (a.reshape(-1, 6) @ w).view(a.shape) / 3,
        "later": lambda a, b, w: (a.transpose(0, 1).reshape(-1, 6) @ w).view(4, -1, 6).transpose(0, 1) / 3,
        "softmax": lambda a, b, w: (a + b).softmax(-1),
        "attend": lambda a, b, w: F.scaled_dot_product_attention(a, b, a @ w / 3),
        "norm": lambda a, b, w: F.layer_norm(a, (6,), w[0], w[1]) + b,
        "scan": lambda a, b, w: a.cumsum(0) / 6,
        "mix": lambda a, b, w: a.softmax(1) @ b.transpose(1, 2) @ b / 6,
        "centre": lambda a, b, w: a - b.mean(0, keepdim=True),
        "gram": lambda a, b, w: a + torch.einsum("bti,btj->ij", a, b)[:1] / 60,
        "slices": lambda a, b, w: torch.cat([a[:, :2], b[:, 2:]], 1),
        "rows": lambda a, b, w: torch.cat([a[:2], b[2:]], 0),
        "pick": lambda a, b, w: a.gather(1, b.argsort(1)) + a.amax(1, keepdim=True),
        "expand": lambda a, b, w: b[:, :1].expand(a.shape[0], a.shape[1], -1) * a,
    }
    names = sorted(steps)
    program = data.draw(st.lists(st.tuples(st.sampled_from(names), *(st.integers(0, 3),) * 2), max_size=7))
    total = data.draw(st.booleans())

    class Program(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(6, 6, **D))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            pool = [x @ self.weight, x.tanh()]
            for name, one, other in program:
                pool.append(
                    steps[name](pool[-1 - one % len(pool)], pool[-1 - other % len(pool)], self.weight)
                )
            result = pool[-1] + 0 * pool[0]
            return result.sum() if total else result

    rows = data.draw(st.sampled_from([5, 6, 7]))
    first = data.draw(st.integers(1, rows - 1))
    in_parts(
        Program(), (torch.randn(rows, 4, 6, **D),), (first, rows - first), trained=data.draw(st.booleans())
    )
