"""Layers split over ranks by columns and rows: the same training, and said why others are not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from grid import apart, grid
from ranks import ranks
from tensor_models import (
    GPT,
    Attention,
    Averaged,
    Functional,
    Gated,
    Learned,
    mlp,
)
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from autopar.distributed.tensor_split import TensorPlan, clip_grad_norm_, tensor_parallel, tensor_plan
from autopar.errors import PlanError, RunError

pytestmark = pytest.mark.slow

CLOSE = 1e-9
FEWER = 5
"""Steps of models that take 50 in the grid."""
MODELS: dict[str, Any] = {"mlp": mlp, "gated": Gated, "gpt": GPT}


def split(model: nn.Module, given: Tensor, **options: Any) -> TensorPlan:
    return tensor_parallel(model, example_inputs=(given,), **options)


def whole(tensor: Tensor) -> Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach()


def batch(name: str, step: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(step)
    if name.startswith("gpt"):
        tokens = torch.randint(0, 32, (4, 9), generator=random)
        return tokens[:, :-1], tokens[:, 1:]
    given = torch.randn((6, 8), generator=random, dtype=torch.float64)
    return given, given.cumsum(-1)


def loss_of(model: nn.Module, name: str, step: int, rows: slice = slice(None)) -> Tensor:
    given, wanted = (each[rows] for each in batch(name, step))
    answer = model(given)
    return (
        F.cross_entropy(answer.flatten(0, 1), wanted.flatten())
        if name.startswith("gpt")
        else F.mse_loss(answer, wanted)
    )


def all_trained(rank: int, names: list[str], steps: int) -> dict[str, dict[str, Any]]:
    return {name: trained(rank, name, steps) for name in names}


def trained(rank: int, name: str, steps: int) -> dict[str, Any]:
    """One model split and one plain, both from rank 0's weights, trained on the same batches in float64."""
    torch.manual_seed(rank)
    model, plain = MODELS[name]().double(), MODELS[name]().double()
    before = {key: id(value) for key, value in model.named_parameters()}
    plan = split(model, batch(name, 0)[0])
    plain.load_state_dict({key: whole(value) for key, value in model.state_dict().items()})
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.01, momentum=0.9) for each in (model, plain)]
    losses = []
    for step in range(steps):
        for each, optimizer in zip((model, plain), optimizers):
            optimizer.zero_grad()
            loss = loss_of(each, name, step)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    ours, theirs = model.state_dict(), plain.state_dict()
    return {
        "modules": sorted(path for group in plan.split for path in group.modules),
        "forms": {group.whole_sizes for group in plan.split if group.rows},
        "parts": [
            value.to_local().numel() / value.numel() for value in ours.values() if isinstance(value, DTensor)
        ],
        "replaced": sum(id(value) != before[key] for key, value in model.named_parameters()),
        "losses": losses,
        "off": max(float((whole(ours[key]) - theirs[key]).abs().max()) for key in theirs),
        "text": str(plan),
    }


@pytest.mark.parametrize(
    ("count", "names", "steps"),
    [
        pytest.param(2, ["mlp"], 50, marks=pytest.mark.release),
        (2, ["gpt"], FEWER),
        pytest.param(2, ["gated"], FEWER, marks=pytest.mark.release),
        (4, ["mlp"], FEWER),
        pytest.param(2, ["gated"], 50, marks=pytest.mark.grid),
        *grid("tensor split", lambda name, count: (count, [name], 50), ("mlp", "gpt")),
    ],
)
def test_steps_equal_those_of_one_process(
    count: int, names: list[str], steps: int, record_property: Callable[[str, object], None]
) -> None:
    everything = ranks(count, all_trained, names, steps, timeout_s=240)
    for name in names:
        each = [of_rank[name] for of_rank in everything]
        record_property("apart", apart(each[0]["losses"][::2], each[0]["losses"][1::2]))
        for found in each:
            ours, theirs = found["losses"][::2], found["losses"][1::2]
            assert ours == pytest.approx(theirs, rel=CLOSE) and found["losses"] == each[0]["losses"]
            assert found["off"] < CLOSE and ours[-1] != ours[0]
            assert min(found["parts"]) == 1 / count
        assert False in each[0]["forms"] and (True in each[0]["forms"]) == (name == "gpt")
        split = {"mlp": 2, "gated": 3, "gpt": 15}[name]
        assert len(each[0]["modules"]) == split


