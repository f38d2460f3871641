"""Small models for the tests of capture: one thing each that tracing gets wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """A model and how it is called."""

    name: str
    make: Callable[[], Call]


class Does(nn.Module):
    """A module whose forward is a function of itself and the arguments."""

    def __init__(self, body: Callable[..., Any], **children: Any) -> None:
        super().__init__()
        self.body = body
        for name, child in children.items():
            if isinstance(child, torch.Tensor) and not isinstance(child, nn.Parameter):
                self.register_buffer(name, child)
            else:
                setattr(self, name, child)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.body(self, *args, **kwargs)


def x() -> torch.Tensor:
    return torch.randn(6, 4)


def mlp() -> Call:
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3)), (x(),), {}


def convolution() -> Call:
    layers = (nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Dropout2d(), nn.Flatten())
    return nn.Sequential(*layers), (torch.randn(2, 3, 6, 6),), {}


def nested() -> Call:
    def body(m: nn.Module, x: torch.Tensor, scale: float, mask: Any = None, dtype: Any = None) -> Any:
        return {"a": (m.linear(x) * scale, [None, 3, x.shape]), "b": (mask, dtype), "c": x.to(dtype).max(-1)}

    return Does(body, linear=nn.Linear(4, 4)), (x(), 0.5), {"mask": None, "dtype": torch.float64}


def in_place() -> Call:
    def body(m: nn.Module, x: torch.Tensor) -> Any:
        y = m.linear(x)
        row = y[:, 0]
        row += 1
        y[1:].mul_(2)
        y[0] = 7.0
        return y, row

    return Does(body, linear=nn.Linear(4, 4)), (x(),), {}


def mutated() -> Call:
    def body(m: nn.Module, x: torch.Tensor) -> Any:
        x.add_(m.total)
        m.total.add_(x.sum(0))
        m.total, m.other = m.other, m.total
        return x, m.total

    return Does(body, total=torch.zeros(4), other=torch.ones(4)), (x(),), {}


def regions() -> Call:
    def body(m: nn.Module, x: torch.Tensor) -> Any:
        with torch.no_grad():
            y = m.linear(x).relu_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            z = m.linear(y)
        return y, z, torch.zeros(3, device=x.device) + torch.arange(3, device="cpu"), x.to("cpu").t()

    return Does(body, linear=nn.Linear(4, 4)), (x(),), {}


def random() -> Call:
    def body(m: nn.Module, x: torch.Tensor) -> Any:
        torch.rand(3)
        a = F.dropout(x, 0.5) + torch.randn(4)
        b = F.dropout(a, 0.5, training=False) + torch.rand_like(x)
        return b, torch.multinomial(x.abs(), 2), torch.bernoulli(x.sigmoid()), torch.randint(9, (2,))

    return Does(body), (x(),), {}


def recurrent() -> Call:
    return nn.LSTM(4, 4, num_layers=2, dropout=0.5, batch_first=True), (torch.randn(2, 3, 4),), {}


def attention() -> Call:
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (torch.randn(2, 3, 8),), {}


def embedding() -> Call:
    def body(m: nn.Module, ids: torch.Tensor) -> Any:
        return m.out(m.table(ids)), m.table.weight

    table = nn.Embedding(9, 4)
    out = nn.Linear(4, 9, bias=False)
    out.weight = table.weight
    return Does(body, table=table, out=out), (torch.randint(0, 9, (2, 5)),), {}


def shared_argument() -> Call:
    same = x()
    return Does(lambda m, a, b: a.add_(1) * b), (same, same), {}


def constants() -> Call:
    model = Does(lambda m, x: x * torch.tensor([1.0, 2, 3, 4]) + m.plain)
    model.plain = torch.ones(4)
    return model, (x(),), {}


def complex_numbers() -> Call:
    return Does(lambda m, x: (torch.fft.rfft(x), (x + 1j).abs(), x.bool(), x.long() // 2)), (x(),), {}


def empty() -> Call:
    return nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), (torch.randn(0, 4),), {}


CASES = (
    Case("mlp", mlp),
    Case("convolution, batch norm in training", convolution),
    Case("nested outputs, constants of the signature", nested),
    Case("in place", in_place),
    Case("mutated input, buffers that change places", mutated),
    Case("no_grad and autocast regions, device arguments", regions),
    Case("random", random),
    Case("lstm with dropout", recurrent),
    Case("attention in training", attention),
    Case("tied embedding, a parameter returned", embedding),
    Case("one tensor as two arguments", shared_argument),
    Case("constant tensors", constants),
    Case("complex, integer, boolean", complex_numbers),
    Case("empty batch", empty),
)
