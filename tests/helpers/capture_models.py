"""Small models that tracing gets wrong, one thing each, as (model, args, kwargs)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


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
    m = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))
    return Does(lambda s, x, t: F.cross_entropy(s.m(x), t), m=m), (x(), torch.randint(0, 3, (6,))), {}


def convolutions() -> Call:
    norms = (nn.GroupNorm(2, 4), nn.InstanceNorm2d(4, affine=True))
    layers = (nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2), *norms)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(36, 3)), (torch.randn(2, 3, 8, 8),), {}


def norm_in_eval() -> Call:
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval(), (x(),), {}


def tied() -> Call:
    table, out = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)
    out.weight = table.weight
    ids = torch.randint(0, 9, (2, 5))

    def body(m: Any, ids: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(m.out(m.table(ids)).flatten(0, 1), ids.flatten())

    return Does(body, table=table, out=out), (ids,), {}


def transformer() -> Call:
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (torch.randn(2, 3, 8),), {}


def recurrent() -> Call:
    return nn.LSTM(4, 5, 2, dropout=0.4, batch_first=True), (torch.randn(2, 3, 4, requires_grad=True),), {}


def bag() -> Call:
    return nn.EmbeddingBag(9, 4, mode="mean"), (torch.randint(0, 9, (2, 5)),), {}


def shared() -> Call:
    linear = nn.Linear(4, 4)
    return nn.Sequential(linear, nn.Tanh(), linear), (x(),), {}


def frozen() -> Call:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    return model, (x(),), {}


def input_that_requires_grad() -> Call:
    return nn.Linear(4, 4), (x().requires_grad_(),), {}


def half() -> Call:
    return nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.GELU()).bfloat16(), (x().bfloat16(),), {}


def double() -> Call:
    return nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.GELU()).double(), (x().double(),), {}


def closure() -> Call:
    linear, other = nn.Linear(4, 4), nn.Linear(4, 4)
    return (lambda x, module: F.relu(linear(x) * module(x)).sum()), (x(), other), {}


def nested() -> Call:
    def body(m: Any, d: Any) -> Any:
        return {"a": m.linear(d["x"]), "b": (d["x"].argmax(), 3, None), "c": m.linear(d["x"]).detach()}

    return Does(body, linear=nn.Linear(4, 4)), ({"x": x()},), {}


def unused() -> Call:
    children = {"linear": nn.Linear(4, 4), "idle": nn.Linear(4, 4), "cut": nn.Linear(4, 4)}
    return Does(lambda m, x: (m.linear(x).sum(), m.cut(x).detach().argmax(-1)), **children), (x(),), {}


def no_grad() -> Call:
    def body(m: Any, x: torch.Tensor) -> Any:
        with torch.no_grad():
            y = m.linear(x)
            with torch.enable_grad():
                z = m.linear(x)
        return m.linear(x) * y + z

    return Does(body, linear=nn.Linear(4, 4)), (x(),), {}


def in_place() -> Call:
    def body(m: Any, x: torch.Tensor) -> Any:
        h = m.linear(x)
        h.add_(1)
        h[:, 0] = 2
        h.mul_(m.linear.bias)
        m.count.mul_(0.9).add_(h.detach().mean(0))
        return h

    return Does(body, linear=nn.Linear(4, 4), count=torch.zeros(4)), (x(),), {}


def parametrized() -> Call:
    weight, orthogonal = nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.orthogonal
    return nn.Sequential(weight(nn.Linear(4, 4)), orthogonal(nn.Linear(4, 4))), (x(),), {}


def checkpointed() -> Call:
    from torch.utils.checkpoint import checkpoint

    m = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Linear(4, 4))
    return Does(lambda s, x: checkpoint(s.m, x, use_reentrant=False), m=m), (x(),), {}


def penalty() -> Call:
    def body(m: Any, x: torch.Tensor) -> Any:
        y = m.linear(x).tanh().sum()
        (kept,) = torch.autograd.grad(y, m.linear.weight, create_graph=True)
        (constant,) = torch.autograd.grad(y, m.linear.weight, retain_graph=True)
        return y + kept.norm() + (constant * m.linear.weight).sum()

    return Does(body, linear=nn.Linear(4, 4)), (x(),), {}


TRAINED = (
    mlp, convolutions, norm_in_eval, tied, transformer, recurrent, bag, shared, frozen, input_that_requires_grad, half,
    double, closure, nested, unused, no_grad, in_place, parametrized, checkpointed, penalty,
)  # fmt: skip
"""Models with gradients."""


def constants_of_the_signature() -> Call:
    def body(m: nn.Module, x: torch.Tensor, scale: float, mask: Any = None, dtype: Any = None) -> Any:
        return {"a": (m.linear(x) * scale, [None, 3, x.shape]), "b": (mask, dtype), "c": x.to(dtype).max(-1)}

    return Does(body, linear=nn.Linear(4, 4)), (x(), 0.5), {"mask": None, "dtype": torch.float64}


def rows_in_place() -> Call:
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


CALLS = (
    *(make for make in TRAINED if make is not penalty), constants_of_the_signature, rows_in_place, mutated, regions,
    random, shared_argument, constants, complex_numbers, empty,
)  # fmt: skip
