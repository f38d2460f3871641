"""autopar's ways to run a model on accelerators, each held against the model on the CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from rig import COUNT, KIND, MODELS, POLICIES, ROWS, error, machine
from torch import nn
from torch.nn import functional

import autopar

Batch = Callable[[], torch.Tensor]


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


def infer(case: Case, model: nn.Module, reference: nn.Module, batch: Batch) -> float:
    """Several calls in flight before the first answer is looked at."""
    fast = autopar.compile(model.eval(), machine(), **case.options())
    with torch.no_grad():
        inputs = [batch() for _ in range(4)]
        found = [fast(x.to(case.home)) for x in inputs]
        assert all(y.device.type == torch.device(case.home).type for y in found)
        worst = error(found, [reference.eval()(x) for x in inputs])
    fast.close()
    return worst


def own_loop(case: Case, model: nn.Module, reference: nn.Module, batch: Batch) -> float:
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


def train_step(case: Case, model: nn.Module, reference: nn.Module, batch: Batch) -> float:
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


def data_parallel(case: Case, model: nn.Module, reference: nn.Module, batch: Batch) -> float:
    """The drop-in for `torch.nn.DataParallel` on the accelerators: outputs, and the state training leaves."""
    fast = autopar.DataParallel(model, list(range(COUNT)))
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
