"""Replicas that share out their parameters by FSDP2: steps are those of one process, and memory is shared."""

from __future__ import annotations

import copy
import gc
from itertools import pairwise

import pytest
import torch
from helpers.job_models import loss, made, trained
from helpers.ranks import ranks

STEPS = 50


def _plan(units, positions: int, chunks: int, replicas: int, micro_batches: int, schedule: str):
    """An even split by hand, each stage in three groups."""
    from autopar.ir.distribution import Distribution, Stage
    from autopar.ir.hosts import Hosts

    count = positions * chunks
    ends = [len(units.nodes) * i // count for i in range(count + 1)]
    stages = tuple(
        Stage(first, stop, 1, 1, 1, 1, 1, (*range(first + 1, stop, (stop - first + 2) // 3), stop))
        for first, stop in pairwise(ends)
    )
    hosts = Hosts.declare(f"{positions * replicas} x cpu over ethernet-1")
    names = [host.name for host in hosts.hosts]
    rows = tuple(tuple(names[r * positions : (r + 1) * positions]) for r in range(replicas))
    return Distribution(
        "model", units.names, hosts, stages, rows, micro_batches, schedule, 16, 1.0, 1.0, (1,) * positions
    ).check()


def _job(name: str, *shape):
    from autopar.distributed.pipeline.job import Distributed
    from autopar.distributed.pipeline.units import units

    model, x, y = made(name)
    chain = units(model, (x[: len(x) // shape[2] // shape[3]],), {})
    plan = _plan(chain, *shape)
    return Distributed(chain, plan, loss, None, torch.device("cpu"), lambda stage: stage), model, x, y


def _trains(rank: int, cases) -> list:
    """Of each case the largest differences of losses and weights to one process, after `STEPS` steps."""
    found = []
    for name, *shape in cases:
        model, x, y = made(name)
        expected = trained(model, x, y, STEPS)
        job, own, *_ = _job(name, *shape)
        optimizer = torch.optim.SGD(job.parameters(), lr=0.1)
        losses = []
        for step in range(STEPS):
            optimizer.zero_grad()
            losses.append(float(job.step(x, target=y)))
            optimizer.step()
            if step == STEPS // 2:
                job(x)  # Serving in between leaves the shards as they were.
        state = model.state_dict()
        weights = max(
            float((tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).sub(state[path]).abs().max())
            for path, tensor in job.state_dict().items()
        )
        found.append((max(abs(a - b) for a, b in zip(losses, expected)), weights, sorted(job.state_dict())))
    return found


TWO = [
    ("mlp", 1, 1, 2, 2, "gpipe"),
    ("cnn", 1, 1, 2, 1, "1f1b"),
    ("gpt", 1, 1, 2, 2, "1f1b"),
]
FOUR = [
    ("mlp", 1, 1, 4, 1, "1f1b"),
    ("gpt", 2, 1, 2, 4, "1f1b"),
    ("cnn", 2, 2, 2, 2, "interleaved"),
    ("gpt", 2, 2, 2, 4, "interleaved"),
]


@pytest.mark.parametrize(("count", "cases"), [(2, TWO), (4, FOUR)])
def test_fifty_steps_are_those_of_one_process(count, cases):
    found = ranks(count, _trains, cases)
    for of_rank in found:
        for losses, weights, _ in of_rank:
            assert losses < 1e-9 and weights < 1e-9
    for at, (name, *_) in enumerate(cases):
        assert {path for of_rank in found for path in of_rank[at][2]} == set(made(name)[0].state_dict())
