"""Random little programs, differentiated as one graph: whatever eager gives, the graph gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from capture_models import Does
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from joint import agrees
from torch import nn
from torch.utils import _pytree as pytree

Step = Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor]


def no_grad(m: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return m.linear(a) * b


def count(m: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    m.count.mul_(0.5).add_(a.detach().mean(0))
    return a + m.count


def write(m: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    copy = a.clone()
    copy[0] = b[1]
    return copy


STEPS: dict[str, Step] = {
    "mul": lambda m, a, b: a * b,
    "add": lambda m, a, b: a + b.mean(),
    "linear": lambda m, a, b: m.linear(a),
    "tanh": lambda m, a, b: a.tanh(),
    "transpose": lambda m, a, b: a.t(),
    "row": lambda m, a, b: a[1:2].expand(4, 4),
    "detach": lambda m, a, b: a.detach(),
    "no_grad": no_grad,
    "in_place": lambda m, a, b: (a * 1).add_(b),
    "count": count,
    "drop": lambda m, a, b: nn.functional.dropout(a, 0.4),
    "expand": lambda m, a, b: a.sum(0).expand(4, 4),
    "reshape": lambda m, a, b: a.t().reshape(2, 8).view(4, 4),
    "softmax": lambda m, a, b: a.softmax(-1),
    "max": lambda m, a, b: a.max(0).values[None] + b,
    "write": write,
}

steps = st.lists(
    st.tuples(st.sampled_from([*STEPS]), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=8
)


def program(chosen: list[tuple[str, int, int]], returned: list[int]) -> Any:
    def body(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        made = [x, y, m.linear.weight, m.linear(x)]
        for step, first, second in chosen:
            made.append(STEPS[step](m, made[first % len(made)], made[second % len(made)]))
        # The rest, and what is returned twice, torch.compile returns by itself.
        computed = made[3:]
        return [computed[index] for index in sorted({index % len(computed) for index in returned})]

    return body


@pytest.mark.slow
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps, st.lists(st.integers(0, 12), min_size=1, max_size=4), st.booleans())
def test_gradients_are_eagers(chosen, returned, wanted):
    torch.manual_seed(0)
    linear = nn.Linear(4, 4).double()
    model = Does(program(chosen, returned), linear=linear, count=torch.zeros(4, dtype=torch.float64))
    args = (
        torch.randn(4, 4, dtype=torch.float64).requires_grad_(wanted),
        torch.randn(4, 4, dtype=torch.float64),
    )
    assume(differentiable(model, args))
    agrees(model, args)


def differentiable(model: Any, args: Any) -> bool:
    """Whether eager can differentiate it at all."""
    leaves = [leaf for leaf in pytree.tree_leaves(model(*args)) if leaf.requires_grad]
    try:
        for leaf in leaves:
            leaf.sum().backward(retain_graph=True)
    except RuntimeError:
        return False
    finally:
        for tensor in (*args, *model.parameters()):
            tensor.grad = None
    return True
