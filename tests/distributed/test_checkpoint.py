"""Checkpoints: complete or not there, wherever a process dies; read by whichever ranks hold the parameters."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from helpers.forks import served
from helpers.job_models import adam, loss, made, stepped, trained
from helpers.ranks import RankError, ranks
from torch import nn

from autopar import RunError
from autopar.distributed.checkpoint import load_latest, save

pytestmark = pytest.mark.slow


class Run:
    """A model with dropout and moving statistics, its optimizer and schedule: all that a step changes."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 2))
        groups = [{"params": self.model[0].parameters()}, {"params": self.model[3].parameters(), "lr": 0.02}]
        self.optimizer = torch.optim.AdamW(groups, lr=0.01, betas=(0.8, 0.95))
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.5)

    def step(self, number: int) -> float:
        x = torch.randn(6, 4, generator=torch.Generator().manual_seed(number))
        loss = self.model(x).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        return loss.item()

    def state(self, **more) -> dict:
        return {"model": self.model, "optimizer": self.optimizer, "schedule": self.schedule, **more}


def test_a_run_goes_on_as_if_nothing_had_been(tmp_path):
    through = Run(0)
    expected = [through.step(number) for number in range(6)]
    first = Run(0)
    begun = [first.step(number) for number in range(3)]
    save(tmp_path, first.state(step=3, seen=[1, (2, "a")], table={1: torch.ones(2)}))
    again = Run(7)
    state = again.state(seen=None, table=None)
    assert load_latest(tmp_path, state) == 3
    assert state["seen"] == [1, (2, "a")] and state["table"][1].tolist() == [1, 1]
    assert begun + [again.step(number) for number in range(3, 6)] == expected
    assert again.optimizer.param_groups[0]["betas"] == (0.8, 0.95)


