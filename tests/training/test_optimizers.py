"""An optimizer's step as tasks of the joint graph: torch's own step on a twin, bit for bit."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import pytest
import torch
from graphs import machine
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from twins import CPU, Make, Twins, batches, eager, net, nothing

from autopar.costs.roofline import cost
from autopar.errors import PlanError, RunError
from autopar.lowering.check import check
from autopar.lowering.lower import lower
from autopar.ops import resolve as bind
from autopar.planner import place
from autopar.training.optimizers import obstacle, trained_parameters, updated


def follow(make: Make, steps: int = 3, clip_norm: float | None = None, dtype: torch.dtype = torch.float32,
           frozen: str = "", between: Callable[[Optimizer], None] = nothing, nbytes: int = 0) -> None:  # fmt: skip
    """Step both, and hold them to be the same bits."""
    twins = Twins(make, dtype, frozen)
    stepping = twins.stepping(clip_norm, nbytes)
    for batch in batches(steps, dtype):
        mine, theirs = stepping(batch), eager(twins.twin, twins.rival, batch, clip_norm)
        assert torch.equal(mine, theirs)
        twins.are_equal()
        between(twins.optimizer)
        between(twins.rival)


ways = st.sampled_from([{}, {"foreach": True}, {"foreach": False}, {"fused": True}])
rates = st.floats(1e-4, 0.5)
decays = st.sampled_from([0.0, 0.01, 0.3])
clips = st.sampled_from([None, 0.1, 1e6])
sizes = st.sampled_from([0, 300, 1 << 20])
dtypes = st.sampled_from([torch.float32, torch.float64, torch.bfloat16])
quick = settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.slow
@quick
@given(rates, st.sampled_from([0.0, 0.9]), st.sampled_from([0.0, 0.2]), decays, st.booleans(), st.booleans(), ways,
       clips, dtypes, sizes)  # fmt: skip
def test_sgd(lr, momentum, dampening, decay, nesterov, maximize, way, clip_norm, dtype, nbytes):
    nesterov = nesterov and momentum > 0 and dampening == 0
    if way.get("fused") and momentum and dtype == torch.bfloat16:
        way = {}  # an obstacle
    follow(
        lambda model: SGD(
            model.parameters(), lr, momentum, dampening, decay, nesterov, maximize=maximize, **way
        ),
        clip_norm=clip_norm,
        dtype=dtype,
        nbytes=nbytes,
    )


@pytest.mark.slow
@quick
@given(st.sampled_from([Adam, AdamW]), rates, st.tuples(st.floats(0.1, 0.95), st.floats(0.5, 0.999)),
       st.sampled_from([1e-8, 1e-3]), decays, st.booleans(), st.booleans(), ways, clips, dtypes,
       sizes)  # fmt: skip
def test_adam(kind, lr, betas, eps, decay, amsgrad, maximize, way, clip_norm, dtype, nbytes):
    follow(
        lambda model: kind(model.parameters(), lr, betas, eps, decay, amsgrad, maximize=maximize, **way),
        clip_norm=clip_norm,
        dtype=dtype,
        nbytes=nbytes,
    )


def grouped(model: nn.Module) -> Optimizer:
    biases = [p for p in model.parameters() if p.ndim < 2]
    weights = [p for p in model.parameters() if p.ndim >= 2]
    return AdamW(
        [{"params": biases, "weight_decay": 0.0, "lr": 0.1}, {"params": weights, "amsgrad": True}], lr=0.01
    )


@pytest.mark.parametrize("nbytes", [0, 1 << 20])
def test_groups_with_their_own_hyperparameters(nbytes):
    follow(grouped, clip_norm=1.0, nbytes=nbytes)


@pytest.mark.parametrize("nbytes", [0, 1 << 20])
@pytest.mark.parametrize("kind", [SGD, Adam, AdamW])
def test_a_learning_rate_that_is_a_tensor(kind, nbytes):
    def fill(optimizer: Optimizer) -> None:
        optimizer.param_groups[0]["lr"].fill_(0.02)

    follow(lambda model: kind(model.parameters(), lr=torch.tensor(0.05)), between=fill, nbytes=nbytes)


def test_groups_edited_between_steps():
    def edit(optimizer: Optimizer) -> None:
        optimizer.param_groups[0].update(lr=0.3, momentum=0.5, weight_decay=0.1, maximize=True)

    follow(lambda model: SGD(model.parameters(), 0.1, 0.9), between=edit)


def test_a_frozen_parameter_and_one_without_gradient_stay():
    follow(lambda model: AdamW(model.parameters(), 0.1, weight_decay=0.5), frozen="fc2.weight")


@pytest.mark.parametrize("schedule", ["LambdaLR", "CosineAnnealingLR", "OneCycleLR"])
def test_schedulers_go_on_and_do_not_warn(schedule):
    twins = Twins(lambda model: SGD(model.parameters(), 0.1, 0.9))
    arguments = {
        "LambdaLR": (lambda epoch: 0.5**epoch,), "CosineAnnealingLR": (5,), "OneCycleLR": (0.2, 10),
    }[schedule]  # fmt: skip
    kind = getattr(torch.optim.lr_scheduler, schedule)
    mine, theirs = kind(twins.optimizer, *arguments), kind(twins.rival, *arguments)
    stepping = twins.stepping()
    for batch in batches(4):
        stepping(batch)
        eager(twins.twin, twins.rival, batch)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            mine.step()
            theirs.step()
        twins.are_equal()


def test_a_state_dict_loaded_between_steps_is_what_the_next_step_reads():
    twins = Twins(grouped)
    stepping = twins.stepping()
    saved = copy.deepcopy((twins.model.state_dict(), twins.optimizer.state_dict()))
    for batch in batches(3):
        stepping(batch)
    twins.model.load_state_dict(saved[0])
    twins.optimizer.load_state_dict(saved[1])
    twins.are_equal()
    for batch in batches(3):
        stepping(batch)
        eager(twins.twin, twins.rival, batch)
        twins.are_equal()


def test_resume_in_a_fresh_optimizer_needs_no_first_step():
    twins = Twins(grouped)
    saved = copy.deepcopy(twins.optimizer.state_dict())
    twins.optimizer = grouped(twins.model)
    assert obstacle(twins.optimizer, trained_parameters(twins.base)) != ""
    twins.optimizer.load_state_dict(saved)
    stepping = twins.stepping()
    for batch in batches(2):
        stepping(batch)
        eager(twins.twin, twins.rival, batch)
        twins.are_equal()


def test_a_step_that_stops_half_way_has_changed_nothing():
    twins = Twins(grouped)
    stepping = twins.stepping(1.0)
    for most in range(0, len(stepping.captured.graph.tasks) + 1, 5):
        stepping.executed(twins.batch, most)
    twins.are_equal()


def test_the_graph_names_what_it_updates():
    twins = Twins(lambda model: Adam(model.parameters()))
    captured = twins.stepping(1.0).captured
    graph = captured.graph
    tasks = {task.name: task for task in graph.tasks if task.phase == "update"}
    paths = set(trained_parameters(twins.base))
    assert {f"update {path}" for path in paths} | {f"norm {path}" for path in paths} | {"clip"} == set(tasks)
    assert {task.module for task in tasks.values()} == paths | {""}
    assert not any(task.home or task.free for task in tasks.values())
    assert len(graph.outputs) == 1
    carried = {graph.value[name].path for name in graph.carried}
    assert carried == paths | {
        f"optimizer.state.{path}.{entry}" for path in paths for entry in ("exp_avg", "exp_avg_sq")
    }
    assert {target for _, target in graph.updates} == set(graph.carried) <= set(graph.state)
    assert set(captured.state) == set(graph.state)
    assert {"total_norm", "clip_coefficient"} <= set(graph.value)
    for made, target in graph.updates:
        one, other = graph.value[made], graph.value[target]
        assert (one.shape, one.dtype, one.bytes) == (other.shape, other.dtype, other.bytes)


def test_the_total_norm_is_what_torch_clips_by():
    twins = Twins(lambda model: SGD(model.parameters(), 0.1))
    values = twins.stepping(0.01).executed(twins.batch, 10**6)
    twins.twin(*twins.batch).backward()
    assert torch.equal(values["total_norm"], nn.utils.clip_grad_norm_(twins.twin.parameters(), 0.01))
    assert values["clip_coefficient"] < 1


def test_autocast_around_the_call_does_not_reach_the_step():
    twins = Twins(lambda model: Adam(model.parameters()), torch.bfloat16)
    stepping = twins.stepping(0.1)
    values = stepping.executed(twins.batch, 10**6)
    with torch.autocast("cpu", torch.float16):
        again = stepping.executed(twins.batch, 10**6)
    for task in stepping.captured.graph.tasks:
        if task.phase == "update":
            for name in task.outputs:
                assert again[name].dtype == values[name].dtype and torch.equal(again[name], values[name]), (
                    task.where
                )


@pytest.mark.parametrize("nbytes", [0, 1 << 20])
@pytest.mark.parametrize("clip_norm", [None, 0.1])
@pytest.mark.parametrize(
    "make",
    [
        lambda model: SGD(model.parameters(), 0.1, 0.9, nesterov=True, foreach=True),
        lambda model: SGD(model.parameters(), 0.1, 0.9, fused=True, maximize=True),
        lambda model: AdamW(model.parameters(), fused=True, amsgrad=True),
        lambda model: Adam(model.parameters(), foreach=True, weight_decay=0.1),
    ],
)
def test_update_tasks_do_not_modify_their_inputs(make, clip_norm, nbytes):
    twins = Twins(make)
    stepping = twins.stepping(clip_norm, nbytes)
    captured, values = stepping.captured, stepping.executed(twins.batch, 10**6)
    for task in captured.graph.tasks:
        if task.phase == "update":
            read = {name: values[name].clone() for name in task.inputs}
            captured.calls[task.target](*(bind.argument(item, values.__getitem__, CPU) for item in task.args))
            for name, before in read.items():
                assert torch.equal(values[name], before), f"{task.where} changes {name}"


def test_without_clipping_an_update_waits_for_its_own_gradient_alone():
    twins = Twins(lambda model: SGD(model.parameters(), 0.1))
    graph, gradients = twins.stepping().captured.graph, dict(twins.base.gradients)
    order = {task.name: number for number, task in enumerate(graph.tasks)}
    for task in graph.tasks:
        if task.phase == "update":
            weight, gradient = task.inputs
            assert gradients[weight] == gradient
            between = range(order[graph.producer[gradient]] + 1, order[task.name])
            assert all(graph.tasks[number].phase == "update" for number in between)


def test_an_update_is_priced_by_the_kernels_it_is_made_of():
    def seconds(make: Make) -> float:
        captured = Twins(make).stepping().captured
        return cost(captured.graph, machine(1), homes={}).cost["update fc2.weight"].seconds[1]

    plain = seconds(lambda model: SGD(model.parameters(), 0.1))
    momentum = seconds(lambda model: SGD(model.parameters(), 0.1, 0.9))
    assert 0 < plain < momentum < seconds(lambda model: Adam(model.parameters()))


def test_new_weights_are_carried_to_the_devices_that_read_them():
    twins = Twins(grouped)
    stepping = twins.stepping(0.5)
    graph = stepping.captured.graph
    costed = cost(graph, machine(2), homes={})
    program = lower(place(costed, "round_robin"))
    check(program, graph)
    kept = {state for _, state in program.keeps}
    assert kept and kept <= set(graph.carried)


def test_a_step_planned_for_other_state_is_an_error_that_changes_nothing():
    twins = Twins(lambda model: SGD(model.parameters(), 0.1, 0.9))
    stepping = twins.stepping()
    twins.optimizer.param_groups[0]["momentum"] = 0.0
    with pytest.raises(RunError, match="plan the step again"):
        stepping(twins.batch)
    twins.optimizer.param_groups[0]["momentum"] = 0.9
    twins.are_equal()


def test_a_parameter_without_state_or_group_is_named():
    model, base, _ = net(torch.float32, "")
    with pytest.raises(PlanError, match=r"no exp_avg of scale"):
        updated(base, Adam([*model.fc1.parameters(), *model.fc2.parameters(), model.scale, model.again.bias]))
    with pytest.raises(PlanError, match="is in no param group"):
        updated(base, SGD(model.fc1.parameters(), 0.1))
