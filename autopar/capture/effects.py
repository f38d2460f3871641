"""Effects of an operator: aliases, writes, random draws and messages to other processes."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import fx

_aten = torch.ops.aten
_COLLECTIVES = frozenset(
    {"_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "c10d", "symm_mem"}
)
"""Namespaces of operators that wait for other processes."""


@functools.cache
def shared(target: Any) -> int | str | None:
    """The argument (position, or name when keyword-only) whose memory the outputs may share; None when it is
    fresh.

    By the schema's alias annotations. `reshape` and the like may copy instead: for lifetimes they count as
    sharing.
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
    """True if the call takes random numbers: its tag says it may, its arguments that it does."""
    if torch.Tag.nondeterministic_seeded not in target.tags:
        return False
    chance = _CHANCE.get(target.overloadpacket)
    if chance is None:
        return True
    names = [argument.name for argument in target._schema.arguments]
    given = {
        **{a.name: a.default_value for a in target._schema.arguments if a.has_default_value()},
        **dict(zip(names, args)),
    }
    given.update(kwargs)
    return all(given.get(name) not in (0, 0.0, False, None) for name in chance if name in names)


def collective(module: fx.GraphModule) -> fx.Node | None:
    """The first call in a graph, or in a graph within it, that waits for other processes; None where there is none."""
    for part in module.modules():
        for node in part.graph.nodes if isinstance(part, fx.GraphModule) else ():
            if _namespace(node.target) in _COLLECTIVES:
                return node
    return None


def _namespace(target: Any) -> str:
    if isinstance(target, torch._ops.OpOverload):
        target = target.overloadpacket
    named = isinstance(target, torch._ops.OpOverloadPacket)
    return target._qualified_op_name.partition("::")[0] if named else ""


_CHANCE = {
    _aten.scaled_dot_product_attention: ("dropout_p",),
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
"""Arguments that must all be nonzero for these to draw."""
