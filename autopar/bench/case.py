"""One contest's question, a model with its arguments; what each rival makes of it; and whether two answers agree."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from ..pipeline import compare

STEP_LIMIT = 1e-4
"""Largest error of the loss and of the changes of weights of a training step in float32: its sums are long."""
SLACK = 4


@dataclass(frozen=True)
class Case:
    """`model(*args)`, or with `train` a training step of it; `devices` are autopar's."""

    model: nn.Module
    args: tuple[Any, ...]
    devices: Sequence[str] = ("cpu",)
    train: bool = False
    patience_s: float | None = None
    """Seconds that a rival may take to become faster, where it answers before."""

    def left(self, began: float) -> float | None:
        """What is left of these seconds, `began` being when it was begun with."""
        return None if self.patience_s is None else max(0.0, began + self.patience_s - time.perf_counter())

    def nudged(self, seed: int) -> Case:
        """The same but for the last bits of its weights and arguments."""
        made = torch.Generator().manual_seed(seed)

        def nudge(item: Any) -> Any:
            if not isinstance(item, torch.Tensor) or not item.is_floating_point():
                return item
            noise = torch.randn(item.shape, generator=made, dtype=item.dtype).to(item.device)
            return item.detach() * (1 + 8 * torch.finfo(item.dtype).eps * noise)

        model = copy.deepcopy(self.model)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(nudge(parameter))
        return replace(self, model=model, args=tree_map(nudge, self.args))


@dataclass(frozen=True)
class Entrant:
    """What a rival made of a case: a `call` to be timed, and the tensors it `answers`, to be asked once and before."""

    call: Callable[[], Any]
    answers: Callable[[], list[torch.Tensor]]
    close: Callable[[], None] = lambda: None


def tensors(answer: Any) -> list[torch.Tensor]:
    """The tensors in a nested answer, in order."""
    return [leaf for leaf in tree_leaves(answer) if isinstance(leaf, torch.Tensor)]


def inference(case: Case, model: Callable[..., Any], close: Callable[[], None] = lambda: None) -> Entrant:
    """The entrant that calls `model`. It answers the case's arguments, and the same with their numbers moved along,
    so that one that computed its answer ahead is found out."""
    args = case.args

    def answers() -> list[torch.Tensor]:
        return [
            tensor.clone() for each in (args, tree_map(_rolled, args)) for tensor in tensors(model(*each))
        ]

    return Entrant(lambda: model(*args), answers, close)


def _rolled(item: Any) -> Any:
    """Other numbers of the same kind. Integers may be offsets, which must rise, and stay as they are."""
    floating = isinstance(item, torch.Tensor) and item.is_floating_point() and item.dim()
    return item.roll(1, -1) if floating else item


def wrong(
    found: Sequence[torch.Tensor],
    eager: Sequence[torch.Tensor],
    nudged: Callable[[], Sequence[Sequence[torch.Tensor]]],
    train: bool,
) -> tuple[float, str]:
    """The largest error of some answers, and how the first that is too far from eager's differs, "" where none is.

    An error is also allowed that is at most `SLACK` times as large as what eager makes of the case `nudged`: where the
    sign of a ReLU or the place of a maximum depends on the last bit, a gradient jumps.
    """
    if len(found) != len(eager):
        return math.inf, f"{len(found)} tensors, not {len(eager)}"
    errors = [compare.error(a, b) for a, b in zip(found, eager)]
    for index, (a, b) in enumerate(zip(found, eager)):
        allowed = max(compare.limit(b), STEP_LIMIT if train and b.dtype == torch.float32 else 0.0)
        if errors[index] > allowed and b.is_floating_point():
            moved = [compare.error(other[index], b) for other in nudged()]
            allowed = max([allowed, *(SLACK * far for far in moved if math.isfinite(far))])
        if errors[index] > allowed:
            return errors[index], f"answer {index}: {compare.difference(a, b, allowed)}"
    return max(errors, default=0.0), ""


def unsteady(first: Iterable[torch.Tensor], second: Iterable[torch.Tensor]) -> bool:
    """True if two answers of eager itself are too far apart, as those of a model that draws random numbers."""
    return any(compare.error(a, b) > compare.limit(b) for a, b in zip(first, second))
