"""Programs on which `torch.compile` was publicly reported in 2025 and 2026 to answer otherwise than eager, on a CPU,
without a word. A case calls a compiled function and returns all that its caller can observe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Compile = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass(frozen=True)
class Case:
    """A report: its number among pytorch's issues, the program in a few words, and a function that runs it."""

    issue: int
    title: str
    observe: Callable[[Compile], Any]


CASES: list[Case] = []


def case(issue: int, title: str) -> Callable[[Callable[[Compile], Any]], Callable[[Compile], Any]]:
    """Return a decorator that adds a function to the cases."""

    def add(observe: Callable[[Compile], Any]) -> Callable[[Compile], Any]:
        CASES.append(Case(issue, title, observe))
        return observe

    return add


@case(198101, "a view of another dtype is read, then its input is changed in place")
def _(compile: Compile) -> Any:
    def f(x: Tensor) -> Tensor:
        y = x.view(torch.int32) * 2
        y.sub_(-4)
        x[:, 2:5] = 2
        return y.view(torch.int64)

    x = torch.arange(-12, 12).reshape(4, 6)
    return compile(f)(x), x


@case(198131, "an input is copied into another, then changed in place")
def _(compile: Compile) -> Any:
    def f(target: Tensor, source: Tensor) -> Tensor:
        target[0:, :] = source[0:, :]
        source.add_(1)
        return source * 1

    target, source = torch.zeros(3, 4), torch.arange(12.0).view(3, 4)
    return compile(f)(target, source), target, source


@case(187018, "abs of uint8, negated, joined and summed")
def _(compile: Compile) -> Any:
    def f(x: Tensor) -> Tensor:
        y = -x.abs()
        return torch.cat([y, y]).sum()

    return compile(f)(torch.tensor([200, 200], dtype=torch.uint8))


@case(191308, "a batched product of int8 keeps its dtype")
def _(compile: Compile) -> Any:
    a, b = torch.ones((1, 1, 2), dtype=torch.int8), torch.ones((1, 2, 2), dtype=torch.int8)
    return compile(torch.matmul)(a, b)


