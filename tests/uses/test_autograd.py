"""What forward asks of autograd by itself: functions with gradients of their own, gradients inside forward, hooks
of tensors, writes in place. Outputs, gradients and what is left behind are eager's, placed or run as written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from pairs import alike, compiled, gradients
from torch import nn
from torch.autograd import grad

pytestmark = pytest.mark.slow

Body = Callable[[Any, torch.Tensor], Any]


class Sevenfold(torch.autograd.Function):
    """A square whose gradient is wrong on purpose."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: float) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x * x

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return ctx.factor * gradients[0] * x, None


class Several(torch.autograd.Function):
    """Two tensors, of which one has no gradient, and a number."""

    @staticmethod
    def forward(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x + y, x * y, 3

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.mark_non_differentiable(output[0])

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        x, y = ctx.saved_tensors
        return 2 * gradients[1] * y, 3 * gradients[1] * x


class Reversed(torch.autograd.Function):
    """A view whose gradient has the other sign."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return -gradients[0]


class Named(torch.autograd.Function):
    """A product whose gradient is wrong on purpose, and whose factor has a default."""

    @staticmethod
    def forward(x: torch.Tensor, factor: float = 3) -> torch.Tensor:
        return x * factor

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.factor = inputs[1] if len(inputs) > 1 else 3

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return 7 * ctx.factor * gradients[0], None


def functions(m: Any, x: torch.Tensor) -> Any:
    h = Sevenfold.apply(m.linear(x), 7) + Reversed.apply(m.linear(x))
    total, product, number = Several.apply(h, m.linear.weight.sum())
    return total, product.sum() * number


def by_hand(m: Any, x: torch.Tensor) -> Any:
    return Named.forward(m.linear(x)) + Named.apply(m.linear(x), 5) + Named.apply(m.linear(x), 3)


def no_grad(m: Any, x: torch.Tensor) -> Any:
    with torch.no_grad():
        y = Sevenfold.apply(m.linear(x), 7)
    return y * m.linear(x)


def hooked(m: Any, x: torch.Tensor) -> Any:
    h = m.linear(x)
    early = h * 2
    h.register_hook(lambda g: g * 3)
    return early + h.relu()


def penalty(m: Any, x: torch.Tensor) -> Any:
    x = x.detach().requires_grad_()
    (slope,) = grad(m.linear(x).tanh().sum(), x, create_graph=True)
    return ((slope.norm(2, dim=1) - 1) ** 2).mean()


def constant_gradient(m: Any, x: torch.Tensor) -> Any:
    (slope,) = grad(m.linear(x).pow(2).sum(), m.linear.weight)
    return (slope * m.linear.weight).sum()


def physics(m: Any, x: torch.Tensor) -> Any:
    x = x.clone().requires_grad_()
    u = m.linear(x).tanh()
    (d,) = grad(u, x, torch.ones_like(u), create_graph=True)
    (dd,) = grad(d.sum(), x, create_graph=True)
    return (dd + u).pow(2).mean()


def mapped(m: Any, x: torch.Tensor) -> Any:
    return torch.func.vmap(m.linear)(x)


def keeps(m: Any, x: torch.Tensor) -> Any:
    h = m.linear(x)
    h.register_hook(m.kept.append)
    return h


def counts(m: Any, x: torch.Tensor) -> Any:
    def hook(g: torch.Tensor) -> torch.Tensor:
        m.kept.append(1)
        return g

    h = m.linear(x)
    h.register_hook(hook)
    return h


def reads(m: Any, x: torch.Tensor) -> Any:
    h = m.linear(x)
    mask = h > 0
    h.register_hook(lambda g: g * mask)
    return h


def removes(m: Any, x: torch.Tensor) -> Any:
    h = m.linear(x)
    h.register_hook(lambda g: g * 2).remove()
    return h


def on_a_node(m: Any, x: torch.Tensor) -> Any:
    h = m.linear(x)
    h.grad_fn.register_hook(lambda i, o: tuple(each * 2 if each is not None else None for each in i))
    return h


def packs(m: Any, x: torch.Tensor) -> Any:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t / 2):
        return m.linear(x).sin()


def reentrant(m: Any, x: torch.Tensor) -> Any:
    return torch.utils.checkpoint.checkpoint(m.linear, x * m.linear.bias, use_reentrant=True)


def writes_a_parameter(m: Any, x: torch.Tensor) -> Any:
    with torch.no_grad():
        m.linear.weight.clamp_(-0.2, 0.2)
    return m.linear(x)


def writes_a_buffer(m: Any, x: torch.Tensor) -> Any:
    m.total.copy_(m.linear(x).detach().mean(0))
    return m.linear(x) + m.total


def stores(m: Any, x: torch.Tensor) -> Any:
    m.last = m.linear(x)
    return m.last * 2


def branches(m: Any, x: torch.Tensor) -> Any:
    return m.linear(x) if x.sum() > 0 else m.linear(-x)


def views(m: Any, x: torch.Tensor) -> Any:
    h = m.linear(x)
    return h, h.t(), h[0], h.detach(), h, x, x.t(), m.linear.weight, m.linear.weight.t()


def conjugates(m: Any, x: torch.Tensor) -> Any:
    h = torch.fft.fft(m.linear(x))
    return h.conj(), torch.fft.fft(m.linear(x)).conj().imag, h, h.conj()[0], torch.fft.fft(x).mH


def grad_of_what_it_made(m: Any, x: torch.Tensor) -> Any:
    h = m.linear(x)
    h.retain_grad()
    m.last = h
    return h.sin()


class Model(nn.Module):
    """A linear layer, a buffer and a list, and the body of the forward."""

    def __init__(self, body: Body) -> None:
        super().__init__()
        self.body = body
        self.linear = nn.Linear(4, 4)
        self.after = nn.Linear(4, 4)
        self.total: torch.Tensor
        self.register_buffer("total", torch.zeros(4))
        self.last: torch.Tensor | None = None
        self.kept: list[Any] = []

    def forward(self, x: torch.Tensor) -> Any:
        made = self.body(self, self.after(x))
        return made


BODIES = (
    functions, by_hand, no_grad, hooked, penalty, constant_gradient, physics, mapped, keeps, counts, reads, removes,
    on_a_node, packs, reentrant, writes_a_parameter, writes_a_buffer, stores, branches, views, conjugates,
    grad_of_what_it_made,
)  # fmt: skip


def total(made: Any) -> torch.Tensor:
    """A number whose backward reaches all that was made."""
    ones = [made] if isinstance(made, torch.Tensor) else made
    return sum(((each * each).abs().sum() for each in ones if each.requires_grad), torch.zeros(()))


def pair(body: Body) -> tuple[Model, Any]:
    """A model, and a compiled one with the same weights."""
    torch.manual_seed(0)
    plain, one = Model(body), Model(body)
    one.load_state_dict(plain.state_dict())
    return plain, compiled(one)


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
@pytest.mark.filterwarnings("ignore")
def test_as_eager(body: Body):
    plain, fast = pair(body)
    for _ in range(2):
        x = torch.randn(3, 4)
        assert alike(plain(x), fast(x))
        x = torch.randn(3, 4)
        wanted = gradients(plain, lambda x=x: total(plain(x)))
        found = gradients(fast, lambda x=x: total(fast(x)))
        assert wanted.keys() == found.keys() and alike(wanted, found)
        assert alike(plain.state_dict(), fast.state_dict())
        assert alike(plain.kept, fast.kept)
        assert (plain.last is None) == (fast.last is None)
        if plain.last is not None:
            assert alike(plain.last, fast.last)
            assert (plain.last.grad is None) == (fast.last.grad is None)
    fast.close()


def accumulates(m: Any, x: torch.Tensor) -> Any:
    m.linear(x).sum().backward(retain_graph=True)
    return m.linear(x)


def test_a_backward_inside_forward():
    torch.manual_seed(0)
    plain, one = Model(accumulates), Model(accumulates)
    one.load_state_dict(plain.state_dict())
    fast, x = compiled(one), torch.randn(3, 4)
    for _ in range(3):
        assert alike(plain(x), fast(x))
        assert alike([p.grad for p in plain.parameters()], [p.grad for p in one.parameters()])


def slopes_of_rows(m: Any, x: torch.Tensor) -> Any:
    return torch.vmap(torch.func.grad(lambda row: m.linear(row).pow(2).sum()))(x)


def forward_mode(m: Any, x: torch.Tensor) -> Any:
    return torch.func.jvp(lambda each: m.linear(each).sin(), (x,), (x,))


def curvature(m: Any, x: torch.Tensor) -> Any:
    return torch.func.hessian(lambda each: m.linear(each).sin().sum())(x)


def with_a_history(m: Any, x: torch.Tensor) -> Any:
    y = m.linear(x)
    with torch.enable_grad():
        z = m.linear(y)
    return z * 2, z


def turned(m: Any, x: torch.Tensor) -> Any:
    return m.linear(x), m.linear.weight.t()


def physics_within(m: Any, x: torch.Tensor) -> Any:
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        u = m.linear(x).tanh()
        (d,) = grad(u.sum(), x)
    return u.detach(), d


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "body, placed",
    [
        (slopes_of_rows, True), (forward_mode, True), (curvature, True), (with_a_history, False),
        (turned, True), (physics_within, True),
    ],
    ids=lambda given: getattr(given, "__name__", ""),
)  # fmt: skip
def test_derivatives_inside_forward_of_a_call_without_gradients(body: Body, placed: bool):
    plain, fast = pair(body)
    for _ in range(2):
        x = torch.randn(3, 4)
        with torch.no_grad():
            assert alike(plain(x), fast(x))
    assert ("as written" not in fast.explain()) == placed
    assert ("detach it, or call the model with gradients" in " ".join(fast.explain().split())) != placed


def test_a_gradient_penalty_around_the_model():
    """As trainers of critics write it."""
    torch.manual_seed(0)
    plain, one = Model(lambda m, x: m.linear(x).tanh()), Model(lambda m, x: m.linear(x).tanh())
    one.load_state_dict(plain.state_dict())
    fast = compiled(one)

    def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        x = x.clone().requires_grad_()
        (slope,) = grad(model(x).sum(), x, create_graph=True)
        return ((slope.norm(2, dim=1) - 1) ** 2).mean()

    for _ in range(2):
        x = torch.randn(3, 4)
        wanted = gradients(plain, lambda x=x: loss(plain, x))
        assert alike(wanted, gradients(fast, lambda x=x: loss(fast, x)))
