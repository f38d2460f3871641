"""Tasks of a file in an order in which each follows what it reads."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from ...errors import PlanError
from ..model.topological import topological


def in_order(names: Sequence[str], before: Sequence[Sequence[int]]) -> list[int]:
    """Task numbers in file order as far as what each waits for permits.

    `before[t]` are the tasks that t waits for. Raises PlanError naming the tasks of a cycle. O((V + E) log V).
    """
    if all(p < t for t, earlier in enumerate(before) for p in earlier):
        return list(range(len(names)))
    found = topological(dict(enumerate(before)))
    if len(found) < len(names):
        raise PlanError(_cycle(names, before, {*range(len(names))} - {*found}))
    return found


def _cycle(names: Sequence[str], before: Sequence[Sequence[int]], stuck: AbstractSet[int]) -> str:
    """Back from any task that never became ready until one comes again."""
    at = min(stuck)
    seen: dict[int, int] = {}
    path: list[int] = []
    while at not in seen:
        seen[at] = len(path)
        path.append(at)
        at = next(p for p in before[at] if p in stuck)
    circle = [names[t] for t in reversed([*path[seen[at] :], at])]
    shown = circle if len(circle) <= 8 else [*circle[:4], "…", *circle[-3:]]
    return f"the tasks wait for each other in a circle: {' → '.join(map(repr, shown))}; take one of these values out"
