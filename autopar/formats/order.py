"""Tasks of a file in an order in which each follows what it reads."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from ..errors import PlanError


def topological(names: Sequence[str], before: Sequence[Sequence[int]]) -> list[int]:
    """Task numbers in file order as far as what each waits for permits (Kahn, CACM 5(11), 1962).

    `before[t]` are the tasks that t waits for. Raises PlanError naming the tasks of a cycle. O((V + E) log V).
    """
    if all(p < t for t, earlier in enumerate(before) for p in earlier):
        return list(range(len(names)))
    after: list[list[int]] = [[] for _ in names]
    missing = [0] * len(names)
    for t, earlier in enumerate(before):
        for p in set(earlier):
            after[p].append(t)
            missing[t] += 1
    ready = [t for t, count in enumerate(missing) if not count]
    found: list[int] = []
    while ready:
        t = heapq.heappop(ready)
        found.append(t)
        for later in after[t]:
            missing[later] -= 1
            if not missing[later]:
                heapq.heappush(ready, later)
    if len(found) < len(names):
        raise PlanError(_cycle(names, before, missing))
    return found


def _cycle(names: Sequence[str], before: Sequence[Sequence[int]], missing: Sequence[int]) -> str:
    """Back from any task that never became ready until one comes again."""
    at = next(t for t, count in enumerate(missing) if count)
    seen: dict[int, int] = {}
    path: list[int] = []
    while at not in seen:
        seen[at] = len(path)
        path.append(at)
        at = next(p for p in before[at] if missing[p])
    circle = [names[t] for t in reversed([*path[seen[at] :], at])]
    shown = circle if len(circle) <= 8 else [*circle[:4], "…", *circle[-3:]]
    return f"the tasks wait for each other in a circle: {' → '.join(map(repr, shown))}; take one of these values out"
