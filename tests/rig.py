"""autopar on an accelerator: models, machines and the ways to run one on the other, each held against the model on the
CPU. `KIND` is the accelerator of this process when the module is imported; see `--accelerator` in `conftest.py`."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import autopar
from autopar.machine import Device, Link, Machine

_here = torch.accelerator.current_accelerator(check_available=True)
KIND = _here.type if _here else "cuda"
FIRST = f"{KIND}:0"
LIMIT = 1e-4
"""Largest max|Δ| ÷ max(1, max|reference|) of a case in float32, over a few steps of training."""
ROWS = 16


def machine(devices: int = 2, memory: int = 1 << 30) -> Machine:
    """A CPU and accelerators that are all equally fast; `memory` in bytes of each. Nothing is probed."""
    names = ["cpu", *(f"{KIND}:{index}" for index in range(devices))]
    links = [Link(a, b, 1e-6, 1e10, f"{a}>{b}") for a in names for b in names if a != b]
    made = [Device(name, name.partition(":")[0], memory_bytes=memory, launch_s=1e-4) for name in names]
    return Machine(tuple(made), tuple(links))


def sleep(seconds: float) -> None:
    """Keep the current stream busy, and the host free, for about this long."""
    torch.get_device_module(KIND)._sleep(int(seconds * (1e6 if KIND == "strict" else 2e9)))


def synchronize() -> None:
    """Wait for all that the accelerators have been given."""
    for index in range(torch.accelerator.device_count()):
        torch.accelerator.synchronize(index)


class MLP(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(32, width), nn.Linear(width, 10)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x)))


class Towers(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Linear(32, width), nn.ReLU(), nn.Linear(width, width))
        self.right = nn.Sequential(nn.Linear(32, width), nn.Tanh(), nn.Linear(width, width))
        self.out = nn.Linear(2 * width, 10)

    def forward(self, x):
        return self.out(torch.cat([self.left(x), self.right(x)], 1))


class CNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.conv2, self.norm2 = nn.Conv2d(8, 8, 3, padding=1, stride=2), nn.BatchNorm2d(8)
        self.out = nn.Linear(8 * 16, 10)

    def forward(self, x):
        x = torch.relu(self.norm1(self.conv1(x)))
        x = torch.relu(self.norm2(self.conv2(x)))
        return self.out(x.flatten(1))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self.out = nn.Linear(32, 10)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.out(x.mean(1))


class Recurrent(nn.Module):
    def __init__(self, kind: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.cells, self.out = kind(16, 24, num_layers=2, batch_first=True), nn.Linear(24, 10)

    def forward(self, x):
        return self.out(self.cells(x)[0][:, -1])


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    "mlp": (MLP, lambda: torch.randn(ROWS, 32)),
    "towers": (Towers, lambda: torch.randn(ROWS, 32)),
    "cnn": (CNN, lambda: torch.randn(ROWS, 3, 8, 8)),
    "transformer": (Transformer, lambda: torch.randint(0, 50, (ROWS, 7))),
    "lstm": (lambda: Recurrent(nn.LSTM), lambda: torch.randn(ROWS, 6, 16)),
    "gru": (lambda: Recurrent(nn.GRU), lambda: torch.randn(ROWS, 6, 16)),
}
"""Makers of a model and of a batch for it; all give `ROWS` rows of 10 numbers."""


def in_turn(costed) -> dict[str, str]:
    """Runs on all devices by turns: as many transfers as there can be."""
    return _by_turns(costed, [device.name for device in costed.machine.devices])


def accelerators_in_turn(costed) -> dict[str, str]:
    """Runs on the accelerators by turns: transfers between accelerators."""
    return _by_turns(costed, [device.name for device in costed.machine.devices if device.kind != "cpu"])


def _by_turns(costed, names: list[str]) -> dict[str, str]:
    return {run.name: names[i % len(names)] for i, run in enumerate(costed.runs) if run.name != "loss"}


POLICIES: dict[str, Any] = {
    "in turn": in_turn,
    "accelerators in turn": accelerators_in_turn,
    "round robin": "round_robin",
}


def error(found: Any, expected: Any) -> float:
    """max|Δ| ÷ max(1, max|reference|) of the worst tensor of two lists; infinite where a number is not finite."""
    found, expected = ([x] if isinstance(x, torch.Tensor) else list(x) for x in (found, expected))
    worst = 0.0
    for a, b in zip(found, expected, strict=True):
        a, b = a.detach().cpu().double(), b.detach().cpu().double()
        if a.shape != b.shape or not bool(a.isfinite().all()):
            return float("inf")
        if a.numel():
            worst = max(worst, float((a - b).abs().max()) / max(1.0, float(b.abs().max())))
    return worst


@dataclass(frozen=True)
class Case:
    """A model, where its parameters and inputs are, how it is placed and cut, and the way it is run."""

    way: str
    model: str
    home: str
    policy: str = ""
    split: int | None = None

    def __str__(self) -> str:
        cut = f", {self.split} parts" if self.split else ""
        return f"{self.way}: {self.model} at {self.home}" + (f", {self.policy}{cut}" if self.policy else "")

    def options(self) -> dict[str, Any]:
        return {"policy": POLICIES[self.policy], "split": self.split}

    def run(self) -> float:
        """The largest error of all that is compared; see `error`."""
        torch.manual_seed(0)
        make, batch = MODELS[self.model]
        model = make()
        reference = copy.deepcopy(model)
        return WAYS[self.way](self, model.to(self.home), reference, batch)


def infer(case: Case, model: nn.Module, reference: nn.Module, batch: Callable[[], torch.Tensor]) -> float:
    """Several calls in flight before the first answer is looked at."""
    fast = autopar.compile(model.eval(), machine(), **case.options())
    with torch.no_grad():
        inputs = [batch() for _ in range(4)]
        found = [fast(x.to(case.home)) for x in inputs]
        assert all(y.device.type == torch.device(case.home).type for y in found)
        worst = error(found, [reference.eval()(x) for x in inputs])
    fast.close()
    return worst


def own_loop(case: Case, model: nn.Module, reference: nn.Module, batch: Callable[[], torch.Tensor]) -> float:
    """The user's own training loop: losses, gradients, and the state it leaves."""
    fast = autopar.compile(model, machine(), **case.options())
    optimizers = [torch.optim.SGD(each.parameters(), 0.1, momentum=0.9) for each in (model, reference)]
    worst = 0.0
    for _ in range(3):
        x, y = batch(), torch.randint(0, 10, (ROWS,))
        losses = [functional.cross_entropy(fast(x.to(case.home)), y.to(case.home))]
        losses.append(functional.cross_entropy(reference(x), y))
        for loss, optimizer in zip(losses, optimizers):
            loss.backward()
            optimizer.step()
        gradients = [[p.grad for p in each.parameters()] for each in (model, reference)]
        worst = max(worst, error(*losses), error(*gradients))
        for optimizer in optimizers:
            optimizer.zero_grad()
    fast.close()
    return max(worst, _states(model, reference))


