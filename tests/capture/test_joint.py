"""Forward and backward as one graph: the numbers of eager, and a graph that no device owns."""

import re

import pytest
import torch
from capture_models import TRAINED, Does, mlp, shared, tied, transformer, x
from capturing import joint
from joint import agrees, differentiable
from torch import nn

from autopar.ir.graph import SUM

pytestmark = pytest.mark.slow

KERNELS = re.compile(r"_for_cpu|mkldnn|cudnn|miopen|_flash_|_efficient_")


def built(make):
    torch.manual_seed(3)
    return make()


@pytest.mark.parametrize("make", TRAINED, ids=lambda make: make.__name__)
def test_gradients_are_eagers(make):
    neutral_and_in_two_phases(agrees(*built(make)))


def neutral_and_in_two_phases(captured):
    """No kernel of one device, and a task is of the forward just when the caller gets what it makes."""
    graph = captured.graph
    assert not [task.target for task in graph.tasks if KERNELS.search(task.target)]
    needed = {made for made, _ in graph.updates} | {
        *graph.outputs[: len(graph.outputs) - len(captured.gradients)]
    }
    for task in reversed(graph.tasks):
        if not needed.isdisjoint(task.outputs):
            needed.update(task.inputs)
            assert task.phase == "forward", f"{task.where} makes what the caller gets"
        elif not task.random:
            assert task.phase == "backward", f"{task.where} makes nothing that the caller gets"


@pytest.mark.parametrize(("make", "limit"), [(mlp, 2e-2), (tied, 2e-2), (shared, 0.0)])
def test_autocast_around_the_call(make, limit):
    """Gradients of a weight that several tasks read meet before they are cast."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        captured = agrees(*built(make), limit=limit)
    assert any(value.dtype == "bfloat16" for value in captured.graph.values)


def test_autocast_casts_a_shared_weight_once():
    linear = nn.Linear(4, 4)

    def body(m, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return linear(linear(x)).float(), linear(x)

    model = Does(body, linear=linear)
    graph = agrees(model, (x(),)).graph
    casts = [task for task in graph.tasks if task.target == "aten._to_copy.default"]
    assert sum("linear.weight" in task.inputs for task in casts) == 1


def test_backward_tasks_know_where_they_come_from():
    function, args, kwargs = built(mlp)
    graph = joint(function, args, kwargs).graph
    modules = {task.module for task in graph.tasks if task.phase == "backward"}
    assert {"m.0", "m.1", "m.2", "m.3"} <= modules
    assert all(task.origin == "" for task in graph.tasks)
    losses = [task for task in graph.tasks if "nll_loss" in task.target]
    assert len(losses) == 2 and len({task.source for task in losses}) == 1


def test_statistics_are_updates_and_not_read_again():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    graph = agrees(model, (x(),)).graph
    assert {to for _, to in graph.updates} == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    (backward,) = [task for task in graph.tasks if task.target == "aten.native_batch_norm_backward.default"]
    assert backward.args[3] is None and backward.args[4] is None
    assert {made for made, _ in graph.updates}.isdisjoint(backward.inputs)


def test_no_view_of_strides_and_no_detach():
    for make in (transformer, mlp):
        targets = {task.target for task in joint(*built(make)).graph.tasks}
        assert targets.isdisjoint(
            {"aten.view.default", "aten._unsafe_view.default", "aten.detach.default", SUM}
        )


def test_nothing_to_differentiate():
    captured = joint(lambda x: x * 2, (x(),))
    assert captured.tangents == () and captured.gradients == () and differentiable(captured) == (False,)
    assert all(task.phase == "forward" for task in captured.graph.tasks)
