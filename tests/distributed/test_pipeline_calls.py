"""Calls of a pipeline: what models take and give beside one tensor, what they keep, and what every process refuses."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from helpers.ranks import ranks
from torch import nn
from torch.nn import functional as F

pytestmark = [pytest.mark.slow, pytest.mark.thin(2)]

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


def _job(model: nn.Module, loss: Callable[..., Any], args: Any, kwargs: Any, replicas: int = 1) -> Any:
    """Two stages of equally many units, or as many replicas of one."""
    from autopar.distributed.pipeline.job import Distributed
    from autopar.distributed.pipeline.units import units
    from autopar.ir.distribution import Distribution, Stage
    from autopar.ir.hosts import Hosts

    positions, rows = 2 // replicas, ROWS // COUNT // replicas
    cut = torch.utils._pytree.tree_map_only(torch.Tensor, lambda leaf: leaf[:rows], (args, kwargs))
    chain = units(model, *cut)
    ends = [len(chain.nodes) * at // positions for at in range(positions + 1)]
    stages = tuple(Stage(first, stop, 1, 1, 1, 1, 1) for first, stop in pairwise(ends))
    hosts = Hosts.declare("2 x cpu over ethernet-1")
    names = tuple(host.name for host in hosts.hosts)
    of_replicas = tuple(names[at : at + positions] for at in range(0, 2, positions))
    plan = Distribution(
        "model", chain.names, hosts, stages, of_replicas, COUNT, "1f1b", ROWS, 1.0, 1.0, (1,) * positions
    ).check()
    return Distributed(chain, plan, loss, None, torch.device("cpu"), lambda stage: stage)


def _moved(rank: int) -> tuple[dict[str, float], float, bool]:
    """How far buffers are from those of one process after a step, and the loss; whether generators are as before."""
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
    return apart, abs(found - sum(losses) / COUNT), same


def test_a_step_moves_statistics_as_often_as_there_are_micro_batches():
    found = ranks(2, _moved)
    assert {path.partition(".")[0] for apart, *_ in found for path in apart} == {"first", "second"}
    for apart, loss, same in found:
        assert all(difference < 1e-12 for difference in apart.values()), apart
        assert loss < 1e-12 and same
