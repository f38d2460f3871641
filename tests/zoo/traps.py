"""Small models of our own, each with one thing that captures, planners and runtimes are known to get wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from .entry import REGISTRY, Call, Entry, add, noise, tokens

FIRST = len(REGISTRY)


class Does(nn.Module):
    """A module whose forward is `body(self, *args, **kwargs)`; keyword arguments become parts of it."""

    def __init__(self, body: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.body = body
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.body(self, *args, **kwargs)


def trap(name: str, *args: Any, call: dict[str, Any] | None = None, **options: Any) -> Callable[..., Any]:
    """Decorate a maker of a model (or of a plain function); it is called with fresh copies of `args` and `call`."""

    def register(make: Callable[[], Any]) -> Callable[[], Any]:
        def built() -> Call:
            def fresh(value: Any) -> Any:
                return value.clone() if isinstance(value, Tensor) else value

            tree = torch.utils._pytree.tree_map(fresh, (args, call or {}))
            return make(), tree[0], tree[1]

        add(name, "trap", built, **options)
        return make

    return register


X = noise(4, 6)


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


@trap("output aliases the input", X)
def _() -> nn.Module:
    return Does(lambda m, x: (x, x.view(-1), x.t(), x + 1))


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


@trap("transformer encoder layer (fast path in eval)", noise(2, 5, 8))
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


# Arguments and answers.


def _attend(
    m: nn.Module, x: Tensor, mask: Tensor | None = None, scale: float = 1.0, mode: str = "sum"
) -> Tensor:
    score = x @ x.t() * scale
    if mask is not None:
        score = score.masked_fill(mask, float("-inf"))
    return score.softmax(-1) @ m.linear(x) if mode == "sum" else score


@trap("mask=None", X, call={"mask": None}, quick=True)
def _() -> nn.Module:
    return Does(_attend, linear=nn.Linear(6, 6))


@trap("keyword arguments out of order", call={"mode": "sum", "mask": torch.eye(4) == 0, "scale": 0.5, "x": X})
def _() -> nn.Module:
    return Does(_attend, linear=nn.Linear(6, 6))


class Answer(NamedTuple):
    left: Tensor
    rest: Any


@trap("nested outputs", X, quick=True)
def _() -> nn.Module:
    return Does(lambda m, x: {"b": [x + 1, (x * 2, {"c": x.sum()})], "a": Answer(x - 1, None)})


@trap("outputs that are no tensors", X)
def _() -> nn.Module:
    return Does(lambda m, x: (x.relu(), 3, "text", None, True, 2.5, x.shape[0], x.dtype))


@trap("nothing but constants", X)
def _() -> nn.Module:
    return Does(lambda m, x: None)


@trap("nested inputs", {"a": [X, X + 1], "b": (X * 2,)}, 3)
def _() -> nn.Module:
    return Does(lambda m, tree, k: tree["a"][0] * k + tree["a"][1] - tree["b"][0])


@trap("input that nothing reads", X, X)
def _() -> nn.Module:
    return Does(lambda m, x, unused: x + 1)


@trap("scalar outputs", X)
def _() -> nn.Module:
    return Does(lambda m, x: (x.mean(), x.var(), x.argmax(), (x > 0).any()))


@trap("no batch at all", noise(0, 6), quick=True)
def _() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.LayerNorm(5), nn.Linear(5, 2))


@trap("batch of one", noise(1, 6))
def _() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.LayerNorm(5), nn.Linear(5, 2))


@trap("NaN and infinity", torch.tensor([-1.0, 0.0, 1.0, float("inf"), float("nan")]), quick=True)
def _() -> nn.Module:
    return Does(lambda m, x: (x.log(), x.sqrt(), 1 / x, x.nan_to_num()))


# Number formats.


@trap("float16", X.half())
def _() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3)).half()


@trap("bfloat16", X.bfloat16())
def _() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3)).bfloat16()


@trap("float64", X.double())
def _() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()


@trap("complex numbers", X)
def _() -> nn.Module:
    return Does(lambda m, x: (torch.fft.rfft(x) * m.gain, torch.fft.irfft(torch.fft.rfft(x)), torch.view_as_real(torch.fft.fft(x)).sum()),
                gain=nn.Parameter(torch.randn(4, dtype=torch.complex64)))  # fmt: skip


@trap("integers and booleans", tokens(4, 6), tokens(4, 6, seed=2))
def _() -> nn.Module:
    return Does(
        lambda m, a, b: (
            a // b,
            a % b,
            a & b,
            a << 1,
            (a > b).sum(-1),
            a.to(torch.uint8) + 250,
            (a > b) ^ (b > 9),
        )
    )


# Operators with many outputs or a kernel of their own.


@trap("LSTM", noise(2, 5, 6), quick=True)
def _() -> nn.Module:
    return nn.LSTM(6, 8, num_layers=2, bidirectional=True, batch_first=True)


@trap("GRU and RNN", noise(2, 5, 6))
def _() -> nn.Module:
    def body(m: nn.Module, x: Tensor) -> Any:
        y, h = m.gru(x)
        return m.rnn(y)[0], h

    return Does(body, gru=nn.GRU(6, 8, batch_first=True), rnn=nn.RNN(8, 4, batch_first=True))


@trap("embedding bag", tokens(1, 12, vocabulary=16).flatten(), torch.tensor([0, 4, 4, 9]))
def _() -> nn.Module:
    return nn.EmbeddingBag(16, 5, mode="mean")


@trap("multi-head attention with its weights", noise(5, 2, 8), noise(7, 2, 8, seed=2))
def _() -> nn.Module:
    return Does(lambda m, q, k: m.attention(q, k, k), attention=nn.MultiheadAttention(8, 2))


@trap("top-k, sort, split, chunk, unbind, einsum", X)
def _() -> nn.Module:
    def body(m: nn.Module, x: Tensor) -> Any:
        values, places = x.topk(3)
        first, second = x.split([2, 4], 1)
        rows = x.unbind()
        return (
            values,
            places,
            x.sort(stable=True, dim=-1),
            first.sum() + rows[2],
            x.chunk(3, 1)[1],
            torch.einsum("ij,kj->ik", x, second @ second.t() @ x),
        )

    return Does(body)


@trap("pixel shuffle, interpolation, padding, pooling with indices", noise(2, 4, 6, 6))
def _() -> nn.Module:
    def body(m: nn.Module, x: Tensor) -> Any:
        y, places = functional.max_pool2d(x, 2, return_indices=True)
        back = functional.max_unpool2d(y, places, 2)
        return functional.interpolate(
            functional.pixel_shuffle(back, 2), scale_factor=1.5, mode="bilinear"
        ), functional.pad(y, (1, 2, 0, 1), "reflect")

    return Does(body)


@trap("chain of 400 tiny tasks", X)
def _() -> nn.Module:
    def body(m: nn.Module, x: Tensor) -> Tensor:
        for step in range(400):
            x = x * 1.01 if step % 2 else x - 0.01
        return x

    return Does(body)


# Functions, and what needs a value to go on.


@trap("plain function of tensors", X, noise(6, 3), quick=True)
def _() -> Callable[..., Any]:
    return lambda a, b: (a @ b, [a.sum()])


@trap("closure over a module", X)
def _() -> Callable[..., Any]:
    linear = nn.Linear(6, 6)
    return lambda x: linear(x) + 1


@trap("branch on .item()", X)
def _() -> nn.Module:
    return Does(
        lambda m, x: m.linear(x) * 2 if x.sum().item() > 0 else m.linear(x) - 1, linear=nn.Linear(6, 6)
    )


@trap("shape that depends on values", X)
def _() -> nn.Module:
    return Does(lambda m, x: (x[x > 0] * 2, m.linear(x)[x[:, 0] > 0].sum(0)), linear=nn.Linear(6, 6))


@trap("torch.cond", X)
def _() -> nn.Module:
    return Does(lambda m, x: torch.cond(x.sum() > 0, lambda y: y * 2, lambda y: y - 1, (x,)))


TRAPS: tuple[Entry, ...] = tuple(list(REGISTRY.values())[FIRST:])
