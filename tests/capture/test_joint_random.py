"""Random little programs, differentiated as one graph: whatever eager gives, the graph gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from capture_models import Does
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from joint import agrees
from torch import nn
from torch.utils import _pytree as pytree

STEPS = ("mul", "add", "linear", "tanh", "transpose", "row", "detach", "no_grad", "in_place", "count", "drop", "expand",
         "reshape", "softmax", "max", "write")  # fmt: skip

steps = st.lists(
    st.tuples(st.sampled_from(STEPS), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=8
)


def program(chosen: list[tuple[str, int, int]], returned: list[int]) -> Any:
    def body(m: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        made = [x, y, m.linear.weight, m.linear(x)]
        for step, first, second in chosen:
            made.append(perform(m, step, made[first % len(made)], made[second % len(made)]))
        # The rest, and what is returned twice, torch.compile returns by itself.
        computed = made[3:]
        return [computed[index] for index in sorted({index % len(computed) for index in returned})]

    return body


def perform(m: Any, step: str, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if step == "mul":
        return a * b
    if step == "add":
        return a + b.mean()
    if step == "linear":
        return m.linear(a)
    if step == "tanh":
        return a.tanh()
    if step == "transpose":
        return a.t()
    if step == "row":
        return a[1:2].expand(4, 4)
    if step == "detach":
        return a.detach()
    if step == "no_grad":
        with torch.no_grad():
            return m.linear(a) * b
    if step == "in_place":
        return (a * 1).add_(b)
    if step == "count":
        m.count.mul_(0.5).add_(a.detach().mean(0))
        return a + m.count
    if step == "drop":
        return nn.functional.dropout(a, 0.4)
    if step == "expand":
        return a.sum(0).expand(4, 4)
    if step == "reshape":
        return a.t().reshape(2, 8).view(4, 4)
    if step == "softmax":
        return a.softmax(-1)
    if step == "max":
        return a.max(0).values[None] + b
    copy = a.clone()
    copy[0] = b[1]
    return copy


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