class Partly(nn.Module):
    """A model with tied weights, a frozen and an unused layer, and a count that is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.tied, self.frozen, self.unused = (nn.Linear(4, 4) for _ in range(4))
        self.tied.weight, self.calls = self.first.weight, 0
        self.frozen.requires_grad_(False)

    def get_extra_state(self) -> int:
        return self.calls

    def set_extra_state(self, state: int) -> None:
        self.calls = state

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.tied(self.frozen(self.first(x)))


@pytest.mark.parametrize(
    "optimizers",
    [
        lambda model: [torch.optim.AdamW(model.parameters(), fused=True)],
        lambda model: [torch.optim.SGD(model.parameters(), lr=0.1)],
        lambda model: [torch.optim.LBFGS(model.parameters(), max_iter=2)],
        lambda model: [
            torch.optim.Adam(model.first.parameters()),
            torch.optim.SGD(model.tied.parameters(), lr=0.1, momentum=0.9),
        ],
    ],
    ids=["partly", "stateless", "nested", "two"],
)
def test_each_kind_of_optimizer_goes_on(tmp_path, optimizers):
    def started(seed: int) -> dict:
        torch.manual_seed(seed)
        model = Partly()
        return {"model": model, **{str(at): each for at, each in enumerate(optimizers(model))}}

    def steps(model: Partly, *each: torch.optim.Optimizer) -> list[float]:
        def closure(optimizer: torch.optim.Optimizer) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(torch.linspace(-1, 1, 20).view(5, 4)).square().mean()
            loss.backward()
            return loss.detach()

        return [float(optimizer.step(partial(closure, optimizer))) for _ in range(3) for optimizer in each]

    first, again = started(0), started(7)
    steps(*first.values())
    save(tmp_path, {**first, "step": 3})
    assert load_latest(tmp_path, again) == 3
    assert again["model"].calls == first["model"].calls > 0
    assert steps(*again.values()) == steps(*first.values())


def test_the_last_few_are_kept(tmp_path):
    run = Run(0)
    assert load_latest(tmp_path, run.state()) is None
    for step in range(5):
        save(tmp_path, run.state(step=step), keep=3)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [f"step-{step:09d}" for step in (2, 3, 4)]


def _die_at(root: str, at: int) -> None:
    """Be killed where the `at`-th file under root is opened, made, renamed or removed from here on."""
    count = 0

    def watch(event: str, args: tuple) -> None:
        nonlocal count
        if event == "open" or event.startswith(("os.", "shutil.")):
            if not any(str(item).startswith(root) for item in args[:2] if isinstance(item, (str, Path))):
                return
            if count == at:
                os.kill(os.getpid(), signal.SIGKILL)
            count += 1

    sys.addaudithook(watch)


def _crashes(base: str) -> list[tuple[int | None, bool, list[str]]]:
    """Of a crash at each file of a save: the step that is then loaded, whether with the weights of that step, and the
    directories there after another save; last comes the save that does not crash."""
    weights = {step: Run(step).model.state_dict() for step in (1, 2)}
    found: list = []
    for at in range(100):
        root = Path(base) / str(at)
        save(root, Run(1).state(step=1))
        # A fork has what is loaded here, which takes a new process seconds.
        child = os.fork()
        if child == 0:
            _die_at(str(root), at)
            save(root, Run(2).state(step=2), keep=1)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code in (0, -signal.SIGKILL)
        again = Run(3)
        step = load_latest(root, again.state())
        held = again.model.state_dict()
        whole = step is not None and all(
            torch.equal(held[name], kept) for name, kept in weights[step].items()
        )
        save(root, again.state(step=3), keep=1)
        found.append((step, whole, [entry.name for entry in root.iterdir()]))
        if code == 0:
            break
    return found


def test_a_crash_at_any_file_leaves_a_whole_checkpoint(tmp_path):
    found = served(_crashes, str(tmp_path))
    steps = [step for step, *_ in found]
    assert len(steps) > 8, "the crashes were nowhere near the files"
    assert steps == sorted(steps) and steps[0] == 1 and steps[-2] == 2
    assert all(whole for _, whole, _ in found)
    # What a crash has left is in nobody's way.
    assert all(names == ["step-000000003"] for *_, names in found)


def _second_dies(rank: int, root: str, at: int) -> None:
    """Save step 1 and then step 2, in which rank 1 is killed at its `at`-th file."""
    save(root, Run(1).state(step=1))
    if rank == 1:
        _die_at(root, at)
    save(root, Run(2).state(step=2), keep=1)


def test_a_crash_of_one_of_two_ranks_leaves_the_checkpoint_before(tmp_path):
    steps = []
    for at in range(20):
        root = tmp_path / str(at)
        with contextlib.suppress(RankError):
            # Rank 0 goes on for as long as it can.
            ranks(2, _second_dies, str(root), at, grace_s=30)
        again = Run(3)
        steps.append(load_latest(root, again.state()))
        assert torch.equal(again.model[0].weight, Run(steps[-1]).model[0].weight)
        if steps[-1] == 2:
            break
    # What rank 1 writes and flushes comes before the new checkpoint has its name.
    assert len(steps) > 2 and steps[:-1] == [1] * (len(steps) - 1) and steps[-1] == 2


def _stage(names: list[str]) -> nn.Module:
    """Some layers of a model under their paths in it."""
    holder = nn.Module()
    for name in names:
        torch.manual_seed(int(name))
        holder.add_module(name, nn.Linear(3, 3))
    return holder


def _stages(rank: int, root: str, layers: list[list[str]], saves: bool) -> tuple:
    """Of each layer of a rank, its weight and first moment, after a step and a save, or after loading."""
    module = _stage(layers[rank])
    optimizer = torch.optim.Adam(module.parameters(), lr=0.1)
    step = None
    if saves:
        for layer in module.children():
            layer(torch.ones(1, 3)).square().sum().backward()
        optimizer.step()
        save(root, {"model": module, "optimizer": optimizer, "step": 4})
    else:
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.zero_()
        step = load_latest(root, {"model": module, "optimizer": optimizer})
    kept = {
        name: (layer.weight.tolist(), optimizer.state[layer.weight]["exp_avg"].tolist())
        for name, layer in module.named_children()
    }
    return step, kept


@pytest.mark.parametrize("layers", [[["0", "1", "2"]], [["2"], ["0"], ["1"]]])
def test_stages_are_loaded_into_other_stages(tmp_path, layers):
    wrote = ranks(2, _stages, str(tmp_path), [["0", "1"], ["2"]], True)
    read = ranks(len(layers), _stages, str(tmp_path), layers, False)
    assert [step for step, _ in read] == [4] * len(layers)
    expected = {name: kept for _, layers in wrote for name, kept in layers.items()}
    assert {name: kept for _, layers in read for name, kept in layers.items()} == expected
    assert len(expected) == 3


def _pipelined(rank: int, root: str, name: str, stages: int, schedule: str) -> tuple[list[float], int | None]:
    """The losses of two steps of a pipeline after three and a save, or after loading that."""
    import autopar

    model, x, y = made(name)
    job = autopar.distribute(
        model, example_inputs=(x,), loss=loss, stages=stages, replicas=1, schedule=schedule
    )
    optimizer = adam(job.parameters())
    state = {"model": job, "optimizer": optimizer}
    step = load_latest(root, state)
    if step is None:
        stepped(job, x, y, 3, optimizer)
        save(root, {**state, "step": 3})
    return stepped(job, x, y, 2, optimizer), step


def test_a_checkpoint_of_one_process_is_loaded_into_a_pipeline(tmp_path):
    model, x, y = made("mlp")
    optimizer = adam(model.parameters())
    trained(model, x, y, 3, optimizer)
    save(tmp_path, {"model": model, "optimizer": optimizer, "step": 3})
    (losses, step), _ = ranks(2, _pipelined, str(tmp_path), "mlp", 2, "1f1b")
    assert step == 3 and losses == pytest.approx(trained(model, x, y, 2, optimizer), abs=1e-12)


def _replica(rank: int, root: str) -> list:
    """The parameters and the buffers of a replica after one went on and one was loaded: equal on every rank."""
    from torch.nn.parallel import DistributedDataParallel

    def step(ddp, optimizer, number):
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(10 * number + rank))
        optimizer.zero_grad()
        ddp(x).square().mean().backward()
        optimizer.step()

    def made():
        torch.manual_seed(0)
        ddp = DistributedDataParallel(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)))
        return ddp, torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)

    first, again = made(), made()
    step(*first, 0)
    save(root, {"model": first[0], "optimizer": first[1], "step": 1})
    step(*again, 5)
    load_latest(root, {"model": again[0], "optimizer": again[1]})
    step(*first, 1)
    step(*again, 1)
    plain = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    load_latest(root, {"model": plain})
    return [
        all(torch.equal(a, b) for a, b in zip(first[0].parameters(), again[0].parameters())),
        # DDP gives rank 0's moving statistics to all before each step.
        rank != 0 or all(torch.equal(a, b) for a, b in zip(first[0].buffers(), again[0].buffers())),
        plain[1].running_mean.tolist(),
    ]


def test_replicas_are_saved_once_and_go_on_alike(tmp_path):
    first, second = ranks(2, _replica, str(tmp_path))
    assert first[:2] == second[:2] == [True, True]
    assert first[2] == second[2]


def _refused(rank: int, root: str, what: str) -> str:
    run = Run(0)
    state = run.state(step=5)
    if rank == 1:
        if what == "disk":
            os.fsync = lambda handle: (_ for _ in ()).throw(OSError(28, "No space left on device"))
        if what == "object":
            state["odd"] = lambda: None
        if what == "shape":
            state["model"] = nn.Linear(3, 3)
            del state["optimizer"], state["schedule"]
    try:
        if what == "shape":
            save(root, run.state(step=5))
            load_latest(root, {**state, "step": 5})
        else:
            save(root, state)
    except RunError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("disk", "step 5 could not be saved in .*: rank 1: .*No space left on device"),
        ("object", "step 5 could not be saved in .*: rank 1: .*[Pp]ickle"),
        ("shape", "rank 1: model.weight was not saved: the checkpoint is of another model"),
    ],
)
def test_an_error_of_one_rank_is_raised_on_every_rank(tmp_path, what, says):
    first, second = ranks(2, _refused, str(tmp_path), what)
    assert first == second and re.match(says, first), first
    assert load_latest(tmp_path, {}) == (5 if what == "shape" else None)


def test_mistakes_are_said_with_their_way_out(tmp_path):
    run = Run(0)
    with pytest.raises(RunError, match=r"'step': 12"):
        save(tmp_path, run.state())
    with pytest.raises(RunError, match="give 1 or more"):
        save(tmp_path, run.state(step=1), keep=0)
    with pytest.raises(RunError, match="save the module beside its optimizer"):
        save(tmp_path, {"optimizer": run.optimizer, "step": 1})
    save(tmp_path, run.state(step=5))
    with pytest.raises(RunError, match=r"has step-000000005, this is step-000000004.*load_latest"):
        save(tmp_path, run.state(step=4))
    other = nn.Sequential(nn.Linear(4, 9))
    with pytest.raises(RunError, match=r"model.0.weight was saved with shape \(8, 4\).*of another model"):
        load_latest(tmp_path, {"model": other})
