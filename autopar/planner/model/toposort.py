"""Orders that keep together what is read together."""

from __future__ import annotations

from collections.abc import Callable, Sequence


def late(before: Sequence[Sequence[int]], reverse: bool = False) -> list[int]:
    """Numbers in an order in which each follows those of `before` that it needs, as late as they can be: those that
    nobody waits for are asked for one after the other, each after all it needs (depth first, without recursion).

    `reverse` asks in the opposite order. In a cycle the one met first comes last.
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


def early(before: Sequence[Sequence[int]], choose: Callable[[list[int]], int]) -> list[int]:
    """Numbers in an order in which each follows those of `before` that it needs, as soon as they are done; `choose`
    names the position of the next among those that are ready. What is in a cycle is left out."""
    after: list[list[int]] = [[] for _ in before]
    for v, needs in enumerate(before):
        for p in needs:
            after[p].append(v)
    missing = [len(needs) for needs in before]
    ready = [v for v, count in enumerate(missing) if not count]
    found = []
    while ready:
        v = ready.pop(choose(ready))
        found.append(v)
        for w in after[v]:
            missing[w] -= 1
            if not missing[w]:
                ready.append(w)
    return found
