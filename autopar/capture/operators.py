"""Properties of operator calls: FLOPs, aliases, random draws, communication.

A multiply and an add count as two operations. torch's own FLOP counter knows only decomposed operators.
Capture keeps linear, matmul, conv and attention whole, so this module counts them with the same formulas.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from ..ops import (
    by_name,
    composites,  # noqa: F401  (defines torch.ops.autopar)
)
from .torch_private import (
    OpOverload,
    OpOverloadPacket,
    by_parts,
    conv_flop_count,
    decompositions,
    flop_registry,
    sdpa_flop_count,
)


def flops(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> int:
    """Return the FLOPs of `target(*args, **kwargs)` from the shapes of its (fake) tensors; 0 for data movement."""
    packet = getattr(target, "overloadpacket", None)
    count: Callable[..., Any] | None = _WHOLE.get(packet)
    try:
        if getattr(target, "namespace", "") == "autopar":
            return _composite(target, args, output)
        if count is not None:
            return int(count(args, output))
        if packet in flop_registry:
            return int(flop_registry[packet](*args, **kwargs, out_val=output))
    except (AttributeError, IndexError, KeyError, TypeError, AssertionError):
        return 0
    return 0


def _product(index: int) -> Callable[..., int]:
    """Return a counter of products summed over the last axis of the argument with this index."""
    return lambda args, output: 2 * output.numel() * args[index].shape[-1]


def _convolution(*, transposed: bool) -> Callable[..., int]:
    return lambda args, output: conv_flop_count(
        list(args[0].shape), list(args[1].shape), list(output.shape), transposed=transposed
    )


def _attention(args: tuple[Any, ...], output: torch.Tensor) -> int:
    query, key, value = (tensor.shape for tensor in args[:3])
    if len(query) == len(key) == len(value) == 4 and query[:2] == key[:2]:
        return sdpa_flop_count(query, key, value)
    return 2 * math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def _recurrent(args: tuple[Any, ...], output: Any) -> int:
    """Count two operations for each weight at every step of every sequence."""
    sequence, weights = (
        args[0],
        next(a for a in args[1:] if (isinstance(a, (list, tuple)) and len(a) > 2) or _matrix(a)),
    )
    steps = math.prod(sequence.shape[:-1])
    return sum(2 * steps * weight.numel() for weight in weights if weight.dim() == 2)


def _encoder(args: tuple[Any, ...], output: Any) -> int:
    """Count each weight matrix at every position, and the two products of self-attention."""
    batch, length, width = args[0].shape
    matrices = sum(item.numel() for item in args[3:] if isinstance(item, torch.Tensor) and item.ndim == 2)
    return 2 * batch * length * matrices + 4 * batch * length**2 * width


def _composite(target: Any, args: tuple[Any, ...], output: Any) -> int:
    """Count a composite like its ATen operator. In the backward, each product counts once for each of its two
    factors, and once more if the forward left no tape."""
    name = target._opname.removesuffix("_backward")
    count = _WHOLE.get(getattr(_aten, name, None))
    if count is None:
        return 0
    if name == target._opname:
        return int(count(args, output))
    taped = "outputs" in (argument.name for argument in target._schema.arguments)
    again, first = (0, 2) if taped else (1, 1)
    return (2 + again) * int(count(args[first:-1], output))


def _matrix(argument: Any) -> bool:
    return isinstance(argument, (list, tuple)) and bool(argument) and getattr(argument[0], "ndim", 0) == 2


_aten = torch.ops.aten
_WHOLE: dict[Any, Callable[..., Any]] = {
    # torch's own formulas of products are slow to call.
    **dict.fromkeys((_aten.matmul, _aten.mm, _aten.bmm, _aten.mv), _product(0)),
    **dict.fromkeys((_aten.linear, _aten.addmm, _aten.baddbmm), _product(1)),
    _aten.dot: lambda args, output: 2 * args[0].numel(),
    **dict.fromkeys((_aten.conv1d, _aten.conv2d, _aten.conv3d), _convolution(transposed=False)),
    **dict.fromkeys(
        (_aten.conv_transpose1d, _aten.conv_transpose2d, _aten.conv_transpose3d),
        _convolution(transposed=True),
    ),
    _aten.scaled_dot_product_attention: _attention,
    **dict.fromkeys((_aten._transformer_encoder_layer_fwd, _aten._native_multi_head_attention), _encoder),
    **dict.fromkeys((_aten.lstm, _aten.gru, _aten.rnn_tanh, _aten.rnn_relu), _recurrent),
    **dict.fromkeys(
        (_aten.lstm_cell, _aten.gru_cell, _aten.rnn_tanh_cell, _aten.rnn_relu_cell),
        lambda args, output: 2 * args[0].shape[0] * (args[2].numel() + args[3].numel()),
    ),
}


_COLLECTIVES = frozenset(
    {"_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "c10d", "symm_mem"}
)
"""Namespaces of operators that communicate with other processes."""


@functools.cache
def shared(target: Any) -> int | str | None:
    """Return the argument (position, or name if keyword-only) whose memory the outputs may share, or None.

    The schema's alias annotations decide. `reshape` and others may copy, but for lifetimes they share.
    """
    schema = getattr(target, "_schema", None)
    if schema is None or not any(
        value.alias_info is not None and not value.alias_info.is_write for value in schema.returns
    ):
        return None
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and not argument.alias_info.is_write:
            return argument.name if argument.kwarg_only else position
    return None


def draws(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return True if the call draws random numbers: its tag allows draws, and its arguments require them."""
    if torch.Tag.nondeterministic_seeded not in target.tags:
        return False
    arguments = by_name(target, args, kwargs)
    return all(arguments.get(name, True) for name in _CHANCE.get(target.overloadpacket, ()))


