"""`autopar.distribute` over gloo ranks: planned from what was measured, agreed, and equal to one process."""

from __future__ import annotations

import copy

import pytest
import torch
from helpers.job_models import loss, made, trained
from helpers.ranks import RankError, ranks

STEPS = 12
"""The engine is that of test_pipeline.py, where each model takes 50."""


def _distributed(rank: int, name: str, options: dict) -> tuple[float, str, float]:
    """The largest difference of losses to one process, the digest of the plan, and the predicted seconds."""
    import autopar

    model, x, y = made(name)
    expected = trained(copy.deepcopy(model), x, y, STEPS)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(rank)  # The weights of rank 0 count.
    job = autopar.distribute(model, example_inputs=(x,), loss=loss, **options)
    optimizer = torch.optim.SGD(job.parameters(), lr=0.1)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        losses.append(float(job.step(x, target=y)))
        optimizer.step()
    lanes = {span.lane for span in job.timeline.spans}
    assert lanes == ({"cpu/0"} if job.stages else set())
    return max(abs(a - b) for a, b in zip(losses, expected)), job.plan.digest, job.plan.step_s


@pytest.mark.parametrize(
    ("count", "name", "options"),
    [
        (2, "cnn", {}),
        pytest.param(2, "gpt", {"stages": 2, "replicas": 1}, marks=pytest.mark.grid),
        (4, "mlp", {"stages": 2, "replicas": 2, "schedule": "1f1b"}),
        (2, "mlp", {"stages": 4, "replicas": 1, "schedule": "interleaved"}),
        # Too slow a network for anything but one process: the other waits.
        (2, "mlp", {"hosts": "2 x cpu over ethernet-1"}),
    ],
)
def test_steps_are_those_of_one_process_by_one_plan(count, name, options):
    found = ranks(count, _distributed, name, options)
    assert all(difference < 1e-12 for difference, *_ in found)
    assert len({digest for _, digest, _ in found}) == 1
    assert all(predicted > 0 for *_, predicted in found)


def _accumulated(rank: int, name: str, options: dict) -> float:
    """The largest difference of gradients after two steps without an update to those of one process."""
    import autopar

    model, x, y = made(name)
    plain = copy.deepcopy(model)
    for _ in range(2):
        loss(plain(x), y).backward()
    job = autopar.distribute(model, example_inputs=(x,), loss=loss, **options)
    for _ in range(2):
        job.step(x, target=y)
    expected = dict(plain.named_parameters(remove_duplicate=False))
    return max(float((p.grad - expected[path].grad).abs().max()) for path, p in job.named_parameters())


@pytest.mark.parametrize(
    ("name", "options"), [("gpt", {"stages": 2, "replicas": 1}), ("mlp", {"stages": 1, "replicas": 2})]
)
def test_gradients_add_up_until_they_are_zeroed(name, options):
    assert all(difference < 1e-12 for difference in ranks(2, _accumulated, name, options))


def _differs(rank: int) -> None:
    import autopar

    model, x, _ = made("mlp")
    if rank == 1:
        model.layers[2] = torch.nn.Linear(16, 16, bias=False).double()
    autopar.distribute(model, example_inputs=(x,), loss=loss)


def test_another_model_on_one_rank_is_refused_with_the_difference():
    with pytest.raises(RankError, match=r"layers\.2"):
        ranks(2, _differs)


def _saved(rank: int, path: str) -> bool:
    """A plan of one job is used by the next, and serves as well."""
    import autopar

    model, x, _ = made("mlp")
    first = autopar.distribute(model, example_inputs=(x,), loss=loss, stages=2, replicas=1)
    if rank == 0:
        first.plan.save(path)
    torch.distributed.barrier()
    second = autopar.distribute(model, example_inputs=(x,), plan=path)
    answer = second(x)
    with torch.no_grad():
        right = answer is None or torch.allclose(answer, model(x), rtol=1e-12)
    return second.plan == first.plan and right


def test_a_saved_plan_is_used_as_it_is(tmp_path):
    assert ranks(2, _saved, str(tmp_path / "plan.json")) == [True, True]


def test_without_a_process_group_it_says_what_to_type():
    import autopar

    with pytest.raises(autopar.DeviceError, match=r"init_process_group\(\) first.*torchrun"):
        autopar.distribute(torch.nn.Linear(2, 2), example_inputs=(torch.ones(2, 2),))


def _refused(rank: int, options: dict) -> None:
    import autopar

    model, x, _ = made("mlp")
    autopar.distribute(model, example_inputs=(x,), loss=loss, **options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"hosts": "3 x cpu over ethernet-1"}, "3 hosts are declared, and the job has 2 processes"),
        ({"schedule": "2f2b"}, "schedule='2f2b' is not known"),
        (
            {"example_kwargs": {"mask": torch.ones(3, 3)}},
            r"needs the rows of the batch .* \[3, 3\]\. .* a buffer",
        ),
        ({"example_kwargs": {"scale": torch.tensor(2.0)}}, r"needs the rows of the batch"),
    ],
)
def test_what_cannot_be_distributed_is_refused(options, said):
    with pytest.raises(RankError, match=said):
        ranks(2, _refused, options)
