"""Clusters of clusters: chains, siblings and heavy edges contracted.

Rounds of pairs that leave the graph acyclic: Herrmann, Özkaya, Uçar, Kaya and Çatalyürek, "Multilevel algorithms for
acyclic partitioning of directed acyclic graphs", SIAM J. Sci. Comput. 41(4), 2019.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ...ir.costed import Cluster, CostedGraph
from ..model.instance import Instance
from ..model.topological import topological

HEAVIEST = 2.0
"""Times the mean that a cluster may take on its best device."""
ALIKE = 0.05
"""Share of its time that a cluster of siblings may lose for being on one device."""


def contracted(instance: Instance, count: int) -> list[int]:
    """One cluster of its cluster for each cluster, about `count` different ones, between which there is no cycle.

    An edge is contracted where its transfer takes longer than being on one device costs its ends. Clusters of colocate
    groups stay by themselves. O((V + E) log V) a round, of which there are about log(V / count).
    """
    pieces = _Pieces(instance, count)
    while len(pieces.after) > count and pieces.contract(len(pieces.after) - count):
        pass
    return [pieces.root(r) for r in range(instance.clusters)]


class _Pieces:
    """Clusters under way: by one cluster of each, its `seconds` on each device and the transfers before and after
    it."""

    def __init__(self, instance: Instance, count: int) -> None:
        everywhere = range(len(instance.devices))
        self.seconds = [
            [row[d] if d in allowed else math.inf for d in everywhere]
            for row, allowed in zip(instance.seconds, instance.allowed)
        ]
        self.least = [min(row) for row in self.seconds]
        self.limit = HEAVIEST * sum(self.least) / count
        self.alone = [group >= 0 for group in instance.group]
        self.parent = [*range(instance.clusters)]
        self.before: dict[int, dict[int, float]] = {r: {} for r in range(instance.clusters)}
        self.after: dict[int, dict[int, float]] = {r: {} for r in range(instance.clusters)}
        ways = [
            (s, d) for s in everywhere for d in everywhere if s != d and instance.latency[s][d] < math.inf
        ]
        latency = sum(instance.latency[s][d] for s, d in ways) / max(1, len(ways))
        s_per_byte = sum(instance.s_per_byte[s][d] for s, d in ways) / max(1, len(ways))
        for r, earlier in enumerate(instance.before):
            for p in earlier:
                self._join(p, r, 0.0)
            for v in instance.reads[r]:
                if instance.maker[v] not in (-1, r):
                    self._join(instance.maker[v], r, latency + s_per_byte * instance.bytes[v])

    def _join(self, p: int, r: int, travel: float) -> None:
        self.after[p][r] = self.before[r][p] = self.after[p].get(r, 0.0) + travel

    def root(self, r: int) -> int:
        """The cluster that stands for the cluster of a cluster."""
        while self.parent[r] != r:
            self.parent[r] = r = self.parent[self.parent[r]]
        return r

    def contract(self, most: int) -> int:
        """Merge pairs of clusters, `most` at most, and say how many."""
        order = topological(self.before)
        level: dict[int, int] = {}
        for r in order:
            level[r] = 1 + max((level[p] for p in self.before[r]), default=0)
        pairs = self._edges(order, level)
        paired = {r for pair in pairs for r in pair}
        pairs += self._siblings([r for r in order if r not in paired and not self.alone[r]])
        for u, v in pairs[:most]:
            self._merge(u, v)
        return min(most, len(pairs))

    def _edges(self, order: Sequence[int], level: dict[int, int]) -> list[tuple[int, int]]:
        """Edges to contract, of which no two meet, those that save most first."""
        gains = []
        for u in order:
            for v, travel in self.after[u].items():
                least = self._together(u, v)
                gain = travel - (least - self.least[u] - self.least[v])
                if least <= self.limit and gain > 0 and not (self.alone[u] or self.alone[v]):
                    gains.append((-gain / least if least else -math.inf, u, v))
        found: list[tuple[int, int]] = []
        paired: set[int] = set()
        for _, u, v in sorted(gains):
            if u in paired or v in paired:
                continue
            later, earlier = self.after[u], self.before[v]
            # A way round a cycle must lose in some clusters the level that each edge adds: it enters at `v` and leaves
            # from `u`, which is one above, for another such cluster. Without pairs beside a pair there is none, and
            # clusters grow evenly.
            if not paired.isdisjoint(later) or not paired.isdisjoint(earlier):
                continue
            if len(later) > 1 and len(earlier) > 1 and level[v] > level[u] + 1:
                continue
            paired |= {u, v}
            found.append((u, v))
        return found

    def _siblings(self, order: Sequence[int]) -> list[tuple[int, int]]:
        """Pairs with the same clusters before and after them."""
        single: dict[object, int] = {}
        found = []
        for r in order:
            key = frozenset(self.before[r]), frozenset(self.after[r])
            other = single.setdefault(key, r)
            if other == r or not any(key):
                continue
            least = self._together(other, r)
            if least <= self.limit and least - self.least[r] - self.least[other] <= ALIKE * least:
                found.append((other, r))
                del single[key]
            else:
                single[key] = r
        return found

    def _together(self, u: int, v: int) -> float:
        return min(a + b for a, b in zip(self.seconds[u], self.seconds[v]))

    def _merge(self, u: int, v: int) -> None:
        self.parent[v] = u
        self.seconds[u] = [a + b for a, b in zip(self.seconds[u], self.seconds[v])]
        self.least[u] = min(self.seconds[u])
        later, earlier = self.after.pop(v), self.before.pop(v)
        for r in later:
            del self.before[r][v]
        for p in earlier:
            del self.after[p][v]
        for r, travel in later.items():
            self._join(u, r, travel)
        for p, travel in earlier.items():
            if p != u:
                self._join(p, u, travel)


def joined(instance: Instance, number: Sequence[int]) -> CostedGraph:
    """The graph with clusters of one `number` as one, named after the first that has it."""
    costed, names = instance.costed, instance.names
    members: dict[int, list[int]] = {}
    for r, c in enumerate(number):
        members.setdefault(c, []).append(r)
    before = {c: {number[p] for r in own for p in instance.before[r]} - {c} for c, own in members.items()}
    wanted = {*costed.graph.outputs, *(made for made, _ in costed.graph.updates)}
    clusters = []
    for c in topological(before):
        own = [costed.clusters[r] for r in members[c]]
        makes = [
            name
            for cluster in own
            for name in cluster.makes
            if name in wanted or any(number[r] != c for r in instance.readers[instance.value[name]])
        ]
        inside = {name for cluster in own for name in cluster.makes}
        allowed = [
            d for d in range(len(instance.devices)) if all(d in instance.allowed[r] for r in members[c])
        ]
        whole = {d: sum(instance.seconds[r][d] for r in members[c]) for d in allowed}
        clusters.append(
            Cluster(
                name=names[c],
                tasks=tuple(task for cluster in own for task in cluster.tasks),
                seconds=tuple(whole.get(d) for d in range(len(instance.devices))),
                dispatch_s=sum(cluster.dispatch_s for cluster in own),
                reads=tuple(dict.fromkeys(n for cluster in own for n in cluster.reads if n not in inside)),
                makes=tuple(makes),
                after=tuple(names[p] for p in sorted(before[c])),
                colocate=own[0].colocate,
            )
        )
    return replace(costed, clusters=tuple(clusters))
