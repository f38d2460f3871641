"""A recorded call as a module that does again, node by node, what eager did."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx, nn

from .. import casting
from .asked import ASKED, Asked
from .private import pytree

_aten = torch.ops.aten
_LOWERED = frozenset({
    _aten.linear, _aten.matmul, _aten.mm, _aten.bmm, _aten.mv, _aten.addmm, _aten.addmv, _aten.addr,
    _aten.addbmm, _aten.baddbmm, _aten.conv1d, _aten.conv2d, _aten.conv3d, _aten.conv_tbc, _aten.conv_transpose1d,
    _aten.conv_transpose2d, _aten.conv_transpose3d, _aten.convolution, _aten.prelu,
})  # fmt: skip
"""Operators whose weights autocast casts down once and keeps: the gradients of all uses meet in the low precision."""


class Record(nn.Module):
    """A recorded graph that runs node by node, through regions of another grad mode or autocast too, so that
    what is traced from it knows the module and line of each node.

    `weights` says of each input whether autocast would keep a cast of it.
    """

    def __init__(self, module: fx.GraphModule, asked: Asked, weights: tuple[bool, ...]) -> None:
        super().__init__()
        self.record, self.weights = (module, asked), weights

    def forward(self, *tensors: torch.Tensor) -> Any:
        casts = _Casts([tensor for tensor, kept in zip(tensors, self.weights) if kept])
        return tuple(_Run(*self.record, casts).run(*tensors))


class _Casts:
    """What autocast keeps of the weights until the outermost autocast region ends.

    Autocast keeps nothing of a tensor that is no leaf, as the inputs of a module that is traced are not.
    """

    def __init__(self, weights: list[torch.Tensor]) -> None:
        self.weights = {id(tensor) for tensor in weights}
        self.kept: dict[tuple[Any, ...], torch.Tensor] = {}

    def cast(self, item: Any) -> Any:
        """An argument as an operator of low precision is given it."""
        if id(item) not in self.weights or not casting.enabled(item.device.type):
            return item
        dtype = torch.get_autocast_dtype(item.device.type)
        key = (id(item), dtype, torch.is_grad_enabled())
        if key not in self.kept:
            self.kept[key] = item.to(dtype)
        return self.kept[key]


class _Run(fx.Interpreter):
    def __init__(self, module: fx.GraphModule, asked: Asked, casts: _Casts) -> None:
        super().__init__(module)
        self.asked, self.casts = asked, casts

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = getattr(target, "__name__", "")
        if name == "wrap_with_set_grad_enabled":
            enabled, region, *given = args
            with torch.set_grad_enabled(enabled):
                return _Run(region, self.asked, self.casts).run(*given)
        if name == "wrap_with_autocast":
            kind, dtype, enabled, cached, region, *given = args
            outermost = not casting.enabled(kind)
            with torch.autocast(kind, dtype, enabled, cached):
                made = _Run(region, self.asked, self.casts).run(*given)
            if outermost:
                self.casts.kept.clear()
            return made
        if target in ASKED:
            return self.asked.again(target, *args)
        if getattr(target, "overloadpacket", None) in _LOWERED and self.casts.weights:
            args = pytree.tree_map(self.casts.cast, args)
        return super().call_function(target, args, kwargs)