@case(190764, "int32 sums that overflow, then are widened")
def _(compile: Compile) -> Any:
    def f(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        return (x @ y + x @ z).sum(dim=1)

    high = torch.full((2, 2), 2**30, dtype=torch.int32)
    one = torch.ones(2, 2, dtype=torch.int32)
    return compile(f)(high, one, one)


@case(108520, "an int32 sum that overflows, converted to int64")
def _(compile: Compile) -> Any:
    return compile(lambda x: (x + x).to(torch.int64))(torch.tensor(2**31 - 1, dtype=torch.int32))


@case(156788, "negative floats converted to uint8")
def _(compile: Compile) -> Any:
    return compile(lambda x: x.to(torch.uint8))(torch.tensor([1.5, -0.3, -2.2, 0.6, -1.1]))


@case(186029, "the non-zero bins of a weighted bincount")
def _(compile: Compile) -> Any:
    def f(x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        counts = x.bincount(weights=weights, minlength=6)
        return counts, counts.count_nonzero()

    x = torch.tensor([0, 2, 2, 3, 1, 0, 3, 3])
    return compile(f)(x, torch.tensor([1.0, -2, 3, 0, 4, -5, 6, 7]))


@case(182012, "the gradient of diagonal_scatter")
def _(compile: Compile) -> Any:
    x, source = torch.randn(8, 8, requires_grad=True), torch.randn(8, requires_grad=True)
    compile(lambda x, source: torch.diagonal_scatter(x, source).sum())(x, source).backward()
    return x.grad, source.grad


@case(181581, "a gradient with create_graph inside the function can be differentiated again")
def _(compile: Compile) -> Any:
    def f(x: Tensor, w: Tensor) -> Tensor:
        return torch.autograd.grad((x @ w).relu().sum(), w, create_graph=True)[0]

    x, w = torch.ones(2, 3, requires_grad=True), torch.ones(3, 2, requires_grad=True)
    gradient = compile(f)(x, w)
    return gradient, gradient.requires_grad


class _TripleBackward(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return torch.sin(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 3


@case(193279, "torch.func.grad of a function with a backward of its own")
def _(compile: Compile) -> Any:
    return compile(torch.func.grad(lambda x: _TripleBackward.apply(x).sum()))(torch.ones(4))


class _Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 2


@case(184113, "a function with a backward of its own that changes its input in place")
def _(compile: Compile) -> Any:
    def f(x: Tensor, w: Tensor) -> Tensor:
        h = x @ w
        left, right = h[:, :2], h[:, 2:]
        return (_Doubled.apply(left) * right).sum()

    x, w = torch.arange(6.0).view(2, 3), torch.ones(3, 4, requires_grad=True)
    loss = compile(f)(x, w)
    loss.backward()
    return loss, w.grad


@case(136662, "torch.func.grad through a slice that is added to in place")
def _(compile: Compile) -> Any:
    def g(x: Tensor) -> Tensor:
        y = torch.zeros_like(x)
        y[:, 0] += x[:, 2].abs()
        return y.sum()

    return compile(torch.func.grad(g))(torch.tensor([[1.0, -2, -3], [4, 5, 6]]))


@case(196173, "control flow by the identity of objects that change")
def _(compile: Compile) -> Any:
    class State:
        value = 0

    def f(x: Tensor, a: State, b: State) -> Tensor:
        a.value += 1
        return x + a.value if a is b else x - a.value

    one, other = State(), State()
    compiled = compile(f)
    x = torch.ones(2)
    return compiled(x, one, one), compiled(x, one, other), one.value, other.value


class _Scaled(Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, types, args, kwargs or {})
        return result * 2 if func is torch.add else result


@case(176679, "a subclass of Tensor with __torch_function__")
def _(compile: Compile) -> Any:
    x = torch.ones(3).as_subclass(_Scaled)
    return torch.Tensor(compile(lambda x: torch.add(x, 1))(x).as_subclass(Tensor))


class _Settings:
    factor = 1.0


@case(176851, "an attribute of a class that changes between calls")
def _(compile: Compile) -> Any:
    compiled, answers = compile(lambda x: x * _Settings.factor), []
    for _Settings.factor in (1.0, 10.0):
        answers.append(compiled(torch.tensor([4.0])))
    return answers


class _Log:
    items: list[Tensor] = []  # noqa: RUF012


@case(169253, "a list of a class that is appended to")
def _(compile: Compile) -> Any:
    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            _Log.items.append(x)
            return x + 1

    _Log.items.clear()
    compiled = compile(Model())
    return compiled(torch.ones(2)), compiled(torch.zeros(2)), len(_Log.items)


@case(197896, "a list changed by a method of a class defined inside")
def _(compile: Compile) -> Any:
    state: list[int] = []

    def f(x: Tensor) -> Tensor:
        class Helper:
            def touch(self) -> None:
                state.append(1)

        Helper().touch()
        return x + 1

    compiled = compile(f)
    return compiled(torch.ones(2)), compiled(torch.ones(2)), len(state)


@case(185888, "as_strided_ changes the shape of the tensor itself")
def _(compile: Compile) -> Any:
    def f(x: Tensor) -> tuple[Tensor, Any, Any]:
        x = x * 1
        y = x.as_strided_((2, 2), (2, 1))
        return y, x.size(), x.stride()

    return compile(f)(torch.arange(4.0))


@case(117265, "a backward hook registered after the first call")
def _(compile: Compile) -> Any:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 3, bias=False)
            nn.init.ones_(self.inner.weight)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x).sum()

    model = Model()
    compiled, x = compile(model), torch.ones(1, 3)
    compiled(x).backward()
    first, model.inner.weight.grad = model.inner.weight.grad, None
    model.inner.register_full_backward_pre_hook(lambda module, gradient: (gradient[0] * 10,))
    compiled(x).backward()
    return first, model.inner.weight.grad


@case(183769, "select out of range raises")
def _(compile: Compile) -> Any:
    def f(x: Tensor) -> Tensor:
        base = x.unsqueeze(1)
        return torch.cat([torch.select(base, 1, 0), torch.select(base, 1, 1)], -1)

    return compile(f)(torch.arange(12.0).reshape(3, 4))


@case(178013, "an integer divided by zero raises")
def _(compile: Compile) -> Any:
    return compile(torch.floor_divide)(torch.tensor([1]), torch.tensor([0]))


@case(195675, "a bound of clamp that float32 cannot hold raises")
def _(compile: Compile) -> Any:
    return compile(lambda x: torch.clamp(x, min=-3.4e39, max=3.4e39))(torch.ones(4))


@case(185246, "a probability above one raises")
def _(compile: Compile) -> Any:
    return compile(lambda x: torch.bernoulli(x).sum() * 0)(torch.tensor([0.5, 1.5]))


@case(197554, "binary cross entropy of an input above one raises")
def _(compile: Compile) -> Any:
    return compile(F.binary_cross_entropy)(torch.tensor([1.5, 0.2]), torch.tensor([1.0, 0.0]))


@case(197554, "index_copy to a negative index raises")
def _(compile: Compile) -> Any:
    f = compile(lambda x, i, s: torch.index_copy(x, 0, i, s))
    return f(torch.zeros(4, 3), torch.tensor([-1]), torch.ones(1, 3))


@case(169779, "index_select of a negative index raises")
def _(compile: Compile) -> Any:
    return compile(lambda x, i: torch.index_select(x, 0, i))(torch.ones(3, 2), torch.tensor([-1]))


@case(197554, "repeat_interleave with a wrong output size raises")
def _(compile: Compile) -> Any:
    f = compile(lambda x, r: torch.repeat_interleave(x, r, output_size=9))
    return f(torch.arange(3), torch.tensor([1, 2, 3]))


@case(135546, "a class out of range in cross_entropy raises")
def _(compile: Compile) -> Any:
    return compile(F.cross_entropy)(torch.zeros(2, 3), torch.tensor([0, -1]))
