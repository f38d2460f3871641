"""Outputs and gradients of a model on its examples, in evaluation mode, to compare a rewritten model with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_leaves, tree_map

from ...pipeline.compare import difference, error, limit
from .plan import in_mode
from .random_numbers import undrawn

_ROUNDINGS = 10.0
"""Factor on the tolerance of one operator that sums in another order, for errors accumulated over all layers."""
_MOST = 0.05
_SMALL = 1e-2
_GRADIENT = "gradient of "


class Answers:
    """The outputs and gradients of a model at construction; `differ` compares later ones. All ranks of a group call
    it."""

    def __init__(
        self, model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], group: dist.ProcessGroup
    ) -> None:
        self.model, self.args, self.kwargs, self.group = model, args, kwargs, group
        self.device = next(model.parameters()).device
        self.plain = self._ask()

    def differ(self) -> str:
        """Return the first difference or error, the same on all ranks; "" if there is none."""
        try:
            why = self._first(self._ask())
        except Exception as error:
            why = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"
        told: list[Any] = [None] * dist.get_world_size(self.group)
        dist.all_gather_object(told, why, group=self.group)
        return next((str(each) for each in told if each), "")

    def _first(self, found: dict[str, Any]) -> str:
        gradients = [t for name, t in self.plain.items() if name.startswith(_GRADIENT) and t is not None]
        largest = max(
            (float(gradient.abs().max()) for gradient in gradients if gradient.numel()), default=0.0
        )
        for name, reference in self.plain.items():
            allowed = min(_MOST, _ROUNDINGS * limit(reference))
            # A gradient that is nothing but rounding (of what softmax does not see) is measured by the others.
            floor = _SMALL * largest if name.startswith(_GRADIENT) else 0.0
            if error(found.get(name), reference, floor) > allowed:
                return f"{name}: {difference(found.get(name), reference, allowed)}"
        return ""

    def _ask(self) -> dict[str, Any]:
        with in_mode(self.model, False), undrawn(self.device):
            with torch.no_grad():
                served = self._called()
            with torch.enable_grad():
                made = self._called()
                gradients = self._gradients(made)
        answers = {f"output {place} without gradients": leaf for place, leaf in enumerate(served)}
        answers.update((f"output {place}", _whole(leaf)) for place, leaf in enumerate(made))
        return {**answers, **gradients}

    def _called(self) -> list[Any]:
        return tree_leaves(self.model(*tree_map(_own, self.args), **tree_map(_own, self.kwargs)))

    def _gradients(self, made: Sequence[Any]) -> dict[str, Any]:
        """Return the gradients of all parameters, for output weights that are all different."""
        outputs = [leaf for leaf in made if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        named = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        if not outputs or not named:
            return {}
        first, *others = [(leaf * _ramp(leaf)).real.sum() for leaf in outputs]
        loss = sum(others, start=first)
        found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
        return {f"{_GRADIENT}{name}": _whole(grad) for name, grad in zip(named, found)}


def _own(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf


def _whole(leaf: Any) -> Any:
    leaf = leaf.full_tensor() if isinstance(leaf, DTensor) else leaf
    return leaf.detach() if isinstance(leaf, torch.Tensor) else leaf


def _ramp(leaf: torch.Tensor) -> torch.Tensor:
    return torch.linspace(-1, 1, leaf.numel(), dtype=leaf.dtype, device=leaf.device).view(leaf.shape)
