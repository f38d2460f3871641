"""HEFT: list scheduling by earliest finish with insertion, with copy queues, buses, host and memory as
resources; ranks, which are the priorities of clusters; and the cost to go from each cluster on each device.

Topcuoglu, Hariri and Wu, "Performance-effective and low-complexity task scheduling for heterogeneous computing", IEEE
TPDS 13(3), 2002.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..bounds.critical_path import tails
from ..model.instance import Hop, Instance
from ..model.simulator import Schedule, in_order
from ..model.slots import Slots, find_all
from .memory_first import tracked


def heft(instance: Instance, room: float = 1.0) -> Schedule:
    """Schedule by HEFT: clusters by rank, each on the device with the earliest finish."""
    return list_schedule(instance, "heft", urgent_first(instance), room=room)


def lookahead(instance: Instance, room: float = 1.0) -> Schedule:
    """Schedule by HEFT with lookahead: clusters by rank, each where its finish plus the best remaining path is
    earliest."""
    return list_schedule(instance, "heft+lookahead", urgent_first(instance), cost_to_go(instance), room=room)


def list_schedule(
    instance: Instance,
    policy: str,
    order: Sequence[int],
    to_go: Sequence[Sequence[float]] | None = None,
    *,
    stay: float = 0.0,
    allowed: Sequence[Sequence[int]] | None = None,
    room: float = 1.0,
) -> Schedule:
    """Place clusters in topological `order`, each on the `allowed` device with the least finish + `to_go` + `stay` ×
    seconds of the transfers it needs there.

    Memory caps, times `room`, are respected as far as the order of placement can tell; the simulator decides. Near
    linear in clusters, reads and devices.
    """
    work = _Work(instance, room, stay)
    for r in order:
        work.place(r, (allowed or instance.allowed)[r], to_go[r] if to_go else None)
    return work.schedule(policy)


def placed(
    instance: Instance, order: Sequence[int], to_go: Sequence[Sequence[float]], stay: float
) -> tuple[list[int], list[float]]:
    """Return the device and start of each cluster in a list schedule with these weights, without caps."""
    work = _Work(instance, 1.0, stay)
    for r in order:
        work.place(r, instance.allowed[r], to_go[r])
    start = [0.0] * instance.clusters
    for begin, _, _, r, _, _ in work.placed:
        start[r] = begin
    return work.device, start


class _Work:
    """A partial list schedule."""

    def __init__(self, instance: Instance, room: float, stay: float) -> None:
        self.instance, self.stay = instance, stay
        self.queues = [[Slots() for _ in lanes] for lanes in instance.lane_names]
        self.copies = [Slots() for _ in instance.copy_lanes]
        self.wires = [Slots() for _ in range(instance.wires)]
        self.host = Slots()
        self.end = [0.0] * instance.clusters
        # When each value is on each device that has it, and the device that sends it.
        self.there: list[dict[int, float]] = [{home: 0.0} if home >= 0 else {} for home in instance.home]
        self.source = list(instance.home)
        self.placed: list[tuple[float, float, int, int, int, int]] = []
        self.moved: list[tuple[float, float, int, int, Hop]] = []
        self.chosen = [-1] * len(instance.members)
        self.device = [-1] * instance.clusters
        self.carries = any(instance.carry)
        self.room = tracked(instance, room)

    def place(self, r: int, allowed: Sequence[int], to_go: Sequence[float] | None) -> None:
        """Place a cluster on its best device, with the transfers it needs."""
        instance = self.instance
        group = instance.group[r]
        if group >= 0 and self.chosen[group] >= 0:
            allowed = (self.chosen[group],)
        if self.room:
            allowed = self.room.fitting(r, allowed, self.there)
        base = 0.0
        for p in instance.before[r]:
            if self.end[p] > base:
                base = self.end[p]
        if len(allowed) == 1:
            d = allowed[0]
            lane, start = self._slot(r, d, self._bring(r, d, base))
        else:
            d, lane, start = self._best(r, allowed, to_go, base)
            ready = self._bring(r, d, base)
            if ready > start:
                lane, start = self._slot(r, d, ready)
        length = instance.seconds[r][d]
        self.queues[d][lane].take(start, length)
        if instance.dispatch[r]:
            self.host.take(start, instance.dispatch[r])
        self.end[r] = end = start + length
        self.device[r] = d
        self.placed.append((start, end, len(self.placed), r, d, lane))
        if self.room:
            self.room.settle(r, d, self.there)
        for v in instance.makes[r]:
            self.there[v][d] = end
            self.source[v] = d
        if group >= 0:
            self.chosen[group] = d

    def _best(
        self, r: int, allowed: Sequence[int], to_go: Sequence[float] | None, base: float
    ) -> tuple[int, int, float]:
        """Return the device with the least finish plus remaining path, with the cluster's lane and start there."""
        # Estimate as if all inputs were there already; devices that lose even so are skipped below.
        options = []
        seconds = self.instance.seconds[r]
        for d in allowed:
            lane, start = self._slot(r, d, base)
            rest = to_go[d] if to_go else 0.0
            if self.carries:
                rest = max(rest, self._carrying(r, d))
            options.append((start + seconds[d] + rest, d, lane, start, rest))
        options.sort()
        sources = []
        for v in self.instance.reads[r]:
            there, source = self.there[v], self.source[v]
            sources.append((there, source, there[source], self.instance.bytes[v]))
        best = (math.inf, len(self.queues))
        chosen = options[0][1:4]
        for least, d, lane, start, rest in options:
            if (least, d) > best:
                break
            ready, moved = self._arrival(sources, d, base, best[0] - seconds[d] - rest)
            if ready > start:
                lane, start = self._slot(r, d, ready)
            score = start + seconds[d] + rest + self.stay * moved
            if (score, d) < best:
                best = score, d
                chosen = d, lane, start
        return chosen

    def _carrying(self, r: int, d: int) -> float:
        """Return the seconds to send new values of carried state from a device to their home and all their readers."""
        instance, longest = self.instance, 0.0
        for v in instance.makes[r]:
            if instance.carry[v]:
                wanted = {*instance.deliver[v], *(self.device[h] for h in instance.carry[v])} - {-1}
                longest = max(longest, *(instance.travel(v, d, e) for e in wanted))
        return longest

    def _slot(self, r: int, d: int, ready: float) -> tuple[int, float]:
        """Return the lane and the earliest start of a cluster on a device."""
        length, dispatch = self.instance.seconds[r][d], self.instance.dispatch[r]
        if ready == math.inf:
            return 0, math.inf
        first, chosen = math.inf, 0
        for lane, queue in enumerate(self.queues[d]):
            if dispatch:
                start = find_all(((queue, length), (self.host, dispatch)), ready)
            else:
                start = queue.find(ready, length)
            if start < first:
                first, chosen = start, lane
                if start == ready:
                    break
        return chosen, first

    def _arrival(
        self, sources: Sequence[tuple[dict[int, float], int, float, int]], d: int, ready: float, limit: float
    ) -> tuple[float, float]:
        """Return when all `sources` are on a device (or any time past `limit`), and the seconds of the
        transfers.

        Transfers that are not yet reserved are queued one after the other.
        """
        last: dict[int, float] = {}
        moved = 0.0
        for there, source, time, nbytes in sources:
            if d in there:
                time = there[d]
            else:
                hops = self.instance.route[source][d]
                if hops is None:
                    return math.inf, 0.0
                for hop in hops:
                    if hop.dst in there:
                        time = there[hop.dst]
                        continue
                    seconds = hop.latency_s + nbytes * hop.s_per_byte
                    moved += seconds
                    lane = hop.lane
                    if lane < 0:
                        time += seconds
                        continue
                    if lane in last and last[lane] > time:
                        time = last[lane]
                    last[lane] = time = self._copy_slot(hop, seconds, time) + seconds
            if time > ready:
                ready = time
                if ready > limit:
                    break
        return ready, moved

    def _bring(self, r: int, d: int, ready: float) -> float:
        """Reserve the transfers of a cluster's inputs to its device; return the end of the last one."""
        for v in self.instance.reads[r]:
            there = self.there[v]
            time = there[d] if d in there else self._send(v, d)
            if time > ready:
                ready = time
        return ready

    def _send(self, v: int, d: int) -> float:
        """Reserve the transfer of a value to a device, unless it is there; return its arrival."""
        there = self.there[v]
        if d in there:
            return there[d]
        hops = self.instance.route[self.source[v]][d]
        if hops is None:
            return math.inf
        time = there[self.source[v]]
        for hop in hops:
            if hop.dst not in there:
                seconds = hop.latency_s + self.instance.bytes[v] * hop.s_per_byte
                start = time
                if hop.lane >= 0:
                    start = self._copy_slot(hop, seconds, time)
                    self.copies[hop.lane].take(start, seconds)
                if hop.wire >= 0:
                    self.wires[hop.wire].take(start, seconds)
                there[hop.dst] = start + seconds
                self.moved.append((start, start + seconds, len(self.moved), v, hop))
                if self.room:
                    self.room.copy(v, hop.dst)
            time = there[hop.dst]
        return time

    def _copy_slot(self, hop: Hop, seconds: float, ready: float) -> float:
        queue = self.copies[hop.lane]
        if hop.wire < 0:
            return queue.find(ready, seconds)
        return find_all(((queue, seconds), (self.wires[hop.wire], seconds)), ready)

    def schedule(self, policy: str) -> Schedule:
        """Return the resulting orders, with the deliveries to the caller and of carried state at the end."""
        instance = self.instance
        clusters = (placed[3:] for placed in sorted(self.placed))
        for v, devices in enumerate(instance.deliver):
            for d in dict.fromkeys((*devices, *(self.device[r] for r in instance.carry[v]))):
                self._send(v, d)
        moves = (moved[3:] for moved in sorted(self.moved, key=lambda move: move[:4]))
        return in_order(instance, policy, clusters, moves)


