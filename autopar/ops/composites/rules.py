"""Kernels that stand in for composite aten operators while a call is traced with its backward.

The rules stand in for torch's own at the dispatch keys of autograd, so that they hold in checkpointed regions and in
functions of torch that call the operator themselves.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from ...errors import CaptureError
from . import attention, recurrent
from . import embedding_bag as bags
from . import norms_resizes as kept
from .define import Composite

_aten = torch.ops.aten
Rule = Callable[..., Any]


class _Plain(Exception):
    """Raised by a rule where torch's own composition is to be traced."""


def _attention(*given: Any) -> Any:
    if given[4]:
        # Its mask is drawn once, as eager draws it on a CPU.
        with sdpa_kernel(SDPBackend.MATH):
            return _aten.scaled_dot_product_attention.default.decompose(*given[:6], **_scaled(*given[6:]))
    return attention.attention.forward(*given)[0]


def _scaled(scale: float | None, enable_gqa: bool) -> dict[str, Any]:
    return {"scale": scale, "enable_gqa": enable_gqa}


def _recurrent(layer: Composite, outputs: int) -> Rule:
    def rule(*given: Any) -> Any:
        sequence, hx, params, biases, layers, dropout, train, *rest = given
        if train and dropout and layers > 1:
            return recurrent.layered(layer.forward, *given)[:outputs]
        return layer.forward(sequence, hx, params, biases, layers, 0.0, train, *rest)[:outputs]

    return rule


def _packed(*given: Any) -> Any:
    raise CaptureError(
        "a recurrent layer runs over a packed sequence, whose steps depend on the lengths in a tensor; pad the batch "
        "(torch.nn.utils.rnn.pad_sequence) and mask the loss"
    )


def _bag(*given: Any) -> Any:
    weight, indices, offsets, scale, mode, sparse, weights, last, *padding = given
    if sparse:
        raise CaptureError(
            "embedding_bag(sparse=True) has a sparse gradient, which no graph holds; build it with sparse=False"
        )
    index = padding[0] if padding else None
    made = bags.embedding_bag.forward(weight, indices, offsets, weights, scale, mode, last, index)
    with torch.no_grad():
        # The rest is read by nobody but the backward that torch would have traced.
        _, *rest = _aten._embedding_bag_forward_only.default(
            weight, indices, offsets, scale, mode, False, weights, last, -1 if index is None else index
        )
    return (made, *rest)


def _norm(norm: Composite) -> Rule:
    def rule(*given: Any) -> Any:
        if given[0].dtype not in kept.LOW:
            raise _Plain
        return norm.forward(*given)

    return rule


def _pool(dims: list[int]) -> Rule:
    def rule(given: Any, size: Any) -> Any:
        if set(size) != {1}:
            raise _Plain
        return _aten.mean.dim(given, dims, True)

    return rule


def _rrelu(given: Any, lower: float, upper: float, training: bool, generator: None = None) -> Any:
    """In training it draws into row-major memory whatever it is given, which its fake does not know."""
    if training:
        given = given.contiguous()
    return _aten.rrelu.default.decompose(given, lower, upper, training)


def _bernoulli(given: Any, p: float, generator: None = None) -> Any:
    """A new row-major tensor: the operator means a draw in place from then on (see `draws`)."""
    return torch.empty_like(given, memory_format=torch.contiguous_format).bernoulli_(p)


RULES: dict[Any, Rule] = {
    _aten.rrelu.default: _rrelu,
    _aten.scaled_dot_product_attention.default: _attention,
    **{
        plain: _recurrent(layer, 3 if plain is _aten.lstm.input else 2)
        for plain, layer in recurrent.LAYERS.items()
    },
    **{layer.overloadpacket.data: _packed for layer in recurrent.LAYERS},
    **{plain: cell.forward for plain, cell in recurrent.CELLS.items()},
    **dict.fromkeys((_aten.embedding_bag.padding_idx, _aten.embedding_bag.default), _bag),
    **{plain: whole.forward for plain, whole in kept.KEPT.items()},
    **{plain: _norm(norm) for plain, norm in kept.NORMS.items()},
    **{plain: _pool(dims) for plain, dims in kept.POOLS.items()},
}
"""For training; torch composes what is not here."""

FUNCTIONS: dict[Any, Rule] = {functional.embedding_bag: bags.rows}
"""What is traced in the place of functions of torch, of which operators do not say enough."""

DRAWN: dict[Any, Rule] = {_aten.bernoulli.p: _bernoulli}
"""For every trace."""


def bound(target: Any, rule: Rule) -> Rule:
    """The rule as a kernel of its operator: called with all arguments of the schema, by position."""
    arguments = target._schema.arguments

    def kernel(*args: Any, **kwargs: Any) -> Any:
        given = [
            args[place] if place < len(args) else kwargs.get(argument.name, argument.default_value)
            for place, argument in enumerate(arguments)
        ]
        try:
            return rule(*given)
        except _Plain:
            return target.decompose(*args, **kwargs)

    return kernel


@contextlib.contextmanager
def standing_in(rules: dict[Any, Rule], keys: list[Any]) -> Iterator[None]:
    """Let the rules be the kernels of their operators at these dispatch keys, for what is traced inside."""
    placed = [(target, key) for target in rules for key in keys]
    try:
        for target, key in placed:
            target.py_impl(key)(bound(target, rules[target]))
            target._dispatch_cache.clear()
        yield
    finally:
        for target, key in placed:
            target.py_kernels.pop(key, None)
            target._dispatch_cache.clear()
