"""A model and its equal, for an optimizer's step in a graph beside torch's own."""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from capturing import joint
from torch import nn
from torch.optim import Optimizer

from autopar.capture import Captured
from autopar.session.compare import interpret
from autopar.training.optimizers import committed, obstacle, trained_parameters, updated
from autopar.transform.buckets import grouped

CPU = torch.device("cpu")


class Net(nn.Module):
    """Two layers whose batch is not a multiple of any vector, a scale, and a weight used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(7, 13)
        self.fc2 = nn.Linear(13, 5)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.again = nn.Linear(7, 13)
        self.again.weight = self.fc1.weight
        self.unused = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The loss of a batch (n, 7) against (n, 5)."""
        hidden = torch.tanh(self.fc1(x)) + self.again(x)
        return ((torch.tanh(self.fc2(hidden)) * self.scale - y) ** 2).mean()


def batches(count: int, dtype: torch.dtype = torch.float32) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    made = torch.Generator().manual_seed(1)
    for _ in range(count):
        yield (
            3 * torch.randn(6, 7, generator=made, dtype=dtype),
            3 * torch.randn(6, 5, generator=made, dtype=dtype),
        )


def eager(model: nn.Module, optimizer: Optimizer, batch: Any, clip_norm: float | None = None) -> torch.Tensor:
    optimizer.zero_grad()
    loss = model(*batch)
    loss.backward()
    if clip_norm is not None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
    optimizer.step()
    return loss.detach()


class Stepping:
    """The graph with the step in it, executed task by task; what a call changes is written back after it. Updates of
    parameters below `nbytes` bytes are grouped."""

    def __init__(
        self, base: Captured, optimizer: Optimizer, clip_norm: float | None = None, nbytes: int = 0
    ) -> None:
        self.base, self.optimizer = base, optimizer
        captured = updated(base, optimizer, clip_norm=clip_norm)
        self.captured = replace(captured, graph=grouped(captured.graph, {}, {}, nbytes, few=0).check())

    def executed(self, batch: Any, most: int) -> dict[str, Any]:
        """The values after `most` tasks. What was there before is as it was."""
        assert obstacle(self.optimizer, trained_parameters(self.base)) == ""
        captured, graph = self.captured, self.captured.graph
        values: dict[str, Any] = {name: owner[key] for name, (owner, key) in captured.state.items()}
        values |= dict(zip(graph.inputs, captured.flatten(batch, {})))
        values |= {name: torch.ones((), dtype=batch[0].dtype) for name, _ in captured.tangents}
        kept = {name: (value, value.clone()) for name, value in values.items()}
        for task in itertools.islice(interpret(graph, captured.calls, values, CPU), most):
            for output in task.outputs:
                assert tuple(values[output].shape) == graph.value[output].shape, task.where
        for name, (value, was) in kept.items():
            assert torch.equal(value, was), f"{name} was changed in place"
        return values

    def __call__(self, batch: Any) -> torch.Tensor:
        captured, graph = self.captured, self.captured.graph
        values = self.executed(batch, len(graph.tasks))
        with torch.no_grad():
            for made, target in graph.updates:
                owner, key = captured.state[target]
                value = values[made]
                if target in graph.pieces:
                    start, count = graph.pieces[target]
                    value = value[start : start + count].view_as(owner[key])
                owner[key].copy_(value)
        committed(self.optimizer, trained_parameters(self.base).values())
        return values[graph.outputs[0]].detach()


def equal_state(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(equal_state(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal_state, one, other))
    return one == other


Make = Callable[[nn.Module], Optimizer]


@functools.cache
def net(dtype: torch.dtype, frozen: str) -> tuple[nn.Module, Captured, dict[str, torch.Tensor]]:
    """A model, its joint graph and its first parameters. Capturing takes longer than any test here."""
    torch.manual_seed(0)
    model = Net().to(dtype)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name != frozen)
    return model, joint(model, next(batches(1, dtype))), copy.deepcopy(model.state_dict())


class Twins:
    """A model and its equal, each with an optimizer that has stepped once."""

    def __init__(self, make: Make, dtype: torch.dtype = torch.float32, frozen: str = "") -> None:
        self.model, self.base, first = net(dtype, frozen)
        self.model.load_state_dict(first)
        for parameter in self.model.parameters():
            parameter.grad = None
        self.twin = copy.deepcopy(self.model)
        self.optimizer, self.rival = make(self.model), make(self.twin)
        self.batch = next(batches(1, dtype))
        for model, optimizer in ((self.model, self.optimizer), (self.twin, self.rival)):
            eager(model, optimizer, self.batch)
            optimizer.zero_grad()

    def stepping(self, clip_norm: float | None = None, nbytes: int = 0) -> Stepping:
        return Stepping(self.base, self.optimizer, clip_norm, nbytes)

    def are_equal(self) -> None:
        for (name, mine), theirs in zip(self.model.named_parameters(), self.twin.parameters()):
            assert torch.equal(mine, theirs), name
        assert equal_state(self.optimizer.state_dict(), self.rival.state_dict())


def nothing(*_: Any) -> None:
    """The default change between steps: none."""