def urgent_first(instance: Instance, copies: float = 1.0) -> list[int]:
    """Return clusters by decreasing upward rank: seconds from the start of each to the end along its longest path,
    averaged over its devices, with transfers weighted by `copies`.

    Ties are in graph order, so the order is topological.
    """
    latency, s_per_byte = (
        copies * _typical(instance, times) for times in (instance.latency, instance.s_per_byte)
    )
    rank = [0.0] * instance.clusters
    for r in reversed(range(instance.clusters)):
        longest = max((rank[later] for later in instance.after[r]), default=0.0)
        for v in instance.makes[r]:
            travel = latency + instance.bytes[v] * s_per_byte
            for later in instance.readers[v]:
                longest = max(longest, rank[later] + travel)
        seconds = [instance.seconds[r][d] for d in instance.allowed[r]]
        rank[r] = longest + sum(seconds) / len(seconds)
    return sorted(range(instance.clusters), key=lambda r: (-rank[r], r))


def placed_first(instance: Instance, allowed: Sequence[Sequence[int]]) -> list[int]:
    """Return clusters by decreasing upward rank, where the devices of many are known.

    Each cluster counts its `allowed` devices by their lanes and their speed for it, which approximates its likely
    device, and a transfer by the likelihood that it leaves its device. Ties are in graph order, so the order is
    topological.
    """
    shares = [_shares(instance, r, allowed[r]) for r in range(instance.clusters)]
    latency, s_per_byte = (_typical(instance, times) for times in (instance.latency, instance.s_per_byte))
    rank = [0.0] * instance.clusters
    for r in reversed(range(instance.clusters)):
        own = sum(share * s for share, s in zip(shares[r], instance.seconds[r]) if share)
        longest = max((rank[later] for later in instance.after[r]), default=0.0)
        for v in instance.makes[r]:
            travel = latency + instance.bytes[v] * s_per_byte
            for later in instance.readers[v]:
                apart = 1.0 - sum(a * b for a, b in zip(shares[r], shares[later]))
                longest = max(longest, rank[later] + apart * travel)
            for target in instance.deliver[v]:
                longest = max(longest, (1.0 - shares[r][target]) * travel)
            for holder in instance.carry[v]:
                apart = 1.0 - sum(a * b for a, b in zip(shares[r], shares[holder]))
                longest = max(longest, apart * travel)
        rank[r] = own + longest
    return sorted(range(instance.clusters), key=lambda r: (-rank[r], r))


def cost_to_go(instance: Instance) -> list[list[float]]:
    """Return the seconds from the end of each cluster on each device to the end, with every later cluster on its best
    device; 0 if it cannot run there.

    The optimistic cost table of PEFT (Arabnejad and Barbosa, IEEE TPDS 25(3), 2014), deliveries included.
    """
    tail = tails(instance)
    seconds: list[list[float]] = np.where(np.isfinite(tail), tail, 0.0).tolist()
    return seconds


def _shares(instance: Instance, cluster: int, allowed: Sequence[int]) -> list[float]:
    raw = [0.0] * len(instance.devices)
    fastest = min(instance.seconds[cluster][d] for d in allowed)
    for d in allowed:
        seconds = instance.seconds[cluster][d]
        speed = fastest / seconds if seconds > 0 else 1.0
        raw[d] = speed * instance.widths[d]
    total = sum(raw) or 1.0
    return [share / total for share in raw]


def _typical(instance: Instance, matrix: list[list[float]]) -> float:
    everywhere = range(len(matrix))
    known = [
        matrix[s][d] for s in everywhere for d in everywhere if s != d and instance.latency[s][d] < math.inf
    ]
    return sum(known) / len(known) if known else 0.0
