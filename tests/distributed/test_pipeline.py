"""Pipelines over gloo ranks: losses, weights and answers are those of one process with the whole batch."""

from __future__ import annotations

import pytest
import torch
from helpers.grid import apart, grid
from helpers.job_models import ROWS, alone, chained, job_of, made, prepare, stepped
from helpers.ranks import ranks

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
"""Cases beside the grid of models and ranks: model, positions, chunks, replicas, micro-batches and schedule."""
MIXED = {"devices": ["cpu", "emulated:0"], "policy": "round_robin"}
"""A placement that uses both devices whatever it costs."""


def _trains(rank: int, name: str, shape: tuple[int, int, int, int, str], placed: dict, steps: int):
    """Losses of so many steps, here and of one process; the largest difference of weights and answers then; paths;
    the devices of the plans of placed stages."""
    import autopar
    from autopar.distributed.pipeline import reduction

    reduction.BUCKET_BYTES = reduction.FIRST_BUCKET_BYTES = 4096
    replicas, micro_batches = shape[2:4]
    _, x, y = made(name)
    expected, plain = alone(name, steps)
    chain, _ = chained(name, ROWS // replicas // micro_batches)

    def place(stage):
        return autopar.compile(stage, **placed) if placed else stage

    job = job_of(chain, *shape, place=place)
    losses = stepped(job, x, y, steps)
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
    from autopar.distributed.pipeline.units import units

    reduction.BUCKET_BYTES = reduction.FIRST_BUCKET_BYTES = 2048
    model, x, y = made("mlp")
    job = job_of(units(model, (x[:4],), {}), 1, 1, 2, 2, "1f1b")
    found = []

    def look(_: torch.Tensor) -> None:
        found.append(sum(bucket.work is not None for queue in job._sums._early for bucket in queue))

    model.layers[0].weight.register_post_accumulate_grad_hook(look)
    job.step(x, target=y)
    return found


def test_sums_begin_within_the_last_backward_and_not_before():
    for first, last in ranks(2, _begun):
        assert first == 0 and last >= 4, "six layers, a message each"
