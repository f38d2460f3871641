"""Small models of the usual kinds, each with its inputs, by name, and the ways in which models are run."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from autopar.session.compare import error


class Convolutions(nn.Module):
    """Convolutions with BatchNorm, whose statistics are state."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.second, self.head = nn.Conv2d(8, 4, 3), nn.Linear(4 * 4 * 4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.first(x)))
        return self.head(torch.relu(self.second(x)).flatten(1))


class Recurrent(nn.Module):
    """An LSTM, of which the last step is read."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(6, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x)[0][:, -1])


class Branches(nn.Module):
    """Two towers that meet at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 8))
        self.right = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 8))
        self.head = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.cat([self.left(x), self.right(x)], 1))


class Tied(nn.Module):
    """One matrix for the embedding and the output."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix = nn.Embedding(11, 8), nn.Linear(8, 8)
        self.out = nn.Linear(8, 11, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.mix(self.embed(tokens))))


class Heads(nn.Module):
    """A nest of outputs, one of them not differentiable and one a number."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.left, self.right = nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        h = torch.tanh(self.trunk(x))
        left = self.left(h)
        return {"both": (left, self.right(h)), "best": left.argmax(1), "features": 8}


class InPlace(nn.Module):
    """Writes into a tensor and into views of it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        h += 1
        h[:, :4] *= 2
        h[:, 4:].tanh_()
        return self.last(h)


class Counting(nn.Module):
    """A counter and a running mean, read and changed by each call."""

    calls: torch.Tensor
    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.layer(x)
        self.calls += 1
        self.mean.mul_(0.9).add_(h.detach().mean(0), alpha=0.1)
        return (h - self.mean) * self.calls


class Frozen(nn.Module):
    """A frozen layer, a part without gradients, and a trained head."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.side, self.head = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 3)
        self.base.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            side = self.side(x)
        return self.head(torch.tanh(self.base(x)) * side)


def mlp(dtype: torch.dtype | None = None) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).to(dtype=dtype)


def dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))


def _attention() -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)


def _rows(*features: int) -> Callable[[int, torch.Generator], torch.Tensor]:
    return lambda rows, draw: torch.randn(rows, *features, generator=draw, dtype=torch.float64)


def _tokens(rows: int, draw: torch.Generator) -> torch.Tensor:
    return torch.randint(0, 11, (rows, 7), generator=draw)


@dataclass(frozen=True)
class Case:
    """A model in double precision and its inputs: `draw(rows, generator)` is one batch."""

    make: Callable[[], nn.Module]
    draw: Callable[[int, torch.Generator], torch.Tensor]

    def model(self) -> nn.Module:
        """Return the model, with the same weights each time."""
        torch.manual_seed(0)
        return self.make().double()

    def batches(self, rows: Sequence[int]) -> list[torch.Tensor]:
        """Return a batch of each number of rows."""
        draw = torch.Generator().manual_seed(7)
        return [self.draw(n, draw) for n in rows]


MODELS = {
    "mlp": Case(mlp, _rows(6)),
    "dropout": Case(dropout, _rows(6)),
    "convolutions": Case(Convolutions, _rows(3, 6, 6)),
    "attention": Case(_attention, _rows(5, 8)),
    "recurrent": Case(Recurrent, _rows(5, 6)),
    "branches": Case(Branches, _rows(6)),
    "tied": Case(Tied, _tokens),
    "heads": Case(Heads, _rows(6)),
    "in_place": Case(InPlace, _rows(6)),
    "counting": Case(Counting, _rows(6)),
    "frozen": Case(Frozen, _rows(6)),
}


def loss(output: Any) -> torch.Tensor:
    """Return a scalar that depends on all floating-point outputs."""
    tensors = [item for item in pytree.tree_leaves(output) if isinstance(item, torch.Tensor)]
    return sum((item.square().mean() for item in tensors if item.is_floating_point()), torch.zeros(()))


def optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """Return an optimizer with state."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.SGD(trained, lr=0.1, momentum=0.9)


def infer(call: Callable[..., Any], batches: Sequence[torch.Tensor]) -> list[Any]:
    """Return the outputs for each batch, without gradients."""
    torch.manual_seed(1)
    with torch.no_grad():
        return [copy.deepcopy(call(x)) for x in batches]


def train(call: Callable[..., Any], model: nn.Module, batches: Sequence[torch.Tensor]) -> list[Any]:
    """Return the loss and gradients of each step of a user's own loop, and the state afterwards."""
    torch.manual_seed(1)
    steps, results = optimizer(model), []
    for x in batches:
        steps.zero_grad()
        value = loss(call(x))
        value.backward()
        results += [value.detach(), [None if p.grad is None else p.grad.clone() for p in model.parameters()]]
        steps.step()
    return [*results, model.state_dict()]


def eager_step(
    model: Callable[..., Any], criterion: Callable[..., torch.Tensor], optimizer: torch.optim.Optimizer, *batch: Any
) -> torch.Tensor:  # fmt: skip
    """Return the loss of one step of the plain loop, for a batch of inputs and targets."""
    optimizer.zero_grad()
    value = criterion(model(batch[0]), batch[1])
    value.backward()
    optimizer.step()
    return value.detach()


def steps(step: Callable[..., torch.Tensor], model: nn.Module, batches: Sequence[torch.Tensor]) -> list[Any]:
    """Return the loss of each whole step, and the state afterwards."""
    torch.manual_seed(1)
    return [*(step(x) for x in batches), model.state_dict()]


def assert_same(ours: Any, eager: Any, *, exact: bool = False) -> None:
    """Fail unless two nests have the same structure and tensors that are equal, to rounding unless `exact`."""
    some, form = pytree.tree_flatten(ours)
    others, other_form = pytree.tree_flatten(eager)
    assert form == other_form
    for one, other in zip(some, others, strict=True):
        if isinstance(other, torch.Tensor):
            near = 0.0 if exact else 1e-11
            torch.testing.assert_close(one, other, rtol=near, atol=near, check_stride=False)
        else:
            assert type(one) is type(other) and one == other


def alike(model: nn.Module, twin: nn.Module, most: float = 1e-5) -> bool:
    """Return True if the gradients of two models are equal within rounding, or None for the same parameters."""
    pairs = zip(model.parameters(), twin.parameters(), strict=True)
    return all(error(mine.grad, plain.grad) <= most for mine, plain in pairs)