def replicated(rank: int, name: str) -> tuple[int, list[float], list[float]]:
    """Two replicas of two ranks each, on halves of each batch, beside one process on all of it."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(0)
    model = MODELS[name]().double()
    plain = copy.deepcopy(model)
    plan = split(model, batch(name, 0)[0], group=mesh["tp"])
    # DDP takes no DTensor that two modules share.
    copies = (
        fully_shard(model, mesh=mesh["dp"])
        if name == "gpt"
        else DistributedDataParallel(model, device_mesh=mesh["dp"])
    )
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.01, momentum=0.9) for each in (copies, plain)]
    losses = []
    mine = slice(mesh["dp"].get_local_rank(), None, 2)
    for step in range(4):
        for each, optimizer, rows in zip((copies, plain), optimizers, (mine, slice(None))):
            optimizer.zero_grad()
            loss = loss_of(each, name, step, rows)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return len(plan.split), losses[::2], losses[1::2]


@pytest.mark.parametrize("name", ["mlp", pytest.param("gpt", marks=pytest.mark.grid)])
def test_replicas_of_split_models_equal_one_process(name: str) -> None:
    (split, ours, wanted), (_, same, _), (_, others, _), _ = ranks(4, replicated, name, timeout_s=240)
    assert split and ours == same != others
    assert [(one + other) / 2 for one, other in zip(ours, others)] == pytest.approx(wanted, rel=CLOSE)


def test_the_report_names_heads_that_ranks_cannot_share_evenly() -> None:
    tokens = batch("gpt", 0)[0]
    plan = planned(GPT(heads=2), tokens, parts=4)
    assert "2 pieces" in str(plan) and "4 ranks cannot share" in str(plan)
    assert not any("attention.o" in path for group in plan.split for path in group.rows)
    assert any("attention.o" in path for group in planned(GPT(heads=2), tokens).split for path in group.rows)


def unlike(rank: int) -> list[str]:
    """Errors for ranks with different models, and with different examples."""
    said = []
    for width, rows in ((8 + 8 * rank, 3), (8, 3 + rank)):
        with pytest.raises(PlanError) as refused:
            split(nn.Sequential(nn.Linear(8, width), nn.ReLU()), torch.ones(rows, 8))
        said.append(str(refused.value))
    return said


def test_ranks_that_differ_are_refused() -> None:
    first, second = ranks(2, unlike)
    assert first == second and "16 × 8 float32" in first[0] and "examples of [[4, 8]]" in first[1]


def odd_ones(rank: int) -> dict[str, Any]:
    """Models that a split into local parts would change, dropout, and a clipped norm."""
    found: dict[str, Any] = {}
    given = torch.arange(24.0).view(3, 8)
    for mixed in (False, True):
        model = Averaged(mixed)
        plan = split(model, given)
        names = [type(weight).__name__ for weight in model.parameters()]
        hooks = sum(len(module._forward_hooks) for module in model.modules())
        found[f"mixed {mixed}"] = (
            [group.whole_sizes for group in plan.split],
            [g.why for g in plan.groups],
            names,
            hooks,
        )
    model = mlp(dropout=0.5)
    model[2].p = 0.0
    torch.manual_seed(rank)
    split(model, given)
    model[4].register_forward_hook(
        lambda module, args, answer: found.__setitem__("drops", (answer == 0).tolist())
    )
    loss = model(torch.ones(64, 8)).square().mean()
    loss.backward()
    full = {key: whole(value.grad).clone() for key, value in model.named_parameters()}
    found["norm"] = float(clip_grad_norm_(model.parameters(), 1e-3))
    found["clipped"] = float(torch.stack([whole(p.grad).norm() for p in model.parameters()]).norm())
    found["whole norm"] = float(torch.stack([gradient.norm() for gradient in full.values()]).norm())
    torch.manual_seed(rank)
    with pytest.raises(RunError, match="one number on all ranks"):
        model(given)
    model.eval()(given)
    model = Functional()
    torch.manual_seed(rank)
    found["functional"] = len(split(model, given).split)
    model(given).square().mean().backward()
    found["shared"] = model.norm.weight.grad.tolist()
    return found


def test_wrong_parts_are_undone_and_dropout_agrees() -> None:
    one, other = ranks(2, odd_ones)
    forms, _, names, _ = one["mixed False"]
    assert forms == [True] and "DTensor" in names
    forms, why, names, hooks = one["mixed True"]
    assert forms == [] and "not the answers of the plain model" in why[0]
    assert set(names) == {"Parameter"} and hooks == 0
    assert one["drops"] == other["drops"]
    assert one["norm"] == pytest.approx(one["whole norm"], rel=1e-5) == other["norm"]
    assert one["clipped"] == pytest.approx(1e-3, rel=1e-2)
    assert one["functional"] == 1 and one["shared"] == other["shared"]


def planned(model: nn.Module, given: Tensor, parts: int = 2) -> TensorPlan:
    return tensor_plan(model, parts, example_inputs=(given,))


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (mlp(dropout=0.5), "set its dropout to 0"),
        (Learned(), "which is learned"),
        (nn.Sequential(Attention(8, 2, True, dropout=0.1)), "draws random numbers"),
        (nn.Sequential(nn.Linear(8, 16), nn.Softmax(-1), nn.Linear(16, 8)), "parts of the features through"),
        (nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(8, 16)), nn.Linear(16, 8)), ""),
    ],
    ids=[
        "dropout within",
        "learned factor",
        "dropout of attention",
        "softmax of features",
        "weight norm",
    ],
)
def test_the_report_names_why_layers_are_not_split(model: nn.Module, why: str) -> None:
    plan = planned(model, torch.randn(2, 4, 8))
    assert not any(group.rows for group in plan.split)
    assert why in plan.explain()


def test_the_gradient_of_a_single_tensor_is_clipped_as_by_torch() -> None:
    found, expected = (nn.Parameter(torch.zeros(4, 3)) for _ in range(2))
    found.grad, expected.grad = (torch.arange(12.0).view(4, 3) for _ in range(2))
    norm = clip_grad_norm_(found, 0.5)
    assert norm == nn.utils.clip_grad_norm_(expected, 0.5) > 1
    torch.testing.assert_close(found.grad, expected.grad)


def test_mistakes_are_said() -> None:
    with pytest.raises(PlanError, match="torchrun"):
        tensor_parallel(mlp(), example_inputs=(torch.ones(2, 8),))
    with pytest.raises(PlanError, match="two processes"):
        planned(mlp(), torch.ones(2, 8), parts=1)
