"""Calls of a pipeline: what models take and give beside one tensor, what they keep, and what every process refuses."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.job_models import job_of
from helpers.ranks import ranks
from torch import nn
from torch.nn import functional as F

from autopar import PlanError

pytestmark = pytest.mark.slow

ROWS, COUNT = 8, 2
"""Rows of a batch, and micro-batches."""


class Normed(nn.Module):
    """Statistics that move in both stages, and numbers of rows of a table that come from the first."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)
        self.first, self.second = nn.BatchNorm1d(8), nn.BatchNorm1d(8)
        self.table = nn.Embedding(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.first(self.a(x)))
        places = x.argmax(1)
        return self.c(torch.tanh(self.second(self.b(x) + self.table(places))))


class Loaded(nn.Module):
    """Inputs of several names, of which some are those of torch's own arguments, and a loss beside the logits."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.unused = nn.Linear(8, 8), nn.Linear(8, 4), nn.Linear(3, 3)

    def forward(
        self, x: torch.Tensor, target: torch.Tensor, *, plus: dict[str, torch.Tensor], scale: float = 1.0
    ) -> dict[str, torch.Tensor]:
        hidden = torch.tanh(self.a(x) + plus["one"] - 3 * plus["other"])
        logits = self.b(hidden) * scale
        return {"loss": F.mse_loss(logits, target), "logits": logits}


def _job(model: nn.Module, loss: Callable[..., Any], args: Any, kwargs: Any, replicas: int = 1) -> Any:
    """Two stages of equally many units, or as many replicas of one."""
    from autopar.distributed.pipeline.units import units

    rows = ROWS // COUNT // replicas
    cut = torch.utils._pytree.tree_map_only(torch.Tensor, lambda leaf: leaf[:rows], (args, kwargs))
    return job_of(units(model, *cut), 2 // replicas, 1, replicas, COUNT, "1f1b", criterion=loss)


def _moved(rank: int) -> tuple[dict[str, float], float, bool, str]:
    """Differences of buffers and loss to one process after a step; True if generators are as before; the error of
    an answer."""
    torch.manual_seed(0)
    model = Normed().double()
    plain, x, y = copy.deepcopy(model), torch.randn(ROWS, 8).double(), torch.randn(ROWS, 4).double()
    # Memory that was used before has numbers that are no places of the table.
    litter = [torch.full((size,), 10**9) for size in range(1, 64)]
    del litter
    job = _job(model, F.mse_loss, (x,), {})
    before = torch.get_rng_state()
    found = float(job.step(x, target=y))
    same = torch.equal(before, torch.get_rng_state())
    losses = [float(F.mse_loss(plain(a), b).detach()) for a, b in zip(x.chunk(COUNT), y.chunk(COUNT))]
    state = plain.state_dict()
    buffers = {path for path, _ in plain.named_buffers()}
    apart = {
        path: float((tensor - state[path]).abs().max())
        for path, tensor in job.state_dict().items()
        if path in buffers
    }
    with pytest.raises(PlanError) as refused:
        job(x)
    return apart, abs(found - sum(losses) / COUNT), same, str(refused.value)


def test_a_step_moves_statistics_as_often_as_there_are_micro_batches():
    found = ranks(2, _moved)
    assert {path.partition(".")[0] for apart, *_ in found for path in apart} == {"first", "second"}
    for apart, loss, same, refused in found:
        assert all(difference < 1e-12 for difference in apart.values()), apart
        assert loss < 1e-12 and same
        assert "batch_norm" in refused and "evaluate it in one process" in refused


def _given(rank: int) -> tuple[list[float], list[str], dict[str, Any], int]:
    """Losses apart from those of one process, for arguments given in several ways; what is refused; the paths and
    shapes of state, and the spans of the timeline after an answer more than of the step before it."""
    torch.manual_seed(0)
    model = Loaded().double()
    plain = copy.deepcopy(model)
    x, one, other = (torch.randn(ROWS, 8).double() for _ in range(3))
    y, plus = torch.randn(ROWS, 4).double(), {"one": one, "other": other}
    job = _job(model, lambda found: found["loss"], (x, y), {"plus": plus, "scale": 2.0})
    expected = float(plain(x, y, plus=plus, scale=2.0)["loss"].detach())
    turned = {"other": other, "one": one}
    ways: list[tuple[tuple, dict]] = [
        ((x, y), {"plus": plus, "scale": 2.0}),
        ((x, y), {"scale": 2.0, "plus": turned}),
    ]
    apart = [abs(float(job.step(*args, **kwargs)) - expected) for args, kwargs in ways]
    spans, said = len(job.timeline.spans), []
    wrong: list[tuple[tuple, dict]] = [
        ((x, y), {"plus": plus, "scale": 3.0}),
        ((x, y), {"plus": {"one": one}, "scale": 2.0}),
        ((x[:4], y), {"plus": plus, "scale": 2.0}),
        ((x[:, :6], y), {"plus": plus, "scale": 2.0}),
        ((x.float(), y), {"plus": plus, "scale": 2.0}),
    ]
    for args, kwargs in wrong:
        with pytest.raises(PlanError) as refused:
            job.step(*args, **kwargs)
        said.append(str(refused.value))
    if rank == 0:
        assert job(x, y, plus=plus, scale=2.0) is None
    else:
        with pytest.raises(PlanError) as refused:
            job(x, y, plus=plus, scale=2.0)
        said.append(str(refused.value))
    shapes = {path: [*tensor.shape] for path, tensor in job.state_dict().items()}
    assert {path for path, _ in job.named_parameters()} == shapes.keys()
    return apart, said, shapes, len(job.timeline.spans) - spans


def test_arguments_are_known_by_name_and_every_process_refuses_others():
    first, second = ranks(2, _given)
    for apart, said, _, more in (first, second):
        assert max(apart) < 1e-12 and more == 0
        assert "scale was 2.0 in example_inputs" in said[0] and "is 3.0 now" in said[0]
        assert "captured with x, target, plus['one'], plus['other'], scale" in said[1]
        assert "[4, 8] where a batch of 8 rows was planned" in said[2]
        assert "x was rows of [8] in float64" in said[3] and "is rows of [6] in float64 now" in said[3]
        assert "padded" in said[3] and "is rows of [8] in float32 now" in said[4]
    assert "an output of [] has not the rows of its micro-batch" in second[1][5]
    assert {**first[2], **second[2]}.keys() == Loaded().state_dict().keys()
    assert first[2]["unused.weight"] == [3, 3] and "unused.weight" not in second[2]


def _unfrozen(rank: int) -> str:
    torch.manual_seed(0)
    model, x, y = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4)), torch.randn(ROWS, 8), torch.randn(ROWS, 4)
    model[0].requires_grad_(False)
    job = _job(model, F.mse_loss, (x,), {}, replicas=2)
    job.step(x, target=y)
    model[0].requires_grad_(True)
    with pytest.raises(PlanError) as refused:
        job.step(x, target=y)
    return str(refused.value)


def test_unfreezing_after_distribution_is_refused():
    assert all("requires_grad of 0.weight has changed" in said for said in ranks(2, _unfrozen))
