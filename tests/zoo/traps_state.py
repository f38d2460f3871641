"""Traps of state, mutation, aliasing, training mode and randomness."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .entry import noise, tokens
from .trap import Does, trap

X = noise(4, 6)


def _halves() -> tuple[Tensor, Tensor]:
    whole = noise(4, 6)
    return whole, whole[:2]


# State.


@trap("tied weights", tokens(vocabulary=16), quick=True)
def _() -> nn.Module:
    table, head = nn.Embedding(16, 8), nn.Linear(8, 16, bias=False)
    head.weight = table.weight
    return Does(lambda m, ids: m.head(m.table(ids).relu()), table=table, head=head)


@trap("buffer that counts calls", X, quick=True)
def _() -> nn.Module:
    model = Does(lambda m, x: x + m.count.add_(1), unused=nn.Linear(2, 2))
    model.register_buffer("count", torch.zeros(()))
    return model


@trap("buffer outside the state_dict", X)
def _() -> nn.Module:
    def body(m: nn.Module, x: Tensor) -> Tensor:
        m.last.copy_(x.sum(0))
        return x * m.last

    model = Does(body)
    model.register_buffer("last", torch.zeros(6), persistent=False)
    return model


@trap("buffer replaced by assignment", X)
def _() -> nn.Module:
    def body(m: nn.Module, x: Tensor) -> Tensor:
        m.mean = 0.9 * m.mean + 0.1 * x.mean(0)
        return x - m.mean

    model = Does(body)
    model.register_buffer("mean", torch.zeros(6))
    return model


@trap("bare parameter, and one of no dimensions", X)
def _() -> nn.Module:
    return Does(
        lambda m, x: x * m.gain + m.shift,
        gain=nn.Parameter(torch.ones(6)),
        shift=nn.Parameter(torch.tensor(2.0)),
    )


@trap("parameter handed out as an output", X)
def _() -> nn.Module:
    return Does(lambda m, x: (m.gain, x * m.gain), gain=nn.Parameter(torch.ones(6)))


@trap("one module list twice", X)
def _() -> nn.Module:
    blocks = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)])
    run = nn.Sequential(*blocks)
    return Does(
        lambda m, x: m.second(m.first(x)) + m.run(x), first=blocks[0], second=blocks[1], run=run, again=blocks
    )


@trap("weight norm (parametrized)", X)
def _() -> nn.Module:
    return nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(6, 6)), nn.ReLU())


@trap("constant made in the forward", X)
def _() -> nn.Module:
    return Does(lambda m, x: x * torch.tensor([1.0, 2, 3, 4, 5, 6]) + torch.arange(6, device=x.device))


@trap("state that nothing reads, and a frozen parameter", X)
def _() -> nn.Module:
    frozen = nn.Parameter(torch.ones(6), requires_grad=False)
    return Does(
        lambda m, x: x * m.frozen, frozen=frozen, unused=nn.LSTM(4, 4), spare=nn.Parameter(torch.ones(3))
    )


@trap("parameters in lists and dicts", X)
def _() -> nn.Module:
    gains = nn.ParameterList([torch.ones(6), torch.full((6,), 2.0)])
    shifts = nn.ParameterDict({"a": torch.ones(6), "b": torch.zeros(6)})
    return Does(
        lambda m, x: sum(x * g for g in m.gains) + m.shifts["a"] - m.shifts["b"], gains=gains, shifts=shifts
    )


@trap("spectral norm in training (buffers iterate)", X, train=True)
def _() -> nn.Module:
    return nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6)), nn.ReLU())


@trap("BatchNorm with cumulative statistics in training", X, train=True, written="no graph")
def _() -> nn.Module:
    return nn.BatchNorm1d(6, momentum=None)


@trap("counter that is a Python number", X, graphs=2)
def _() -> nn.Module:
    def body(m: nn.Module, x: Tensor) -> Tensor:
        m.calls += 1
        return x * m.calls

    return Does(body, calls=0)


@trap("cache kept as an attribute", X, graphs=2)
def _() -> nn.Module:
    def body(m: nn.Module, x: Tensor) -> Tensor:
        answer = x if m.cache is None else x + m.cache
        m.cache = answer.relu()
        return answer

    return Does(body, cache=None)


# Mutation and aliasing.


@trap("in-place ops", X, quick=True)
def _() -> nn.Module:
    def body(m: nn.Module, x: Tensor) -> Tensor:
        y = m.linear(x)
        z = y * 2
        y.add_(1).mul_(z)
        y += 1
        y[0] = 7
        return y - z

    return Does(body, linear=nn.Linear(6, 6))


@trap("write through a view", X)
def _() -> nn.Module:
    def body(m: nn.Module, x: Tensor) -> Tensor:
        y = x * 1
        left = y[:, :2]
        row = y.view(-1)
        y += 1
        left.zero_()
        row[3:5] = 9
        return left.sum() + y

    return Does(body)


@trap("in-place activation read by a neighbour", X)
def _() -> nn.Module:
    def body(m: nn.Module, x: Tensor) -> Tensor:
        h = m.linear(x)
        y = m.relu(h)
        return h.sum() + y

    return Does(body, linear=nn.Linear(6, 6), relu=nn.ReLU(inplace=True))


@trap("input mutated", X, quick=True)
def _() -> nn.Module:
    return Does(lambda m, x: x.mul_(2) + 1)


@trap("input mutated through a view and returned", X)
def _() -> nn.Module:
    def body(m: nn.Module, x: Tensor) -> Tensor:
        x[1:3, ::2].add_(5)
        return x

    return Does(body)


@trap("one tensor as two inputs, mutated", X, X + 1)
def _() -> Callable[..., Any]:
    def body(a: Tensor, b: Tensor) -> Tensor:
        left, right = a[:2], a[2:]
        left.add_(1)
        b.copy_(a)
        right.mul_(b[2:])
        return a + b

    return body


@trap("inputs that share memory, one mutated", *_halves(), written="shares its memory")
def _() -> Callable[..., Any]:
    def body(whole: Tensor, half: Tensor) -> Tensor:
        half.add_(10)
        return whole * 2

    return body


@trap("output aliases the input", X)
def _() -> nn.Module:
    return Does(lambda m, x: (x, x.view(-1), x.t(), x + 1))


@trap("operators that hand their argument on", X)
def _() -> nn.Module:
    def body(m: nn.Module, x: Tensor) -> Any:
        y, z = x * 2, x * 3
        rows, columns = torch.meshgrid(y[0] * 2, y[1] * 2, indexing="ij")
        turned = torch.einsum("ij->ji", z * 2)
        kept = functional.dropout(
            (y + z).type_as(x).to(x.dtype).contiguous().conj_physical(), 0.5, training=False
        )
        return (rows * columns).sum() + turned @ (kept * 2).sum_to_size(4, 6) + torch.atleast_2d(y + 1).sum()

    return Does(body)


@trap("outputs alias each other", X)
def _() -> nn.Module:
    def body(m: nn.Module, x: Tensor) -> Any:
        y = m.linear(x)
        return y, y, y[1:], y.expand(2, 4, 6)

    return Does(body, linear=nn.Linear(6, 6))


@trap("expanded and transposed intermediates", X)
def _() -> nn.Module:
    def body(m: nn.Module, x: Tensor) -> Tensor:
        wide = x.unsqueeze(0).expand(3, 4, 6)
        return (wide.transpose(1, 2).reshape(3, -1) @ m.weight).view(3, 2, 2).permute(2, 0, 1).flatten()

    return Does(body, weight=nn.Parameter(noise(24, 4)))


@trap("input not contiguous", noise(2, 8, 8, 3).permute(0, 3, 1, 2))
def _() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(144, 5)
    )


@trap("scatter, index_put and masked fill in place", X)
def _() -> nn.Module:
    def body(m: nn.Module, x: Tensor) -> Tensor:
        y = torch.zeros(4, 6)
        y.scatter_(1, torch.tensor([[0, 2], [1, 3], [4, 5], [0, 1]]), x[:, :2].contiguous())
        y[torch.tensor([0, 2]), torch.tensor([5, 5])] = 3.0
        return y.masked_fill_(x > 1, -1.0) + x

    return Does(body)


# Training mode and randomness.


@trap("dropout in training", X, train=True, random=True, quick=True)
def _() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 32), nn.Dropout(0.5), nn.Linear(32, 32), nn.Dropout(0.2))


@trap("random draws of several kinds", X, random=True)
def _() -> nn.Module:
    def body(m: nn.Module, x: Tensor) -> Tensor:
        return torch.rand(4, 6) + torch.randn_like(x) * torch.bernoulli(x.sigmoid()) + torch.randperm(6)

    return Does(body)


@trap("BatchNorm in training", noise(4, 3, 5, 5), train=True, quick=True)
def _() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)
    )


@trap("one BatchNorm used twice in training", X, train=True)
def _() -> nn.Module:
    return Does(lambda m, x: m.norm(m.norm(x) * 2 + 1), norm=nn.BatchNorm1d(6))


@trap("attention with dropout in training", noise(2, 5, 8), train=True, random=True)
def _() -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)


@trap(
    "transformer encoder layer (fast path in eval)", noise(2, 5, 8),
    loose="in eval eager takes a fused kernel that no trace takes",
)  # fmt: skip
def _() -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)


@trap("region without grad", X)
def _() -> nn.Module:
    def body(m: nn.Module, x: Tensor) -> Tensor:
        with torch.no_grad():
            y = m.linear(x)
        with torch.enable_grad():
            z = m.linear(y)
        return y + z

    return Does(body, linear=nn.Linear(6, 6))


@trap("region under autocast", X)
def _() -> nn.Module:
    def body(m: nn.Module, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = m.linear(x)
        return y.float() + m.linear(x)

    return Does(body, linear=nn.Linear(6, 6))


@trap("checkpointed block", X)
def _() -> nn.Module:
    def body(m: nn.Module, x: Tensor) -> Tensor:
        return torch.utils.checkpoint.checkpoint(m.linear, x, use_reentrant=False) + 1

    return Does(body, linear=nn.Linear(6, 6))


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 7


@trap("autograd.Function", X)
def _() -> nn.Module:
    return Does(lambda m, x: Double.apply(m.linear(x)), linear=nn.Linear(6, 6))


@trap("forward hooks", X)
def _() -> nn.Module:
    linear = nn.Linear(6, 6)
    linear.register_forward_hook(lambda module, args, output: output + 1)
    linear.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    return Does(lambda m, x: m.linear(x), linear=linear)
