"""The face of `autopar.train_step`: what goes in, what comes back, and what a failed step leaves."""

from __future__ import annotations

import copy
import functools
import gc
import logging
import pickle
import threading
from typing import Any

import pytest
import torch
from helpers.forks import forked
from models import eager_step
from plain_loop import FORCED, THREE, Pair, batches, far, mlp
from torch import nn
from torch.optim import SGD, Adam

import autopar
from autopar.ir.device import Device, Link
from autopar.ir.machine import Machine
from autopar.lowering.check import check

pytestmark = pytest.mark.slow

MOMENTUM = functools.partial(SGD, lr=0.1, momentum=0.9)


def test_eager_is_not_asked_again_nor_with_check_never(monkeypatch):
    from autopar.training import updates

    asked = []
    eager = updates.Eager
    monkeypatch.setattr(updates, "Eager", lambda *a: (asked.append(1), eager(*a))[1])
    for mode, count in (("first", 1), ("never", 0), ("always", 4)):
        asked.clear()
        Pair(mlp, MOMENTUM, ["cpu"], policy="auto", split=None, check=mode).same(batches(4))
        assert len(asked) == count


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(12, 5), nn.Linear(12, 5)

    def forward(self, x: torch.Tensor, other: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return self.left(x) + self.right(other) * scale


def test_all_that_comes_back_is_detached():
    """A weight too, in the step that gives gradients and in the whole one: it is the weight's memory still."""
    model = mlp()
    step = autopar.train_step(
        model, None, MOMENTUM(model.parameters()), THREE,
        step_fn=lambda model, x: {"loss": model(x).square().mean(), "weight": model[0].weight},
    )  # fmt: skip
    for _ in range(3):
        found = step(torch.randn(8, 12))
        assert not found["loss"].requires_grad and not found["weight"].requires_grad
        assert torch.equal(found["weight"], model[0].weight)
    step.close()


@pytest.mark.parametrize("form", ["tuple", "dict", "step_fn"])
def test_inputs_in_every_form(form):
    torch.manual_seed(0)
    model, twin = Two().double(), Two().double()
    twin.load_state_dict(model.state_dict())
    x, y = batches(1)[0]
    criterion = nn.CrossEntropyLoss()
    ours, theirs = MOMENTUM(model.parameters()), MOMENTUM(twin.parameters())
    options: dict[str, Any] = {}
    batch: tuple[Any, ...] = ({"x": x, "other": x.flip(0), "scale": 0.5}, y)
    if form == "tuple":
        batch = ((x, x.flip(0), 0.5), y)
    if form == "step_fn":
        batch = ({"x": x, "y": y},)
        options["step_fn"] = lambda model, batch: criterion(
            model(batch["x"], batch["x"].flip(0), 0.5), batch["y"]
        )
    step = autopar.train_step(
        model, None if options else criterion, ours, THREE, **FORCED | {"split": None}, **options
    )
    for _ in range(5):
        loss = criterion(twin(x, x.flip(0), 0.5), y)
        loss.backward()
        theirs.step()
        theirs.zero_grad()
        found = step(*batch)
        assert not found.requires_grad and far(found, loss.detach()) <= 1e-9
    assert far(model.left.weight.detach(), twin.left.weight.detach()) <= 1e-9


@pytest.mark.parametrize("kind", [tuple, dict])
def test_of_several_losses_the_first_is_differentiated_the_rest_come_back(kind):
    criterion = nn.CrossEntropyLoss()

    def several(outputs: torch.Tensor, targets: torch.Tensor) -> Any:
        first, second = criterion(outputs, targets), outputs.square().mean()
        total = first + 0.1 * second
        return (total, first, second, "names") if kind is tuple else {"first": first, "loss": total, "n": 3}

    pair = Pair(mlp, MOMENTUM, criterion=several)
    for x, y in batches(5):
        expected = several(pair.plain(x), y)
        expected[0 if kind is tuple else "loss"].backward()
        pair.theirs.step()
        pair.theirs.zero_grad()
        found = pair.step(x, y)
        assert type(found) is kind and len(found) == len(expected)
        for key in range(4) if kind is tuple else expected:
            if isinstance(expected[key], torch.Tensor):
                assert not found[key].requires_grad
                assert far(found[key], expected[key].detach()) <= 1e-9
            else:
                assert found[key] == expected[key]
    pair.same_after()


def test_a_model_may_have_a_criterion_of_its_own():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.criterion = mlp(), nn.Linear(5, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.criterion(self.body(x))

    class Rule(nn.Linear):
        def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return nn.functional.cross_entropy(super().forward(outputs), targets)

    torch.manual_seed(0)
    model, rule = Net().double(), Rule(5, 5).double()
    plain, loss = copy.deepcopy(model), copy.deepcopy(rule)
    optimizer = SGD([*plain.parameters(), *loss.parameters()], lr=0.5)
    step = autopar.train_step(
        model, rule, SGD([*model.parameters(), *rule.parameters()], lr=0.5), THREE, **FORCED
    )
    for x, y in batches(1) * 3:
        step(x, y)
        eager_step(plain, loss, optimizer, x, y)
    pairs = zip((*model.parameters(), *rule.parameters()), (*plain.parameters(), *loss.parameters()))
    assert all(far(ours, theirs) <= 1e-9 for ours, theirs in pairs)


def test_errors_of_a_step_name_the_remedy():
    model = mlp().double()
    optimizer, rule = MOMENTUM(model.parameters()), nn.CrossEntropyLoss()
    x, y = batches(1)[0]

    def refused(match: str, *batch: Any, given: Any = rule, by: Any = optimizer, **options: Any) -> None:
        with pytest.raises(autopar.AutoparError, match=match):
            autopar.train_step(model, given, by, ["cpu"], **options)(*(batch or (x, y)))

    refused(r"shape \[8, 5\].*\.mean\(\)", given=lambda outputs, _: outputs)
    refused("no loss came back, but NoneType", given=lambda outputs, _: None)
    refused("a dict without \"loss\", of 'total'", given=lambda outputs, _: {"total": outputs.sum()})
    refused("a tuple of nothing", given=lambda outputs, _: ())
    with pytest.raises(autopar.CaptureError, match=r" step\(\) missing .*'inputs'"):
        autopar.train_step(model, rule, optimizer, ["cpu"])()
    refused("a Python number, which has no gradient", given=lambda outputs, _: outputs.sum().item())
    refused("depends on no parameter", given=lambda outputs, _: outputs.detach().sum())
    refused(r"requires grad.*\.detach\(\)", x.requires_grad_(), y)
    x.requires_grad_(False)
    refused("neither in Sequential nor in its criterion", by=MOMENTUM(mlp().parameters()))
    refused("give a criterion", given=None)
    refused("give a criterion", step_fn=lambda model, batch: batch)
    refused("check='often'", check="often")
    refused("autocast=", autocast="bfloat16")
    refused("clip_norm=", clip_norm=-1.0)
    with pytest.raises(autopar.CaptureError, match=r"compiled\.module"):
        autopar.train_step(autopar.compile(model, ["cpu"]), rule, optimizer, ["cpu"])
    with torch.inference_mode():
        refused("inference_mode")
    step = autopar.train_step(model, rule, optimizer, ["cpu"])
    with pytest.raises(autopar.AutoparError, match="nothing is planned"):
        _ = step.plan
    with pytest.raises(TypeError, match=r"state_dict\(\)"):
        pickle.dumps(step)
    with pytest.raises(TypeError, match="neither pickled nor copied"):
        copy.deepcopy(step)


def test_the_face(tmp_path):
    pair = Pair(mlp, MOMENTUM)
    step, (x, y) = pair.step, batches(1)[0]
    step.prepare(x, y)
    assert pair.model.state_dict().keys() == step.module.state_dict().keys() and step.module is pair.model
    assert step.optimizer is pair.optimizer and step.machine.device.keys() == {*THREE}
    with step.record() as timeline:
        for _ in range(3):
            step(x, y)
    assert len(timeline.calls) == 3 and timeline.last.makespan > 0
    graph = step.plan.costed.graph
    assert {task.phase for task in graph.tasks} == {"forward", "backward", "update"}
    assert {graph.value[name].path for name in graph.carried} >= {*pair.model.state_dict()}
    check(step.program, graph)
    for suffix in ("svg", "html"):
        step.draw(tmp_path / f"step.{suffix}")
        assert (tmp_path / f"step.{suffix}").stat().st_size > 100
    assert "as soon as its gradient is whole" in step.explain() and "measured" in step.explain()
    assert "SGD" in repr(step) and "emulated:1" in repr(step)
    step.close()
    assert step(x, y).isfinite()


def test_programs_of_sizes_are_dropped_with_one_warning_and_made_again(monkeypatch, caplog):
    from autopar.session import program_cache as calls

    monkeypatch.setattr(calls, "SIZES", 4)
    # Each number of rows is cut in its own way.
    pair = Pair(mlp, MOMENTUM, ["cpu*2"], policy="auto", split=2, check="never")
    with caplog.at_level(logging.WARNING, "autopar"):
        pair.same([batches(1, rows)[0] for rows in (*range(2, 8), 2)])
    assert len([record for record in caplog.records if "more than 4 sets of sizes" in record.message]) == 1
    assert all(len(graph.programs) <= 4 for graph in pair.step._session.graphs)


def test_threads_of_a_step_end_with_its_last_reference():
    model, before = mlp().double(), {*threading.enumerate()}
    step = autopar.train_step(model, nn.CrossEntropyLoss(), MOMENTUM(model.parameters()), THREE, **FORCED)
    for rows in (8, 6, 12):
        step(*batches(1, rows)[0])
    lanes = [lane for lane in {*threading.enumerate()} - before if "tqdm" not in lane.name]
    gc.disable()
    try:
        del step
        for lane in lanes:
            lane.join(10)
        assert lanes and not any(lane.is_alive() for lane in lanes)
    finally:
        gc.enable()


def test_one_capture_serves_all_sizes():
    pair = Pair(mlp, MOMENTUM)
    pair.same([batches(1, rows)[0] for rows in (8, 6, 12, 7, 8, 6)])
    assert len(pair.step._session.graphs) <= 2


def test_weights_and_optimizer_state_loaded_in_mid_run_are_seen():
    pair = Pair(mlp, functools.partial(Adam, lr=0.01))
    data = batches(12)
    pair.same(data[:4])
    saved = pickle.dumps((pair.model.state_dict(), pair.optimizer.state_dict()))
    pair.same(data[4:8])
    for model, optimizer in ((pair.model, pair.optimizer), (pair.plain, pair.theirs)):
        weights, state = pickle.loads(saved)
        model.load_state_dict(weights)
        optimizer.load_state_dict(state)
    pair.same(data[8:])
    with torch.no_grad():
        for model in (pair.model, pair.plain):
            model[0].weight.mul_(0.5)
    pair.same(data[:4])


def test_modes_are_followed():
    pair = Pair(functools.partial(mlp, 0.5), MOMENTUM)
    data = batches(9)
    for start, mode in ((0, True), (3, False), (6, True)):
        pair.model.train(mode)
        pair.plain.train(mode)
        pair.same(data[start : start + 3])


def _resumed(path: str) -> list[str]:
    """The losses after those of a checkpoint."""
    pair = Pair(functools.partial(mlp, 0.3), functools.partial(Adam, lr=0.01), policy="round_robin")
    saved = torch.load(path)
    pair.model.load_state_dict(saved["model"])
    pair.optimizer.load_state_dict(saved["optimizer"])
    torch.set_rng_state(saved["random"])
    return [pair.step(x, y).item().hex() for x, y in batches(10)[6:]]


def test_a_new_process_goes_on_where_this_one_stopped(tmp_path):
    pair = Pair(functools.partial(mlp, 0.3), functools.partial(Adam, lr=0.01))
    data = batches(10)
    for x, y in data[:6]:
        pair.step(x, y)
    path = tmp_path / "checkpoint.pt"
    torch.save(
        {
            "model": pair.step.module.state_dict(),
            "optimizer": pair.optimizer.state_dict(),
            "random": torch.get_rng_state(),
        },
        path,
    )
    expected = [pair.step(x, y).item().hex() for x, y in data[6:]]
    assert forked(_resumed, str(path)) == expected


class Annealed:
    """A loss whose weight changes from step to step, and a count that does not matter to it."""

    def __init__(self) -> None:
        self.share, self.count = 1.0, 0

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(outputs, targets) * self.share


def test_numbers_that_the_criterion_reads_are_followed():
    rule = Annealed()
    pair = Pair(mlp, MOMENTUM, criterion=rule.loss)
    data = batches(6)
    pair.same(data[:3])
    rule.count = 3
    pair.same(data[3:4])
    assert len(pair.step._session.graphs) == 1
    rule.share = 0.25
    pair.same(data[4:])
    assert len(pair.step._session.graphs) == 2


def test_tensors_that_the_criterion_closes_over_are_read_anew():
    weight = torch.ones(5, dtype=torch.float64)
    pair = Pair(
        mlp, MOMENTUM, criterion=lambda outputs, y: nn.functional.cross_entropy(outputs, y, weight=weight)
    )
    data = batches(6)
    pair.same(data[:3])
    weight[2] = 9.0
    pair.same(data[3:])


def test_a_placement_counts_the_transfers_of_weights_that_an_optimizer_steps_itself():
    """The layer takes 27 ms on the host; the gradient takes 13 ms over the link, and so does the weight."""
    devices = (
        Device("cpu", "cpu", flops=(("float32", 1e10),), bytes_per_s=1e11),
        Device("emulated:0", "emulated", flops=(("float32", 1e13),), bytes_per_s=1e12),
    )
    links = (Link("cpu", "emulated:0", 1e-6, 8e7, "in"), Link("emulated:0", "cpu", 1e-6, 8e7, "out"))
    model = nn.Linear(512, 512)
    optimizer = torch.optim.RMSprop(model.parameters())
    step = autopar.train_step(
        model, nn.MSELoss(), optimizer, Machine(devices, links), measure=False, split=None, check="never"
    )
    step.prepare(torch.randn(256, 512), torch.randn(256, 512))
    assert {placed.device for placed in step.plan.placed} == {"cpu"}
    assert not step.plan.costed.graph.changing
