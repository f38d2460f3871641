"""Topological orders: depth first, which keeps the inputs of a task together, or smallest number first. Also
reverses the edges of a graph."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

K = TypeVar("K", bound=Any)


def inverse(before: Sequence[Iterable[int]]) -> list[list[int]]:
    """Return the successors of each number, in rising order, from its predecessors (or vice versa)."""
    after: list[list[int]] = [[] for _ in before]
    for r, earlier in enumerate(before):
        for p in earlier:
            after[p].append(r)
    return after


def late(before: Sequence[Sequence[int]], reverse: bool = False) -> list[int]:
    """Order numbers depth first, each after its predecessors in `before` and as late as possible.

    Starts from each number without successors in turn; not recursive. `reverse` visits predecessors in the
    opposite order. In a cycle, the number visited first comes last.
    """
    count = len(before)
    wanted = [False] * count
    for needs in before:
        for p in needs:
            wanted[p] = True
    roots = [v for v in range(count) if not wanted[v]] + list(range(count))
    seen, found = [False] * count, []
    for root in roots:
        if seen[root]:
            continue
        seen[root] = True
        path = [(root, 0)]
        while path:
            v, at = path.pop()
            needs = before[v]
            while at < len(needs) and seen[needs[-1 - at if reverse else at]]:
                at += 1
            if at == len(needs):
                found.append(v)
                continue
            path.append((v, at + 1))
            p = needs[-1 - at if reverse else at]
            seen[p] = True
            path.append((p, 0))
    return found


def topological(before: Mapping[K, Collection[K]]) -> list[K]:
    """Order the keys of `before` topologically by Kahn's algorithm, the smallest ready one first.

    Kahn, "Topological sorting of large networks", CACM 5(11), 1962. Keys in a cycle, or behind one, are left out. O((V
    + E) log V).
    """
    after: dict[K, list[K]] = {number: [] for number in before}
    missing: dict[K, int] = {}
    for number, earlier in before.items():
        distinct = set(earlier)
        missing[number] = len(distinct)
        for p in distinct:
            after[p].append(number)
    ready = [number for number, count in missing.items() if not count]
    heapq.heapify(ready)
    found: list[K] = []
    while ready:
        number = heapq.heappop(ready)
        found.append(number)
        for later in after[number]:
            missing[later] -= 1
            if not missing[later]:
                heapq.heappush(ready, later)
    return found
