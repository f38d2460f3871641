"""Rewrites of tasks that mix rows into tasks that treat rows independently or sum them: `summed`, with a rule for each
operator."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeAlias

from ...ir.graph import Graph, Task, Value
from .builder import Steps
from .dropout import native_dropout, noise
from .losses import LOSSES, backward, loss, nll_backward, nll_forward
from .moments import batch_norm, batch_norm_backward, mean, per_part, single_valued, variance

__all__ = ["drawn", "single_valued", "summed"]

Rule: TypeAlias = Callable[[Steps], bool]
"""Appends the replacement of a task; returns whether it did."""

_DRAWS: dict[str, Rule] = {
    "native_dropout": native_dropout,
    **dict.fromkeys(("new_empty", "empty_like"), noise),
}
_RULES: dict[str, Rule] = {
    **dict.fromkeys(LOSSES, loss),
    **dict.fromkeys((f"{name}_backward" for name in LOSSES), backward),
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), nll_forward),
    **dict.fromkeys(("nll_loss_backward", "nll_loss2d_backward"), nll_backward),
    "mean": mean,
    **dict.fromkeys(("var", "std", "var_mean", "std_mean"), variance),
    **_DRAWS,
    **dict.fromkeys(
        ("_native_batch_norm_legit_functional", "_native_batch_norm_legit", "native_batch_norm"), batch_norm
    ),
    "native_batch_norm_backward": batch_norm_backward,
}
_BATCH_NORM = frozenset(name for name, rule in _RULES.items() if rule in (batch_norm, batch_norm_backward))


def summed(graph: Graph, *, batch_norm: str = "full") -> Graph:
    """Replace tasks that mix rows by tasks that pass rows or sum over them.

    Mean losses become sums ÷ N, means and variances over the first two axes sums ÷ N; a dropout draws its whole mask
    from shape and dtype alone and applies it row by row. In training, BatchNorm uses the statistics of the whole batch
    from two sums (`batch_norm="full"`), or, as in `nn.DataParallel`, each part its own, with the first part's for the
    running statistics (`"per_part"`).

    Equal in exact arithmetic, and in the random draws. A task `t` becomes `t#sum`, …, `t`; values keep the names that
    readers use. Only useful before a split: for a whole batch the captured tasks are faster. Linear in tasks.
    """
    return _rewritten(graph, lambda task: _rule(task, batch_norm))


def drawn(graph: Graph) -> Graph:
    """Let dropouts draw the whole mask from shape and dtype alone, as in `summed`, and change nothing else."""
    return _rewritten(graph, lambda task: _DRAWS.get(_name(task)))


def _rewritten(graph: Graph, ruled: Callable[[Task], Rule | None]) -> Graph:
    values: dict[str, Value] = {value.name: value for value in graph.values}
    tasks: list[Task] = []
    for task in graph.tasks:
        rule = ruled(task)
        steps = Steps(graph, task, values)
        if rule is None or not rule(steps):
            tasks.append(task)
            continue
        tasks += steps.tasks
    kept = {name for task in tasks for name in task.outputs}
    return dataclasses.replace(
        graph,
        values=tuple(value for value in values.values() if value.kind != "made" or value.name in kept),
        tasks=tuple(tasks),
    )


def _rule(task: Task, batch_norm: str) -> Rule | None:
    name = _name(task)
    return per_part if batch_norm == "per_part" and name in _BATCH_NORM else _RULES.get(name)


def _name(task: Task) -> str:
    """Return the ATen operator of a task without its overload; "" for others."""
    space, _, rest = task.target.partition(".")
    return rest.partition(".")[0] if space == "aten" else ""
