"""Several jobs of `autopar.distribute`: one after the other, with other models or the same, and side by side."""

from __future__ import annotations

import copy

import pytest
import torch
from helpers.job_models import loss, made, stepped, trained
from helpers.ranks import ranks

pytestmark = pytest.mark.slow


def _after_an_idle_one(rank: int) -> tuple[int, float]:
    """Stages of this process in a first job, and the largest difference of losses of a second one to one process."""
    import autopar

    model, x, y = made("mlp")
    first = autopar.distribute(model, example_inputs=(x,), loss=loss, stages=1, replicas=1)
    stepped(first, x, y, 1)
    model, x, y = made("mlp")
    expected = trained(copy.deepcopy(model), x, y, 2)
    job = autopar.distribute(model, example_inputs=(x,), loss=loss, stages=2, replicas=1)
    return len(first.stages), max(abs(a - b) for a, b in zip(stepped(job, x, y, 2), expected))


def test_a_process_that_one_job_leaves_idle_takes_part_in_the_next():
    found = ranks(2, _after_an_idle_one, timeout_s=60)
    assert [stages for stages, _ in found] == [1, 0]
    assert all(difference < 1e-12 for _, difference in found)


def _in_a_part_of_the_job(rank: int) -> tuple[float, float]:
    """The largest difference of losses to one process, and a sum in a group that is made afterwards."""
    import torch.distributed as dist

    import autopar

    parts = [dist.new_group(part) for part in ([0, 1], [2, 3])]
    dist.new_group([0, 3])  # Members of one part then know unequally many groups.
    options = {"stages": 2} if rank < 2 else {"replicas": 2, "stages": 1, "shard_replicas": True}
    model, x, y = made("mlp")
    expected = trained(copy.deepcopy(model), x, y, 2)
    job = autopar.distribute(model, example_inputs=(x,), loss=loss, group=parts[rank // 2], **options)
    losses = stepped(job, x, y, 2)
    later, total = dist.new_group([0, 2]), torch.ones(1)
    if rank in (0, 2):
        dist.all_reduce(total, group=later)
    return max(abs(a - b) for a, b in zip(losses, expected)), total.item()


def test_parts_of_a_job_have_pipelines_of_their_own_and_then_groups_together():
    found = ranks(4, _in_a_part_of_the_job, timeout_s=60)
    assert all(difference < 1e-9 for difference, _ in found)
    assert [total for _, total in found] == [2.0, 1.0, 2.0, 1.0]


def _again(rank: int) -> tuple[list[float], str]:
    """The largest difference of losses to one process, of two jobs of one model, where rank 0 has not and has written
    weights in between; what is said of a job after one of sharded replicas."""
    import autopar

    found, replicas = [], {"loss": loss, "stages": 1, "replicas": 2}
    for written in (False, True):
        model, x, y = made("mlp")
        plain = copy.deepcopy(model)
        first = autopar.distribute(model, example_inputs=(x,), loss=loss, stages=2, replicas=1)
        stepped(first, x, y, 2)
        if written and rank == 0:
            model.load_state_dict(plain.state_dict())
        expected = trained(plain, x, y, 2) if written else trained(plain, x, y, 4)[2:]
        second = autopar.distribute(model, example_inputs=(x,), **replicas)
        found.append(max(abs(a - b) for a, b in zip(stepped(second, x, y, 2), expected)))
    model, x, _ = made("mlp")
    autopar.distribute(model, example_inputs=(x,), shard_replicas=True, **replicas)
    with pytest.raises(autopar.PlanError) as refused:
        autopar.distribute(model, example_inputs=(x,), **replicas)
    return found, str(refused.value)


def test_a_second_job_of_a_model_goes_on_from_what_each_process_has_trained():
    for found, refused in ranks(2, _again, timeout_s=60):
        assert max(found) < 1e-12
        assert "is a DTensor, split over ranks already, as by " in refused and " an earlier job" in refused
