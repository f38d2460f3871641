"""A graph written as sums gives what the graph gives, whole and in parts."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import cycle
from typing import Any

import networkx
import pytest
import torch
import torch.nn.functional as F
from capturing import capture, joint
from executing import execute, given
from torch import nn

from autopar.capture import Captured
from autopar.ir.graph import SUM, Graph, Task
from autopar.transform.row_sums import single_valued, summed
from autopar.transform.split import split

pytestmark = pytest.mark.slow

ROWS, WIDTH = 7, 5


def compare(graph: Graph, other: Graph, captured: Captured, inputs: list[torch.Tensor]) -> None:
    assert (other.outputs, other.updates) == (graph.outputs, graph.updates)
    before, after = execute(graph, captured, inputs), execute(other, captured, inputs)
    for name in (*graph.outputs, *(made for made, _ in graph.updates)):
        one, two = after[name], before[name]
        bound = {"float64": 1e-12, "float32": 1e-5}.get(graph.value[name].dtype, 2e-2)
        scale = max(1.0, float(two[two.isfinite()].abs().max())) if two.isfinite().any() else 1.0
        torch.testing.assert_close(one, two, rtol=bound, atol=bound * scale, equal_nan=True)


def same(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    *,
    sizes: tuple[int, ...] = (1, 4, 2),
    batch_norm: str = "full",
) -> tuple[Graph, Graph]:
    """Capture, rewrite, compare whole and in parts; the rewritten graph, and it in parts."""
    captured = joint(model, args)
    inputs = given(captured, args)
    whole = captured.graph
    rewritten = summed(whole, batch_norm=batch_norm).check()
    assert summed(whole, batch_norm=batch_norm) == rewritten
    compare(whole, rewritten, captured, inputs)
    parted = split(rewritten, sizes).check()
    if batch_norm == "full":
        compare(whole, parted, captured, inputs)
    return rewritten, parted


def parts_of(graph: Graph, target: str) -> list[Task]:
    return [task for task in graph.tasks if task.target.startswith(target) and task.part]


class Scored(nn.Module):
    """A layer and a loss."""

    def __init__(self, loss: Callable[..., Any], out: int = WIDTH) -> None:
        super().__init__()
        self.layer, self.loss = nn.Linear(WIDTH, out), loss

    def forward(self, x: torch.Tensor, *targets: torch.Tensor) -> Any:
        return self.loss(self.layer(x), *targets)


def rows(dtype: torch.dtype = torch.float64, *more: int) -> torch.Tensor:
    torch.manual_seed(len(more))
    return torch.randn(ROWS, *more, WIDTH, dtype=dtype)


LOSSES: dict[str, Callable[..., Any]] = {
    "mse": F.mse_loss,
    "smooth_l1": lambda y, t: F.smooth_l1_loss(y, t, beta=0.5),
    "huber": lambda y, t: F.huber_loss(y, t, delta=0.7),
    "soft_margin": lambda y, t: F.soft_margin_loss(y, t.sign()),
    "bce": lambda y, t: F.binary_cross_entropy(y.sigmoid(), t.sigmoid()),
    "bce_weighted": lambda y, t: F.binary_cross_entropy(y.sigmoid(), t.sigmoid(), t[0].abs()),
    "bce_logits": lambda y, t: F.binary_cross_entropy_with_logits(y, t.sigmoid(), pos_weight=t[0].exp()),
    "kl_mean": lambda y, t: F.kl_div(y.log_softmax(-1), t.softmax(-1), reduction="mean"),
    "soft_targets": lambda y, t: F.cross_entropy(y, t.softmax(-1)),
    "sum": lambda y, t: F.mse_loss(y, t, reduction="sum"),
    "mean": lambda y, t: (y * t).mean(),
    "mean_rows": lambda y, t: (y * t).mean(0).square().sum(),
    "var": lambda y, t: (y * t).var(0).sum() + (y + 100).std(0).sum() + y.var(unbiased=False),
    "several": lambda y, t: (F.mse_loss(y, t), F.l1_loss(y, t), y),
}


OTHERS = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, torch.float64) for name in LOSSES),
        *zip(["mse", "bce_weighted", "kl_mean", "var"], cycle(OTHERS)),
    ],
)
def test_losses_of_rows(name: str, dtype: torch.dtype) -> None:
    _, parted = same(Scored(LOSSES[name]).to(dtype), (rows(dtype), rows(dtype, 1)[:, 0]))
    assert any(task.target == SUM for task in parted.tasks)


def classes(ignored: tuple[int, ...] = (), *more: int) -> torch.Tensor:
    torch.manual_seed(5)
    target = torch.randint(WIDTH, (ROWS, *more))
    target[list(ignored)] = -100
    return target


WEIGHT = torch.linspace(0.2, 2, WIDTH, dtype=torch.float64)
CLASS_LOSSES: dict[str, Callable[..., Any]] = {
    "plain": F.cross_entropy,
    "weighted": lambda y, t: F.cross_entropy(y, t, WEIGHT.to(y.dtype)),
    "smooth_weighted": lambda y, t: F.cross_entropy(y, t, WEIGHT.to(y.dtype), label_smoothing=0.1),
    "sum": lambda y, t: F.cross_entropy(y, t, reduction="sum"),
    "none": lambda y, t: F.cross_entropy(y, t, reduction="none").mean(),
    "nll": lambda y, t: F.nll_loss(y.log_softmax(1), t),
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, torch.float64) for name in CLASS_LOSSES), *zip(["plain", "weighted"] * 2, OTHERS)],
)
def test_losses_of_classes(name: str, dtype: torch.dtype) -> None:
    captured = joint(Scored(CLASS_LOSSES[name]).to(dtype), (rows(dtype), classes()))
    rewritten = summed(captured.graph).check()
    parted = split(rewritten, (1, 4, 2)).check()
    # None ignored, a whole part, some of each, all: 0 ÷ 0, as in eager.
    for ignored in ((), (0,), (0, 3), tuple(range(ROWS))):
        inputs = given(captured, (rows(dtype), classes(ignored)))
        compare(captured.graph, rewritten, captured, inputs)
        compare(captured.graph, parted, captured, inputs)


@pytest.mark.parametrize("name", ["plain", "weighted", "smooth_weighted", "sum"])
def test_losses_of_classes_at_each_pixel(name: str) -> None:
    def model(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return CLASS_LOSSES[name](x.tanh(), t)

    x = torch.randn(ROWS, WIDTH, 3, 2, dtype=torch.float64, requires_grad=True)
    same(model, (x, classes((1,), 3, 2)))


def test_the_weight_of_the_targets_waits_for_no_score() -> None:
    _, parted = same(Scored(F.cross_entropy).double(), (rows(), classes()))
    graph = parted.networkx()
    total = next(task.name for task in parted.tasks if task.name.endswith("#total"))
    before = {parted.task[name].target for name in networkx.ancestors(graph, total)}
    assert before == {"aten.ne.Scalar"}
    backward = parts_of(parted, "aten.nll_loss_backward")
    losses = {task.name for task in parts_of(parted, "aten.nll_loss_forward")}
    assert len(backward) == len(losses) == 3
    assert all(losses.isdisjoint(networkx.ancestors(graph, task.name)) for task in backward)


def test_a_mean_of_half_precision_does_not_overflow() -> None:
    x = torch.full((ROWS, 4000), 200.0, dtype=torch.float16, requires_grad=True)
    t = torch.zeros(ROWS, 4000, dtype=torch.float16)

    def model(x: torch.Tensor, t: torch.Tensor) -> Any:
        return F.mse_loss(x, t), x.mean()

    captured = joint(model, (x, t))
    live = execute(split(summed(captured.graph), (3, 4)), captured, given(captured, (x, t)))
    assert [float(live[name]) for name in captured.graph.outputs[:2]] == pytest.approx([40000, 200])


class Dropped(nn.Module):
    def __init__(self, kind: type[nn.Module] = nn.Dropout, p: float = 0.4) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(WIDTH, 6), nn.Linear(6, 3)
        self.drop, self.last = kind(p), nn.Dropout(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.drop(self.one(x).transpose(1, 2)).transpose(1, 2)
        return self.last(self.two(y))


@pytest.mark.parametrize(
    ("dtype", "kind"), zip([torch.float64, torch.float32, torch.bfloat16], cycle([nn.Dropout, nn.Dropout1d]))
)
def test_dropout_draws_what_it_drew(kind: type[nn.Module], dtype: torch.dtype) -> None:
    model = Dropped(kind).to(dtype)
    x = rows(dtype, 4)
    _, parted = same(model, (x,))
    drawn = [task for task in parted.tasks if task.random]
    assert len(drawn) == 2 and drawn[1].after == (drawn[0].name,)
    graph = parted.networkx()
    for task in drawn:
        assert all(parted.task[name].target.startswith(("aten.ones", "aten.empty", "aten.permute", *RANDOM))
                   for name in networkx.ancestors(graph, task.name))  # fmt: skip
    assert len(parts_of(parted, "aten.")) >= 6
    captured = joint(model, (x,))
    inputs = given(captured, (x,))
    first = captured.graph.outputs[0]
    one, two = (execute(graph, captured, inputs)[first] for graph in (captured.graph, summed(captured.graph)))
    assert torch.equal(one, two)


RANDOM = ("aten.native_dropout", "autopar.bernoulli")


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_dropout_of_nothing_and_of_all(p: float) -> None:
    same(Dropped(p=p).double(), (rows(torch.float64, 4),))


class Normed(nn.Module):
    def __init__(self, affine: bool = True, track: bool = True, dims: int = 1) -> None:
        super().__init__()
        kind = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d}[dims]
        # The norm takes a bias away: its gradient would be no more than rounding.
        self.one, self.two = nn.Conv1d(WIDTH, 4, 1, bias=False), nn.Conv1d(4, 3, 1)
        self.norm = kind(4, affine=affine, track_running_stats=track, momentum=0.3)
        self.dims = dims
        if affine:
            nn.init.uniform_(self.norm.weight, 0.5, 2)
            nn.init.uniform_(self.norm.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.one(x) * 3 + (50 if x.dtype == torch.float64 else 1)
        y = self.norm(y.unsqueeze(2) if self.dims == 2 else y)
        return self.two((y.squeeze(2) if self.dims == 2 else y).relu())


@pytest.mark.parametrize(
    ("affine", "track", "dims"), [(True, True, 1), (True, False, 2), (False, True, 2), (False, False, 1)]
)
def test_batch_norm_has_the_statistics_of_the_whole_batch(affine: bool, track: bool, dims: int) -> None:
    model = Normed(affine, track, dims).double()
    x = torch.randn(ROWS, WIDTH, 6, dtype=torch.float64, requires_grad=True)
    rewritten, parted = same(copy.deepcopy(model), (x,))
    assert len(parts_of(parted, "aten.batch_norm")) == 3
    assert not any(
        "join" in task.name for task in parted.tasks if task.name.split("#")[0] not in rewritten.outputs
    )
    assert len(parted.updates) == 3 * track


def test_batch_norm_of_frozen_weights_and_input() -> None:
    model = Normed().double()
    x = torch.randn(ROWS, WIDTH, 6, dtype=torch.float64)
    model.norm.requires_grad_(False)
    same(model, (x,))
    model.norm.requires_grad_(True)
    model.one.requires_grad_(False)
    same(model, (x,))


@pytest.mark.parametrize(("dtype", "mixed"), [(torch.float32, False), (torch.float16, True)])
def test_batch_norm_in_other_types(dtype: torch.dtype, mixed: bool) -> None:
    model = Normed().to(dtype)
    if mixed:
        model.norm.float()
    same(model, (torch.randn(ROWS, WIDTH, 6, dtype=dtype, requires_grad=True),))


def test_batch_norm_in_evaluation_is_cut_by_rows() -> None:
    model = Normed().double().eval()
    x = torch.randn(ROWS, WIDTH, 6, dtype=torch.float64, requires_grad=True)
    _, parted = same(model, (x,))
    assert len(parts_of(parted, "aten.native_batch_norm_backward")) == 3


def test_a_part_of_one_row_needs_no_variance_in_evaluation() -> None:
    for training, lone in ((False, False), (True, True)):
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).train(training)
        parted = split(summed(joint(model, (torch.randn(4, 4),)).graph, batch_norm="per_part"), (3, 1))
        assert parted.split and (single_valued(parted) is not None) == lone


def test_sizes_that_equal_the_batch_by_chance_do_no_harm() -> None:
    class Square(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Conv1d(ROWS, ROWS, 1), nn.Conv1d(ROWS, ROWS, 1)
            self.norm, self.drop = nn.BatchNorm1d(ROWS), nn.Dropout(0.3)

        def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(self.two(self.drop(self.norm(self.one(x))).relu()), t)

    x = torch.randn(ROWS, ROWS, ROWS, dtype=torch.float64)
    _, parted = same(Square().double(), (x, torch.randint(ROWS, (ROWS, ROWS))))
    assert not any("join" in task.name for task in parted.tasks)


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.ReLU()), (3, 4)),
        (lambda x: x.mean((2, 3)) + x.var((2, 3)), (3, 4, 5, 6)),
    ],
    ids=["no sums of rows", "means within a row"],
)
@torch.no_grad()
def test_graphs_without_sums_over_rows_are_unchanged(
    model: Callable[..., Any], shape: tuple[int, ...]
) -> None:
    graph = capture(model, (torch.randn(shape),), {}).graph
    assert summed(graph) == graph
