"""Operators that a joint graph must not take apart: what a CPU, or any one device, makes of them is no task of
another.

Differentiated on a CPU, `scaled_dot_product_attention`, `lstm`, `embedding_bag` … become kernels of that CPU. So
before differentiation each is swapped for `autopar::<name>`, which stays one forward and one backward task,
computed by plain torch on whatever device its tensors are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from . import attention, bags, draws, kept, recurrent
from .define import KERNELS

__all__ = ["draws", "kernel", "swap"]

_SWAPS: dict[Any, Callable[[torch.fx.Node], None]] = {
    **attention.SWAPS,
    **recurrent.SWAPS,
    **bags.SWAPS,
    **kept.SWAPS,
}


def kernel(target: str) -> Callable[..., Any] | None:
    """What computes a task's target, such as `autopar.lstm_backward.default`; None when it is no composite."""
    return KERNELS.get(target)


def swap(graph_module: torch.fx.GraphModule) -> None:
    """Let every composite of an exported, undecomposed module be the operator that stays whole, in place.

    Nodes keep their meta. Attention and recurrent layers that drop out become the pieces around the dropout,
    whose masks are the ones eager draws on a CPU. Raises CaptureError for recurrent layers on packed sequences
    and for embedding bags with sparse gradients.
    """
    for module in graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in list(module.graph.nodes):
                change = _SWAPS.get(node.target) if node.op == "call_function" else None
                if change is not None:
                    change(node)
            module.recompile()
