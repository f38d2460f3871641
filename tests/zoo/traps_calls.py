"""Traps of arguments, answers, number formats, operators with kernels of their own, and control flow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from .entry import noise, tokens
from .trap import Does, trap

X = noise(4, 6)


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


@trap("nothing but constants", X, written="no graph")
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


@trap("tensors where only numbers were before", X, 2, call={"power": 1.5, "dtype": torch.float64})
def _() -> Callable[..., Any]:
    return lambda x, k, power, dtype: (x.abs() ** power * k).to(dtype)


@trap("an output of requires_grad input", X.clone().requires_grad_())
def _() -> nn.Module:
    return Does(lambda m, x: (x * 2, x.detach() + 1))


@trap("a dozen inputs and outputs", *[noise(3, 3, seed=i) for i in range(12)])
def _() -> Callable[..., Any]:
    return lambda *xs: tuple(a @ b for a, b in zip(xs, (*xs[1:], xs[0])))


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
    def body(m: nn.Module, x: Tensor) -> Any:
        turned = torch.fft.rfft(x)
        return turned * m.gain, torch.fft.irfft(turned), torch.view_as_real(torch.fft.fft(x)).sum()

    return Does(body, gain=nn.Parameter(torch.randn(4, dtype=torch.complex64)))


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


@trap("conversions between devices and dtypes in the forward", X)
def _() -> nn.Module:
    def body(m: nn.Module, x: Tensor) -> Tensor:
        mask = torch.ones(4, 4, dtype=torch.bool, device=x.device).tril()
        y = x.to("cpu").half().to(x) + torch.full_like(x, 0.5) + torch.zeros(6, device="cpu")
        return (y @ y.t()).masked_fill(~mask, float("-inf")).softmax(-1)

    return Does(body)


@trap("tensor compared with None, shapes in arithmetic", X)
def _() -> nn.Module:
    def body(m: nn.Module, x: Tensor) -> Tensor:
        rows, columns = x.shape
        y = x.view(rows * 2, columns // 2) / rows
        return y if x.dim() == 2 and x.is_floating_point() and len(x) > 3 else x

    return Does(body)


@trap("plain function of tensors", X, noise(6, 3), quick=True)
def _() -> Callable[..., Any]:
    return lambda a, b: (a @ b, [a.sum()])


@trap("closure over a module", X)
def _() -> Callable[..., Any]:
    linear = nn.Linear(6, 6)
    return lambda x: linear(x) + 1


@trap("branch on .item()", X, graphs=2)
def _() -> nn.Module:
    return Does(
        lambda m, x: m.linear(x) * 2 if x.sum().item() > 0 else m.linear(x) - 1, linear=nn.Linear(6, 6)
    )


@trap("shape that depends on values", X, graphs=3)
def _() -> nn.Module:
    return Does(lambda m, x: (x[x > 0] * 2, m.linear(x)[x[:, 0] > 0].sum(0)), linear=nn.Linear(6, 6))


@trap("packed sequence", noise(3, 5, 6), torch.tensor([5, 3, 2]), written="no graph")
def _() -> nn.Module:
    def body(m: nn.Module, x: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        return nn.utils.rnn.pad_packed_sequence(m.lstm(packed)[0], batch_first=True)[0]

    return Does(body, lstm=nn.LSTM(6, 4, batch_first=True))


@trap("numpy in the forward", X)
def _() -> nn.Module:
    return Does(lambda m, x: m.linear(torch.from_numpy(x.numpy() * 2)), linear=nn.Linear(6, 6))


@trap("loop until a value is small", X, graphs=2)
def _() -> nn.Module:
    def body(m: nn.Module, x: Tensor) -> Tensor:
        while x.abs().max() > 0.1:
            x = m.linear(x) / 4
        return x

    return Does(body, linear=nn.Linear(6, 6))


@trap("samples by weight", X, random=True)
def _() -> nn.Module:
    def body(m: nn.Module, x: Tensor) -> Any:
        picked = torch.multinomial(x.softmax(-1), 2)
        return (
            picked,
            functional.gumbel_softmax(x),
            torch.normal(x, 1.0),
            x.clone().uniform_(),
            x.clone().exponential_(),
        )

    return Does(body)


@trap("torch.cond", X, written="no graph of tensors holds|no plain tensor form")
def _() -> nn.Module:
    return Does(lambda m, x: torch.cond(x.sum() > 0, lambda y: y * 2, lambda y: y - 1, (x,)))
