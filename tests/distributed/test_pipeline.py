"""Pipelines over gloo ranks: losses, weights and answers are those of one process with the whole batch."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from helpers.grid import apart, grid
from helpers.job_models import ROWS, alone, chained, loss, made, prepare
from helpers.ranks import RankError, ranks

pytestmark = pytest.mark.slow

STEPS = 50
FEWER = 6
"""Steps of schedules and shapes beside those in which models take all; the grid takes all in these too."""
SHAPES = (
    ("gpt", (2, 2, 1, 4, "interleaved")),
    ("gpt", (1, 1, 2, 2, "1f1b")),
    ("mlp", (1, 1, 2, 4, "gpipe")),
    ("mlp", (4, 1, 1, 8, "1f1b")),
    ("cnn", (2, 2, 2, 2, "zero-bubble")),
)
"""What the grid of models and ranks has not: models, and positions, chunks, replicas, micro-batches and schedules."""
MIXED = {"devices": ["cpu", "emulated:0"], "policy": "round_robin"}
"""A placement that uses both devices whatever it costs."""


def _plan(units, name: str, positions: int, chunks: int, replicas: int, micro_batches: int, schedule: str):
    """An even split by hand."""
    from autopar.ir.distribution import Distribution, Stage
    from autopar.ir.hosts import Hosts

    count = positions * chunks
    ends = [len(units.nodes) * i // count for i in range(count + 1)]
    stages = tuple(Stage(first, stop, 1, 1, 1, 1, 1) for first, stop in pairwise(ends))
    hosts = Hosts.declare(f"{positions * replicas} x cpu over ethernet-1")
    names = [host.name for host in hosts.hosts]
    rows = tuple(tuple(names[r * positions : (r + 1) * positions]) for r in range(replicas))
    return Distribution(
        name, units.names, hosts, stages, rows, micro_batches, schedule, 16, 1.0, 1.0, (1,) * positions
    ).check()


def _trains(rank: int, name: str, shape: tuple[int, int, int, int, str], placed: dict, steps: int):
    """Losses of so many steps, here and of one process; the largest difference of weights and answers then; paths;
    the devices of the plans of placed stages."""
    import autopar
    from autopar.distributed.pipeline import reduction
    from autopar.distributed.pipeline.job import Distributed

    reduction.BUCKET_BYTES = reduction.FIRST_BUCKET_BYTES = 4096
    positions, chunks, replicas, micro_batches, schedule = shape
    _, x, y = made(name)
    expected, plain = alone(name, steps)
    chain, _ = chained(name, ROWS // replicas // micro_batches)
    plan = _plan(chain, name, positions, chunks, replicas, micro_batches, schedule)

    def place(stage):
        return autopar.compile(stage, **placed) if placed else stage

    job = Distributed(chain, plan, loss, None, torch.device("cpu"), place)
    optimizer = torch.optim.SGD(job.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        losses.append(float(job.step(x, target=y)))
        optimizer.step()
    plans = [stage.plan for stage in job._placed.values()] if placed else []
    used = {each.device for plan in plans for each in plan.placed}
    state = plain.state_dict()
    # A stage may have no weights.
    off = (float((tensor - state[path]).abs().max()) for path, tensor in job.state_dict().items())
    weights = max(off, default=0.0)
    answer = job(x)
    if answer is not None:
        rows = len(x) // replicas
        with torch.no_grad():
            own = plain(x[job.replica * rows : (job.replica + 1) * rows])
        pair = (answer["logits"], own["logits"]) if isinstance(own, dict) else (answer, own)
        weights = max(weights, float((pair[0] - pair[1]).abs().max()))
    return losses, expected, weights, sorted(job.state_dict()), used


@pytest.mark.parametrize(
    ("name", "shape", "placed", "steps"),
    [
        ("mlp", (2, 1, 1, 4, "gpipe"), {}, STEPS),
        ("cnn", (2, 1, 1, 4, "1f1b"), {}, STEPS),
        *((name, shape, {}, FEWER) for name, shape in SHAPES),
        ("cnn", (1, 1, 2, 4, "1f1b"), {}, FEWER),
        ("mlp", (2, 2, 2, 4, "interleaved"), {}, FEWER),
        ("mlp", (1, 1, 2, 2, "1f1b"), {"devices": ["cpu*2"]}, FEWER),
        ("cnn", (2, 1, 1, 2, "1f1b"), MIXED, FEWER),
        *(pytest.param(name, shape, {}, STEPS, marks=pytest.mark.grid) for name, shape in SHAPES),
        pytest.param("gpt", (2, 2, 2, 4, "interleaved"), {}, FEWER, marks=pytest.mark.grid),
        pytest.param("cnn", (2, 1, 1, 2, "1f1b"), {"devices": ["cpu*2"]}, FEWER, marks=pytest.mark.grid),
        *grid("pipeline", lambda name, count: (name, (count, 1, 1, 4, "1f1b"), {}, STEPS)),
        *grid("pipeline x ddp", lambda name, count: (name, (count // 2, 1, 2, 4, "1f1b"), {}, STEPS)),
    ],
)
def test_steps_are_those_of_one_process(name, shape, placed, steps, record_property):
    rows = ROWS // shape[2] // shape[3]
    before = prepare, [(name, rows)], steps
    found = ranks(shape[0] * shape[2], _trains, name, shape, placed, steps, before=before)
    record_property("apart", max(apart(losses, expected) for losses, expected, *_ in found))
    for losses, expected, weights, _, used in found:
        assert losses == pytest.approx(expected, rel=0, abs=1e-12) and weights < 1e-11
        assert "policy" not in placed or used == set(placed["devices"])
    assert {path for *_, paths, _ in found for path in paths} == set(made(name)[0].state_dict())


def _begun(rank: int) -> list[int]:
    """Messages under way when the backward comes to the first layer, for each micro-batch."""
    from autopar.distributed.pipeline import reduction
    from autopar.distributed.pipeline.job import Distributed
    from autopar.distributed.pipeline.units import units

    reduction.BUCKET_BYTES = reduction.FIRST_BUCKET_BYTES = 2048
    model, x, y = made("mlp")
    chain = units(model, (x[:4],), {})
    plan = _plan(chain, "mlp", 1, 1, 2, 2, "1f1b")
    job = Distributed(chain, plan, loss, None, torch.device("cpu"), lambda stage: stage)
    found = []

    def look(_: torch.Tensor) -> None:
        found.append(sum(bucket.work is not None for queue in job._sums._early for bucket in queue))

    model.layers[0].weight.register_post_accumulate_grad_hook(look)
    job.step(x, target=y)
    return found


def test_sums_begin_within_the_last_backward_and_not_before():
    for first, last in ranks(2, _begun):
        assert first == 0 and last >= 4, "six layers, a message each"


def _batches(rank: int):
    from autopar.distributed.pipeline.job import Distributed
    from autopar.distributed.pipeline.units import units

    model, x, y = made("mlp")
    chain = units(model, (x[:4],), {})
    job = Distributed(
        chain, _plan(chain, "mlp", 2, 1, 1, 4, "1f1b"), loss, None, torch.device("cpu"), lambda stage: stage
    )
    job.step(x[:-1], target=y[:-1])


def test_a_batch_of_another_size_is_refused():
    with pytest.raises(
        RankError, match=r"\[15(, 16)?\] where a batch of 16 rows was planned; give .*drop_last"
    ):
        ranks(2, _batches)
