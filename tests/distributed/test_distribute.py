"""`autopar.distribute` over gloo ranks: planned from what was measured, agreed, and equal to one process."""

from __future__ import annotations

import copy
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.job_models import loss, made, stepped, trained
from helpers.ranks import ranks

pytestmark = pytest.mark.slow

STEPS = 12
"""The engine is that of test_pipeline.py, where models take 50."""


def _distributed(rank: int, name: str, options: dict) -> tuple[float, Any]:
    """The largest difference of losses to one process, and the plan."""
    import autopar

    model, x, y = made(name)
    expected = trained(copy.deepcopy(model), x, y, STEPS)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(rank)  # The weights of rank 0 count.
    job = autopar.distribute(model, example_inputs=(x,), loss=loss, **options)
    losses = stepped(job, x, y, STEPS)
    lanes = {span.lane for span in job.timeline.spans}
    assert lanes == ({"cpu/0"} if job.stages else set())
    return max(abs(a - b) for a, b in zip(losses, expected)), job.plan


@pytest.mark.parametrize(
    ("count", "name", "options"),
    [
        pytest.param(2, "cnn", {}, marks=pytest.mark.release),
        pytest.param(2, "gpt", {"stages": 2, "replicas": 1}, marks=pytest.mark.grid),
        (1, "mlp", {}),
        pytest.param(4, "mlp", {"stages": 2, "replicas": 2, "schedule": "1f1b"}, marks=pytest.mark.release),
        pytest.param(
            2, "mlp", {"stages": 4, "replicas": 1, "schedule": "interleaved"}, marks=pytest.mark.release
        ),
        # The other process waits.
        (2, "mlp", {"hosts": "2 x cpu over ethernet-1", "stages": 1, "replicas": 1}),
    ],
)
def test_steps_are_those_of_one_process_by_one_plan(count, name, options):
    found = ranks(count, _distributed, name, options)
    assert all(difference < 1e-12 for difference, *_ in found)
    assert all(plan == found[0][1] and plan.step_s > 0 for _, plan in found)


