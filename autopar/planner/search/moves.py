"""What may be changed in a schedule: runs of its critical paths to other places, runs that change places, and many runs
to another device at once.

A run goes where it delays the end least: the best insertion of Mastrolilli and Gambardella ("Effective neighbourhood
functions for the flexible job shop problem", Journal of Scheduling 3(1), 2000), with transfers. What a change of one or
two runs makes of the paths through them is estimated from when the rest begins and how long it takes after them.
"""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import zip_longest

from .evaluate import NEAR, Timed
from .network import Network

Places = tuple[tuple[int, int, float], ...]
"""Runs, the devices they go to and their new keys."""
CRITICAL = 0.9
"""How often a run of a critical path is taken."""
BESIDE = 0.5
"""How often the device of a run beside it is tried."""
CLOSE = 2
"""Places from the best at most to that of a run to change places with."""
GATHERED = 12
"""Runs that are moved together at most."""


class Neighbourhood:
    """The schedule at hand, `now`, and its neighbours. `keys` are the places of the runs in the order of starts."""

    def __init__(self, network: Network, draw: random.Random, now: Timed) -> None:
        self.network, self.draw, self.problem = network, draw, network.problem
        self.stand(now)

    def stand(self, now: Timed) -> None:
        """Let a schedule be the one at hand."""
        now.tails()
        self.now, self.device = now, now.device
        self.keys = [0.0] * len(now.device)
        for at, r in enumerate(sorted(now.served.numbers, key=lambda r: (now.start[r], now.end[r], r))):
            self.keys[r] = float(at)
        self.critical = now.critical()
        self._reached: dict[tuple[int, int], tuple[float, float]] = {}
        self._queues: dict[int, tuple[list[int], list[float], list[float], list[float]]] = {}

    def run(self) -> int:
        """A run to be moved."""
        if self.draw.random() < CRITICAL:
            return self._one(self.critical)
        return int(self.draw.random() * self.network.runs)

    def moved(self, run: int, limit: float) -> tuple[float, Places] | None:
        """A run on another device where it delays the end least, and an estimate in seconds; None where that is above
        `limit`, or nothing changes."""
        draw, allowed, near = self.draw, self.problem.allowed[run], self.network.near[run]
        d = self._one(allowed)
        if near and draw.random() < BESIDE:
            d = self.device[self._one(near)]
        if d not in allowed or d == self.device[run]:
            return None
        own = self.network.seconds[run][d]
        ready, after = self._reach(run, d)
        if ready + own + after > limit:
            return None
        low, high = self._between(run, d)
        queue, keys, ends, tails = self._queue(d)
        first, last = bisect_right(keys, low), bisect_left(keys, high)
        one = self.network.lanes[d] == 1
        if one:
            near_ready, near_after = sorted((bisect_right(ends, ready), bisect_left(tails, -after)))
            first, last = min(max(near_ready, first), last), min(max(near_after, first), last)
        at = first + int(draw.random() * (last - first + 1))
        if at:
            low = max(low, keys[at - 1])
            ready = max(ready, ends[at - 1]) if one else ready
        if at < len(queue):
            high = min(high, keys[at])
            after = max(after, -tails[at]) if one else after
        if ready + own + after > limit:
            return None
        return ready + own + after, ((run, d, self.inside(low, high)),)

    def shifted(self, run: int, limit: float) -> tuple[float, Places] | None:
        """A run elsewhere in the order of its device, as `moved`; None too where nothing is gained by it, for there are
        too many orders that are as good as the one at hand."""
        runs, was, d = self.network.runs, self.keys[run], self.device[run]
        low, high = self._between(run, d)
        reach = 0.15 * runs + 2 if self.draw.random() < 0.7 else runs
        key = self.inside(max(low, was - reach), min(high, was + reach))
        queue, keys, ends, tails = self._queue(d)
        at = bisect_left(keys, key)
        if run in queue[max(0, at - 1) : at + 1]:
            return None
        own = self.network.seconds[run][d]
        ready, after = self._reach(run, d)
        if self.network.lanes[d] == 1:
            # Those between its places begin sooner by its seconds at most, or end so much later.
            if at:
                ready = max(ready, ends[at - 1] - (own if key > was else 0.0))
            if at < len(queue):
                after = max(after, -tails[at] - (own if key < was else 0.0))
        length = ready + own + after
        return (length, ((run, d, key),)) if length < min(limit, self.now.makespan * (1 - NEAR)) else None

    def exchanged(self, run: int, limit: float) -> tuple[float, Places] | None:
        """A run and one of another device in each other's place, as `moved`."""
        d, e = self.device[run], self._one(self.problem.allowed[run])
        queue, _, ends, _ = self._queue(e)
        if d == e or not queue:
            return None
        at = bisect_right(ends, self._reach(run, e)[0]) + int((2 * CLOSE + 1) * self.draw.random()) - CLOSE
        other = queue[min(max(at, 0), len(queue) - 1)]
        if other >= self.network.runs:
            return None
        own, its = self.keys[run], self.keys[other]
        low, high = self._between(run, e)
        least, most = self._between(other, d)
        if d not in self.problem.allowed[other] or not (low < its < high and least < own < most):
            return None
        longest = max(self._instead(run, other, e), self._instead(other, run, d))
        return (longest, ((run, e, its), (other, d, own))) if longest <= limit else None

    def _instead(self, run: int, other: int, d: int) -> float:
        """The estimate for a run in the place of another on its device."""
        ready, after = self._reach(run, d)
        if self.network.lanes[d] == 1:
            queue, keys, ends, tails = self._queue(d)
            at = bisect_left(keys, self.keys[other])
            if at:
                ready = max(ready, ends[at - 1])
            if at + 1 < len(queue):
                after = max(after, -tails[at + 1])
        return ready + self.network.seconds[run][d] + after

    def gathered(self, run: int) -> list[int] | None:
        """The devices with a run and some that are joined to it there on another; None if nothing changes."""
        draw, device = self.draw, [*self.device]
        source, target = device[run], int(draw.random() * self.network.devices)
        size = 2 + int(draw.random() * (max(2, min(GATHERED, self.network.runs // 3)) - 1))
        found, edge = {run: None}, [run]
        while edge:
            r = edge.pop(int(draw.random() * len(edge)))
            for other in self.network.near[r]:
                if other not in found and device[other] == source and len(found) < size:
                    found[other] = None
                    edge.append(other)
        for r in found:
            if target in self.problem.allowed[r]:
                device[r] = target
        return device if target != source else None

    def stretched(self, run: int) -> list[int] | None:
        """The devices with all of a stretch of the order that are on the device of a run, or all of it, on another,
        and perhaps those of that one on the first; None if nothing changes."""
        draw, device = self.draw, [*self.device]
        source, target = device[run], int(draw.random() * self.network.devices)
        length = 2 * (self.network.runs / 2) ** draw.random()
        first = self.keys[run] - length * draw.random()
        how = draw.random()
        for r, key in enumerate(self.keys[: self.network.runs]):
            if first <= key <= first + length:
                if (device[r] == source or how < 0.2) and target in self.problem.allowed[r]:
                    device[r] = target
                elif device[r] == target and how > 0.6 and source in self.problem.allowed[r]:
                    device[r] = source
        return device if target != source else None

    def still(self, device: Sequence[int], keys: Sequence[float], of: Sequence[int]) -> list[float]:
        """Seconds that follow each run when the schedule at hand is changed to these: as long as now behind all that
        is changed, and at best elsewhere."""
        runs = self.network.runs
        changed = [
            max(new, old)
            for new, old, d, e in zip(keys[:runs], self.keys, device, self.device)
            if d != e or new != old
        ]
        own = zip(self.now.of, self.device[runs + 1 :], self.keys[runs + 1 :])
        its = zip(of, device[runs + 1 :], keys[runs + 1 :])
        for pair in zip_longest(own, its):
            if pair[0] != pair[1]:
                changed += [copy[2] for copy in pair if copy]
        last = max(changed, default=-1.0)
        # What reads from a run need not wait for it where there are copies of it.
        found = [
            tail if key > last else 0.0 if r in of else row[d]
            for r, (tail, key, row, d) in enumerate(zip(self.now.tail, self.keys, self.network.to_go, device))
        ]
        return found + [0.0] * (len(device) - runs)

    def _reach(self, run: int, device: int) -> tuple[float, float]:
        found = self._reached.get((run, device))
        if found is None:
            found = self._reached[run, device] = self.now.reach(run, device)
        return found

    def _queue(self, device: int) -> tuple[list[int], list[float], list[float], list[float]]:
        """The runs of a device in order, their keys, their ends, and, below 0, the seconds from their starts on."""
        found = self._queues.get(device)
        if found is None:
            now, seconds, keys = self.now, self.now.served.seconds, self.keys
            queue = sorted((r for r, d in enumerate(self.device) if d == device), key=keys.__getitem__)
            tails = [-(seconds[r][device] + now.tail[r]) for r in queue]
            found = queue, [keys[r] for r in queue], [now.end[r] for r in queue], tails
            self._queues[device] = found
        return found

    def _between(self, run: int, device: int) -> tuple[float, float]:
        """The keys of the last of those that a run would wait for on a device and of the first that wait for it."""
        keys, served = self.keys, self.now.served
        low = max([keys[served.on.get((p, device), p)] for p in self.problem.before[run]], default=-1.0)
        later = (i for s in self.problem.after[run] for i in served.each.get(s, (s,)))
        waiting = (keys[i] for i in later if (run, self.device[i]) not in served.on)
        return low, min(waiting, default=float(len(served.numbers)))

    def inside(self, low: float, high: float) -> float:
        """A key between two."""
        return low + (high - low) * (0.01 + 0.98 * self.draw.random())

    def _one(self, runs: Sequence[int]) -> int:
        """As `choice`, which takes longer than most of what is done with what it chooses."""
        return runs[int(self.draw.random() * len(runs))]
