"""Operators that a joint graph must not take apart: what a CPU, or any one device, makes of them is no task of
another.

Differentiated on a CPU, `scaled_dot_product_attention`, `lstm`, `embedding_bag` … become kernels of that CPU. So
before differentiation each is swapped for `autopar::<name>`, which stays one forward and one backward task,
computed by plain torch on whatever device its tensors are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from ..errors import CaptureError
from .attention import attention, random_attention
from .define import KERNELS, Composite
from .recurrent import gru, layered, lstm, rnn_relu, rnn_tanh

__all__ = ["kernel", "swap"]

_aten = torch.ops.aten
_RECURRENT = (lstm, gru, rnn_tanh, rnn_relu)
_ALL: dict[Any, Composite] = {composite.plain: composite for composite in (attention, *_RECURRENT)}
_PACKED = {composite.plain.overloadpacket.data for composite in _RECURRENT}


def kernel(target: str) -> Callable[..., Any] | None:
    """What computes a task's target, `autopar.lstm_backward.default`; None when it is no composite."""
    return KERNELS.get(target)


def swap(graph_module: torch.fx.GraphModule) -> None:
    """Let every composite of an exported, undecomposed module be the operator that stays whole, in place.

    Nodes keep their meta. Attention and recurrent layers with dropout become the pieces around it. Raises
    CaptureError for recurrent layers on packed sequences.
    """
    for module in graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in list(module.graph.nodes):
                if node.op == "call_function":
                    _swap(node)
            module.recompile()


def _swap(node: torch.fx.Node) -> None:
    if node.target in _PACKED:
        raise CaptureError(
            f"{node.target} runs over a packed sequence, whose steps depend on the lengths in a tensor, and is not "
            "trained yet; pad the batch (torch.nn.utils.rnn.pad_sequence) and mask the loss"
        )
    composite = _ALL.get(node.target)
    if composite is None:
        return
    args = composite.arguments(node.args, dict(node.kwargs))
    names = [argument.name for argument in composite.plain._schema.arguments]
    given = dict(zip(names, args))
    if composite is attention and given["dropout_p"]:
        node.target = random_attention
        return
    node.args, node.kwargs = args, {}
    node.target = composite.forward
    if composite in _RECURRENT and given["train"] and given["dropout"] and given["num_layers"] > 1:
        node.target = functools.partial(layered, composite)
