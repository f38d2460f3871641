"""Topological orders: depth first, which keeps the inputs of a task together, or smallest number first; and the edges
of a graph the other way."""

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


def depth_first_order(before: Sequence[Sequence[int]]) -> list[int]:
    """Order numbers depth first, each after its predecessors in `before` and as late as possible.

    Starts from each number without successors in turn; not recursive. In a cycle, the number visited first comes last.
    """
    count = len(before)
    wanted = {p for earlier in before for p in earlier}
    visited, order = [False] * count, []
    for root in (*(v for v in range(count) if v not in wanted), *range(count)):
        if visited[root]:
            continue
        visited[root] = True
        path = [(root, iter(before[root]))]
        while path:
            v, rest = path[-1]
            p = next((p for p in rest if not visited[p]), None)
            if p is None:
                order.append(v)
                path.pop()
            else:
                visited[p] = True
                path.append((p, iter(before[p])))
    return order


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
    order: list[K] = []
    while ready:
        number = heapq.heappop(ready)
        order.append(number)
        for later in after[number]:
            missing[later] -= 1
            if not missing[later]:
                heapq.heappush(ready, later)
    return order
