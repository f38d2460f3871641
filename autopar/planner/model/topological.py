"""Numbers in topological order."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping


def topological(before: Mapping[int, Collection[int]]) -> list[int]:
    """The keys of `before`, each after those it lists there, of all that are ready the smallest first.

    Kahn, "Topological sorting of large networks", CACM 5(11), 1962. What is in a cycle, or waits for one, is left
    out. O((V + E) log V).
    """
    after: dict[int, list[int]] = {number: [] for number in before}
    missing: dict[int, int] = {}
    for number, earlier in before.items():
        distinct = set(earlier)
        missing[number] = len(distinct)
        for p in distinct:
            after[p].append(number)
    ready = [number for number, count in missing.items() if not count]
    heapq.heapify(ready)
    found: list[int] = []
    while ready:
        number = heapq.heappop(ready)
        found.append(number)
        for later in after[number]:
            missing[later] -= 1
            if not missing[later]:
                heapq.heappush(ready, later)
    return found