def train_step(
    case: Case, model: nn.Module, reference: nn.Module, batch: Callable[[], torch.Tensor]
) -> float:
    """Loss, backward and update as one graph: losses, and the state they leave."""
    # With torch's own eps Adam makes steps of gradients that are zero but for rounding: biases before a BatchNorm.
    optimizers = [torch.optim.Adam(each.parameters(), 0.01, eps=1e-3) for each in (model, reference)]
    step = autopar.train_step(model, nn.CrossEntropyLoss(), optimizers[0], machine(), **case.options())
    worst = 0.0
    for _ in range(4):
        x, y = batch(), torch.randint(0, 10, (ROWS,))
        loss = step(x.to(case.home), y.to(case.home))
        optimizers[1].zero_grad()
        expected = functional.cross_entropy(reference(x), y)
        expected.backward()
        optimizers[1].step()
        worst = max(worst, error(loss, expected))
    step.close()
    return max(worst, _states(model, reference))


def data_parallel(
    case: Case, model: nn.Module, reference: nn.Module, batch: Callable[[], torch.Tensor]
) -> float:
    """The drop-in for `torch.nn.DataParallel` on two accelerators: outputs, and the state training leaves."""
    fast = autopar.DataParallel(model, [0, 1])
    optimizers = [torch.optim.SGD(each.parameters(), 0.1) for each in (model, reference)]
    worst = 0.0
    for _ in range(2):
        x, y = batch(), torch.randint(0, 10, (ROWS,))
        found, expected = fast(x.to(case.home)), reference(x)
        assert found.device.type == KIND
        worst = max(worst, error(found, expected))
        for out, optimizer in zip((found, expected), optimizers):
            optimizer.zero_grad()
            functional.cross_entropy(out, y.to(out.device)).backward()
            optimizer.step()
    fast.close()
    return max(worst, _states(model, reference))


def _states(model: nn.Module, reference: nn.Module) -> float:
    return error(model.state_dict().values(), reference.state_dict().values())


WAYS: dict[str, Callable[..., float]] = {
    "inference": infer,
    "own loop": own_loop,
    "train_step": train_step,
    "DataParallel": data_parallel,
}


def cases(models: Iterable[str] = MODELS, homes: Iterable[str] = ("cpu", FIRST)) -> Iterator[Case]:
    """Every case: models × homes × policies × whole or cut × ways, and `DataParallel`."""
    for model, home in itertools.product(models, homes):
        for way in ("inference", "own loop", "train_step"):
            for policy, split in itertools.product(POLICIES, (None, 2)):
                yield Case(way, model, home, policy, split)
        yield Case("DataParallel", model, home)
