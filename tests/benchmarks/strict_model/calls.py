"""The latency of a placement when each accelerator runs its part as one call: what the search weighs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import networkx

from . import contiguous
from .graph import classes, outputs
from .partitioning import Partitioning


class Calls:
    """What there is to place, in numbers: of node v `host[v]` and `call[v]` seconds (inf: not there), `nbytes[v]` on an
    accelerator, `readers[v]`, and `move[v]` seconds to move its output; `members` of a class are its nodes, which
    share a device. There are `parts` accelerators of `cap` bytes; parts are numbers, 0 for the host and 1 to `parts`
    for accelerators. From these come `reads[v]` and the class of a node, `group[v]`."""

    def __init__(
        self,
        host: Sequence[float],
        call: Sequence[float],
        nbytes: Sequence[float],
        readers: Sequence[Sequence[int]],
        move: Sequence[float],
        members: Sequence[Sequence[int]],
        parts: int,
        cap: float,
    ) -> None:
        self.host, self.call, self.nbytes = host, call, nbytes
        self.readers, self.move, self.members = readers, move, members
        self.parts, self.cap = parts, cap
        self.reads: list[list[int]] = [[] for _ in host]
        for v, own in enumerate(readers):
            for w in own:
                self.reads[w].append(v)
        self.group = [0] * len(host)
        for c, own in enumerate(members):
            for v in own:
                self.group[v] = c
        self.held = [sum(nbytes[v] for v in own) for own in members]
        self.able = [all(call[v] < math.inf for v in own) for own in members]
        self.before: list[dict[int, None]] = [{} for _ in members]
        self.after: list[dict[int, None]] = [{} for _ in members]
        for v, own in enumerate(readers):
            for w in own:
                a, b = self.group[v], self.group[w]
                if a != b:
                    self.before[b][a] = self.after[a][b] = None

    @classmethod
    def of(cls, graph: Partitioning) -> Calls:
        """A graph of the set."""
        found = outputs(graph)
        return cls(
            [node.cpu_s for node in graph.nodes],
            [math.inf if node.accelerator_s is None else node.accelerator_s for node in graph.nodes],
            [node.nbytes for node in graph.nodes],
            [readers for readers, _ in found],
            [seconds for _, seconds in found],
            classes(graph)[0],
            graph.accelerators,
            graph.cap,
        )

    def split(self, line: Sequence[Sequence[int]]) -> list[int]:
        """The part of each class in the quickest contiguous split of `line`, blocks of classes in a topological order;
        everything on the host where nothing fits."""
        place = [0] * len(self.members)
        for position, block in enumerate(line):
            for c in block:
                place[c] = position
        nodes = contiguous.Calls(
            self.host, self.call, self.nbytes, self.readers, self.move, self.parts, self.cap
        )
        found = contiguous.contiguous(nodes, [place[c] for c in self.group])
        return [found[own[0]] if found else 0 for own in self.members]

    def fits(self, at: Sequence[int]) -> bool:
        """Whether every class may be where it is, and every accelerator holds its part."""
        used = [0.0] * (self.parts + 1)
        for c, part in enumerate(at):
            if part:
                if not self.able[c]:
                    return False
                used[part] += self.held[c]
        return max(used[1:], default=0) <= self.cap

    def latency(self, at: Sequence[int]) -> float:
        """Seconds of one sample with class c on part `at[c]`; inf when calls would wait for each other.

        What `fits` looks at is not looked at here. O(nodes + edges).
        """
        group, parts, readers, move = self.group, self.parts, self.readers, self.move
        where = [at[c] for c in group]
        count = len(where)
        # A step is a call, by the number of its part, or a node on the host.
        step = [part or parts + 1 + v for v, part in enumerate(where)]
        load = [0.0] * (parts + 1 + count)
        missing = [0] * (parts + 1 + count)
        later: list[list[int]] = [[] for _ in range(parts + 1 + count)]
        used = 0
        started = [False] * (parts + 1)
        for v, part in enumerate(where):
            own = step[v]
            if part:
                load[part] += self.call[v]
                if not started[part]:
                    started[part] = True
                    used += 1
            else:
                load[own] = self.host[v]
                used += 1
            left = 0
            fetched = 0
            for w in readers[v]:
                other = step[w]
                if other != own:
                    later[own].append(other)
                    missing[other] += 1
                    left = 1
                    if other <= parts and not fetched >> other & 1:
                        fetched |= 1 << other
                        load[other] += move[v]
            if left and part:
                load[part] += move[v]
        ready = [part for part in range(1, parts + 1) if started[part] and not missing[part]]
        ready += [parts + 1 + v for v, part in enumerate(where) if not part and not missing[parts + 1 + v]]
        start = [0.0] * len(load)
        done, last = 0, 0.0
        while ready:
            s = ready.pop()
            done += 1
            end = start[s] + load[s]
            if end > last:
                last = end
            for other in later[s]:
                if end > start[other]:
                    start[other] = end
                missing[other] -= 1
                if not missing[other]:
                    ready.append(other)
        return last if done == used else math.inf


class Reach:
    """Which classes lead to which, as sets of bits: those before and after each, itself and all of a cycle included."""

    def __init__(self, before: Sequence[Sequence[int]], blocks: Sequence[Sequence[int]]) -> None:
        """`blocks` are the strongly connected classes in topological order."""
        count = len(before)
        self.up, self.down = [0] * count, [0] * count
        after: list[list[int]] = [[] for _ in range(count)]
        for c, needs in enumerate(before):
            for p in needs:
                after[p].append(c)
        for found, near, along in ((self.up, before, blocks), (self.down, after, list(reversed(blocks)))):
            for block in along:
                bits = 0
                for c in block:
                    bits |= 1 << c
                    for p in near[c]:
                        bits |= found[p]
                for c in block:
                    found[c] = bits

    def hull(self, classes: int) -> int:
        """The classes and all on a way from one of them to another."""
        up = down = 0
        for c in ones(classes):
            up |= self.up[c]
            down |= self.down[c]
        return classes | (up & down)


def ones(bits: int) -> Iterator[int]:
    """The positions of the bits that are set."""
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low


def blocks(before: Sequence[Sequence[int]]) -> list[list[int]]:
    """Classes that lead to each other together, in topological order."""
    graph = networkx.DiGraph()
    graph.add_nodes_from(range(len(before)))
    graph.add_edges_from((p, c) for c, needs in enumerate(before) for p in needs)
    whole = networkx.condensation(graph)
    return [sorted(whole.nodes[block]["members"]) for block in networkx.topological_sort(whole)]