def _accumulated(job, plain: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    """The largest difference of gradients after two steps without an update to those of one process, whose weights are
    as those of the job."""
    for network in (job, plain):
        for parameter in network.parameters():
            parameter.grad = None
    for _ in range(2):
        loss(plain(x), y).backward()
        job.step(x, target=y)
    expected = dict(plain.named_parameters(remove_duplicate=False))
    return max(float((p.grad - expected[path].grad).abs().max()) for path, p in job.named_parameters())


def _reported(rank: int, folder: str) -> dict:
    """Losses, links, waits and pictures of a pipeline of two stages."""
    import autopar
    from autopar.distributed import merged

    model, x, y = made("gpt of 1")
    plain = copy.deepcopy(model)
    expected = trained(plain, x, y, STEPS)
    job = autopar.distribute(model, example_inputs=(x,), loss=loss, stages=2, replicas=1, schedule="1f1b")
    losses = stepped(job, x, y, STEPS)
    together = merged([job.timeline])
    if rank == 0:
        for ending in ("svg", "json"):
            job.predicted.save(f"{folder}/predicted.{ending}")
            together.save(f"{folder}/merged.{ending}")
    return {
        "apart": max(abs(a - b) for a, b in zip(losses, expected)),
        "gradients apart": _accumulated(job, plain, x, y),
        "plan": job.plan,
        "explained": job.explain(),
        "links": [(link.src, link.dst, link.latency_s, link.bytes_per_s) for link in job.plan.hosts.links],
        "passes": [(span.device, span.name) for span in together.spans] if together else [],
        "predicted": [(span.device, span.name) for span in job.predicted.spans if span.kind == "compute"],
    }


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> tuple[list[dict], Path]:
    """Results of both ranks of a pipeline, and the folder of their pictures."""
    folder = tmp_path_factory.mktemp("report")
    return ranks(2, _reported, str(folder)), folder


def test_two_stages_are_one_process_by_one_plan(report):
    (first, second), _ = report
    assert first["plan"] == second["plan"]
    for told in report[0]:
        assert told["apart"] < 1e-12 and told["gradients apart"] < 1e-12, (
            "gradients add up until they are zeroed"
        )


def test_links_are_measured(report):
    for told in report[0]:
        assert {(src, dst) for src, dst, *_ in told["links"]} == {("rank 0", "rank 1"), ("rank 1", "rank 0")}
        assert all(0 < figure < math.inf for _, _, *figures in told["links"] for figure in figures)


def test_the_report_has_hosts_links_and_who_waits_for_whom(report):
    text = report[0][0]["explained"]
    stages, processes, links, *_ = text.partition("\n\n")[2].split("\n\n")
    assert "rank 0" in stages and "rank 1" in stages
    first, second = (line for line in processes.splitlines() if line.startswith("rank "))
    assert "waits for" in processes and "rank 1" in first and "rank 0" in second
    assert "latency" in links and "bandwidth" in links and links.count("/s") == 1


def test_the_predicted_step_and_that_of_all_ranks_are_pictures(report):
    (first, second), folder = report
    lanes = {device for device, _ in first["passes"]}
    assert len(lanes) == 2 and {lane[:6] for lane in lanes} == {"rank 0", "rank 1"} and not second["passes"]
    done = sorted((device[:6], name) for device, name in first["passes"])
    assert done == sorted(pair for pair in first["predicted"] if not pair[1].startswith("sum"))
    for name in ("predicted", "merged"):
        assert "rank 1" in (folder / f"{name}.svg").read_text()
        events = json.loads((folder / f"{name}.json").read_text())["traceEvents"]
        assert sum(event["ph"] == "X" for event in events) >= len(done)
    rows = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert [row[:6] for row in rows] == ["rank 0", "rank 1"]


def _served(rank: int) -> tuple[str, list[bool], str, bool]:
    """The answers to requests as planned without a loss."""
    import autopar

    model, x, _ = made("cnn")
    job = autopar.distribute(model.eval(), example_inputs=(x,), stages=2, replicas=1)
    right = []
    for scale in (1.0, 2.0, -1.0):
        answer = job(x * scale)
        with torch.no_grad():
            right += [] if answer is None else [torch.allclose(answer, model(x * scale), rtol=1e-12)]
    try:
        job.step(x)
    except autopar.PlanError as error:
        refused = str(error)
    return job.explain(), right, refused, job.plan.period and not job.plan.trained


def test_without_a_loss_requests_are_answered_and_planned_for_throughput():
    for rank, (explained, right, refused, period) in enumerate(ranks(2, _served)):
        assert right == [True] * 3 * rank, "the last stage answers"
        assert period and "from one batch to the next (throughput), forward only" in " ".join(
            explained.split()
        )
        assert "there is no loss" in refused


SLOWER = 4
"""Seconds of a unit on the slow host ÷ those on the fast one."""


def _unequal(rank: int) -> tuple[float, dict[str, int]]:
    """Losses apart from those of one process, and the units of each host, if rank 1 is slow."""
    import dataclasses

    import autopar
    from autopar.costs.detect import detect
    from autopar.distributed import distribute

    model, x, y = made("mlp")
    expected = trained(copy.deepcopy(model), x, y, 5)
    slower, machine = SLOWER**rank, detect(["cpu"])
    rates = tuple((dtype, rate / slower) for dtype, rate in machine.devices[0].flops)
    machine = dataclasses.replace(machine, devices=(dataclasses.replace(machine.devices[0], flops=rates),))

    def profile(own, *_):
        seconds = 1e-2 * slower * own.rows
        return [(seconds, 2 * seconds, 128 * own.rows)] * len(own.nodes)

    distribute.profile = profile
    job = autopar.distribute(model, example_inputs=(x,), loss=loss, devices=machine, stages=2, replicas=1)
    losses = stepped(job, x, y, 5)
    plan = job.plan
    counts = {plan.ranks[0][plan.position(at)]: each.stop - each.first for at, each in enumerate(plan.stages)}
    return max(abs(a - b) for a, b in zip(losses, expected)), counts


def test_a_slow_host_gets_fewer_units():
    for apart, counts in ranks(2, _unequal):
        assert apart < 1e-12 and sum(counts.values()) == 12
        assert counts["rank 0"] >= SLOWER / 2 * counts["rank 1"]


def _one_cannot(rank: int) -> list[str]:
    """Errors where one process has no memory to measure, and where it asks for another kind of job."""
    import autopar
    from autopar.distributed import distribute

    model, x, _ = made("mlp")
    said, measure = [], distribute.profile

    def fails(*_):
        raise torch.OutOfMemoryError("no memory is left")

    for profile, criterion in ((fails, loss), (measure, None)):
        if rank == 1:
            distribute.profile = profile
        try:
            autopar.distribute(model, example_inputs=(x,), loss=criterion if rank else loss)
        except autopar.PlanError as error:
            said.append(str(error))
    return said


def test_errors_and_differences_of_one_process_are_raised_on_all():
    (no_memory, other), second = ranks(2, _one_cannot, timeout_s=60)
    assert second == [no_memory, other]
    assert "rank 1 could not measure the model: OutOfMemoryError: no memory is left" in no_memory
    assert "a job for" in other and "serving" in other and "training" in other


def test_without_a_process_group_it_says_what_to_type():
    import autopar

    with pytest.raises(autopar.DeviceError, match=r"init_process_group\(\) first.*torchrun"):
        autopar.distribute(torch.nn.Linear(2, 2), example_inputs=(torch.ones(2, 2),))


REFUSED: list[tuple[dict, str]] = [
    ({"hosts": "3 x cpu over ethernet-1"}, "3 hosts are declared, and the job has 2 processes"),
    ({"schedule": "2f2b"}, "schedule='2f2b' is not known"),
    (
        {"example_kwargs": {"mask": torch.ones(3, 3)}},
        r"needs the rows of the batch .* \[3, 3\]\. .* a buffer",
    ),
    ({"example_kwargs": {"scale": torch.tensor(2.0)}}, r"needs the rows of the batch"),
    ({"shard_replicas": True, "devices": ["cpu*2"]}, r'one device, such as devices=\["cpu"\]'),
    ({"differs": True}, r"layers\.2"),
    ({"split": True}, r"layers\.0\.weight is a DTensor, split over ranks already"),
]


def _refused(rank: int) -> list[str]:
    """Errors for impossible options, a model that differs on a rank, and one that is split already."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    import autopar

    said = []
    for options, _ in REFUSED:
        model, x, _ = made("mlp")
        if options.get("differs") and rank == 1:
            model.layers[2] = torch.nn.Linear(16, 16, bias=False).double()
        if options.get("split"):
            parallelize_module(model, init_device_mesh("cpu", (2,)), {"layers.0": ColwiseParallel()})
        given = {name: value for name, value in options.items() if name not in ("differs", "split")}
        with pytest.raises(autopar.AutoparError) as error:
            autopar.distribute(model, example_inputs=(x,), loss=loss, **given)
        said.append(str(error.value))
    return said


def test_unsupported_models_are_refused_on_every_rank():
    for said in ranks(2, _refused):
        for text, (_, wanted) in zip(said, REFUSED, strict=True):
            assert re.search(wanted, text), text