def collective(module: fx.GraphModule) -> fx.Node | None:
    """Return the first call in a graph, or a nested graph, that waits for other processes; None if there is none."""
    for part in module.modules():
        for node in part.graph.nodes if isinstance(part, fx.GraphModule) else ():
            if _namespace(node.target) in _COLLECTIVES:
                return node
    return None


def _namespace(target: Any) -> str:
    if isinstance(target, OpOverload):
        target = target.overloadpacket
    named = isinstance(target, OpOverloadPacket)
    return target._qualified_op_name.partition("::")[0] if named else ""


_CHANCE = {
    _aten.scaled_dot_product_attention: ("dropout_p",),
    torch.ops.autopar.scaled_dot_product_attention: ("dropout_p",),
    _aten.native_dropout: ("p",),
    _aten.dropout: ("p", "train"),
    _aten.alpha_dropout: ("p", "train"),
    _aten.feature_dropout: ("p", "train"),
    _aten.rrelu: ("training",),
    _aten.lstm: ("dropout", "train"),
    _aten.gru: ("dropout", "train"),
    _aten.rnn_tanh: ("dropout", "train"),
    _aten.rnn_relu: ("dropout", "train"),
}
"""Arguments of these operators that must all be nonzero for a random draw."""


def _by_parts(operator: Any, denied: Callable[..., bool]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        if not denied(*args, **kwargs):
            return NotImplemented
        return by_parts(operator, *args, **kwargs)

    return run


_DENIED: dict[Any, Callable[..., bool]] = {
    # Running statistics, which it changes if it uses those of the input.
    _aten.instance_norm.default: lambda given, weight, bias, mean, variance, of_input, *_: (
        mean is not None and of_input
    ),
    _aten.einsum.default: lambda equation, tensors, **_: len(tensors) == 1,
    **dict.fromkeys(
        (
            _aten.broadcast_tensors.default,
            _aten.meshgrid.default,
            _aten.meshgrid.indexing,
            _aten.sum_to_size.default,
            _aten.type_as.default,
        ),
        lambda *_, **__: True,
    ),
}
BY_PARTS: dict[Any, Callable[..., Any]] = {
    # torch's decomposition of a dropout that is off is a copy.
    _aten.dropout.default: lambda given, p, train: (
        decompositions.dropout(given, p, train) if train else given
    ),
    **{operator: _by_parts(operator, denied) for operator, denied in _DENIED.items()},
}
"""Composites that change an argument, or return one or a view of one, which their schemas deny: they run by their
parts then, so that a change in place reaches all that share the memory. NotImplemented for calls that stay whole."""
