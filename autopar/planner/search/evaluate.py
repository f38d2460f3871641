"""One list of runs as wires serve it that nobody holds back; it gives up early, and knows what is critical."""

from __future__ import annotations

import math
from collections.abc import Sequence
from heapq import heappop, heappush

from ..model.orders import in_order
from ..model.simulator import Schedule
from .network import Hops, Network, Served

Sent = tuple[int, int, int, int, int, int, float, float]
"""A transfer: the run that makes the value (R: none), the value, where it comes from and goes to, its wire and queue,
its seconds, and when it is there."""
NEAR = 1e-9
"""Share of the makespan below which a delay counts as none."""


class Timed:
    """A list with its times: each device starts its runs in the order of their `keys`, as early as it can, also where
    it has several lanes; or, if `eager`, whatever it can start, the least key first.

    Of run r: `device`, `lane`, `start`, `end`, and `ready`, when all it waits for is there. `ended` has the runs by
    end, `sent` the transfers in the order in which they were asked for, `there[v]` when a value that several runs read
    comes to each device. `makespan` is inf where no way leads or runs wait for each other, and where a run ends less
    than `after[r]` seconds before `limit`, which ends the matter. Second hops of a way are asked for with the first.
    Numbers above R are copies of the runs `of` (`copies.Served`). O(V log V + E).
    """

    def __init__(
        self,
        network: Network,
        device: Sequence[int],
        keys: Sequence[float],
        limit: float = math.inf,
        after: Sequence[float] | None = None,
        eager: bool = False,
        of: Sequence[int] = (),
    ) -> None:
        self.network, self.device, self.keys, self.eager, self.of = network, device, keys, eager, of
        self.served = Served(network, device, of) if of else network
        count = len(device)
        self.ready = [0.0] * count
        self.start, self.end = [0.0] * count, [0.0] * count
        self.lane = [0] * count
        self.sent: list[Sent] = []
        self.there: dict[int, dict[int, float]] = {}
        self.ended: list[int] = []
        self.makespan = math.inf
        if after is None:
            after = [0.0] * count if of else [row[d] for row, d in zip(network.to_go, device)]
        self._play(limit, after)

    def _play(self, limit: float, after: Sequence[float]) -> None:
        network, served, device, keys, eager = self.network, self.served, self.device, self.keys, self.eager
        runs, wires, hops = network.runs, network.wires, network.hops
        seconds, makes, later, numbers = served.seconds, served.makes, served.later, served.numbers
        last_number = max(runs, len(device) - 1)
        nbytes, latency, s_per_byte = network.bytes, network.latency, network.s_per_byte
        ready, start, end, ended, lane = self.ready, self.start, self.end, self.ended, self.lane
        missing, home = served.waits[:], network.problem.home
        queues: list[list[int]] = [[] for _ in network.lanes]
        at, begun = [0] * len(queues), [0.0] * len(queues)
        free = [[0.0] * count for count in network.lanes]
        pool: list[list[tuple[float, int]]] = [[] for _ in queues]
        idle = [[*range(count)] for count in network.lanes]
        touched: set[int] = set()
        if not eager:
            for r in sorted(numbers, key=keys.__getitem__):
                queues[device[r]].append(r)
        busy = [0.0] * (wires + 1)
        # Ends by number, and, if eager, those that have all they wait for by theirs beyond the last.
        events: list[tuple[float, int]] = []
        able = [r for r in numbers if not missing[r]]
        last, now, run = 0.0, 0.0, runs
        while True:
            for v, readers, deliver in makes[run] if run <= last_number else ():
                source = device[run] if run != runs else home[v]
                if not wires:
                    first, each = latency[source], s_per_byte[source]
                    for d in deliver:
                        last = max(last, now + (first[d] + nbytes[v] * each[d]))
                    for r in readers:
                        d = device[r]
                        came = now + (first[d] + nbytes[v] * each[d])
                        if came > ready[r]:
                            ready[r] = came
                        missing[r] -= 1
                        if not missing[r]:
                            able.append(r)
                    continue
                there = {source: now}
                if run <= runs and (self.of or len(readers) > 1 or deliver):
                    self.there[v] = there
                    for d in sorted({device[r] for r in readers}.union(deliver)):
                        if d not in there:
                            self._carry(run, v, hops[source][d], source, there, busy)
                    for d in deliver:
                        last = max(last, there[d])
                elif readers and device[readers[0]] != source:
                    self._carry(run, v, hops[source][device[readers[0]]], source, there, busy)
                for r in readers:
                    came = there[device[r]]
                    if came > ready[r]:
                        ready[r] = came
                    missing[r] -= 1
                    if not missing[r]:
                        able.append(r)
            for r in later[run] if run <= last_number else ():
                if now > ready[r]:
                    ready[r] = now
                missing[r] -= 1
                if not missing[r]:
                    able.append(r)
            if eager:
                for r in able:
                    heappush(events, (ready[r], last_number + 1 + r))
                if not events or events[0][0] > now:
                    for d in touched:
                        while pool[d] and idle[d]:
                            r = heappop(pool[d])[1]
                            finish = now + seconds[r][d]
                            if finish + after[r] > limit:
                                return
                            start[r], lane[r] = now, idle[d].pop()
                            heappush(events, (finish, r))
                    touched.clear()
            else:
                for r in able:
                    d = device[r]
                    queue, lanes = queues[d], free[d]
                    while at[d] < len(queue):
                        r = queue[at[d]]
                        if missing[r]:
                            break
                        begin, k = ready[r], 0
                        if len(lanes) > 1:
                            # In the order of the keys on whatever lane.
                            k = lanes.index(min(lanes))
                            begin = max(begin, begun[d])
                        if lanes[k] > begin:
                            begin = lanes[k]
                        finish = begin + seconds[r][d]
                        if finish + after[r] > limit:
                            return
                        start[r], begun[d], lane[r], lanes[k] = begin, begin, k, finish
                        heappush(events, (finish, r))
                        at[d] += 1
            if not events:
                break
            able = []
            now, run = heappop(events)
            if run <= last_number:
                end[run] = now
                ended.append(run)
                if eager:
                    idle[device[run]].append(lane[run])
                    touched.add(device[run])
            else:
                r = run - last_number - 1
                heappush(pool[device[r]], (keys[r], r))
                touched.add(device[r])
        if len(ended) == len(numbers):
            self.makespan = max(last, *end)

    def _carry(
        self,
        run: int,
        value: int,
        hops: Hops,
        source: int,
        there: dict[int, float],
        busy: list[float],
    ) -> None:
        """Send a value all its way, and note when it is `there` and until when wires are `busy`."""
        none, nbytes = self.network.wires, self.network.bytes[value]
        for wire, queue, stop, latency, s_per_byte in hops:
            if stop not in there:
                takes = latency + nbytes * s_per_byte
                came = there[source]
                if wire < none:
                    # What stands for none is never busy.
                    came = max(came, busy[wire], busy[queue])
                came += takes
                if wire < none:
                    busy[wire] = came
                if queue < none:
                    busy[queue] = came
                there[stop] = came
                self.sent.append((run, value, source, stop, wire, queue, takes, came))
            source = stop

    def schedule(self, policy: str) -> Schedule:
        """The orders of the lanes, where there are no copies."""
        runs = sorted(range(self.network.runs), key=lambda r: (self.start[r], self.end[r], r))
        return in_order(self.network.problem, policy, ((r, self.device[r], (self.lane[r],)) for r in runs))

    def tails(self) -> None:
        """Set, of each run, `tail`, the seconds from its end to the end of all along what waits for it here, and
        `wanted`, the same without the runs behind it on its lane; and `sent_tail` of each transfer. O(V + E)."""
        network, served, device = self.network, self.served, self.device
        seconds, none = served.seconds, network.wires
        tail = self.tail = [0.0] * len(device)
        wanted = self.wanted = [0.0] * len(device)
        sent_tail = self.sent_tail = [0.0] * len(self.sent)
        behind = [[0.0] * count for count in network.lanes]
        waiting = [0.0] * (none + 1)
        number = len(self.sent)
        for run in reversed(self.ended):
            d, longest = device[run], 0.0
            onward: dict[tuple[int, int], float] = {}
            while number and self.sent[number - 1][0] == run:
                number -= 1
                _, v, source, stop, wire, queue, takes, _ = self.sent[number]
                after = onward.get((v, stop), 0.0)
                for r in served.readers[v]:
                    if device[r] == stop and seconds[r][stop] + tail[r] > after:
                        after = seconds[r][stop] + tail[r]
                if wire < none:
                    after = max(after, waiting[wire])
                    waiting[wire] = after + takes
                if queue < none:
                    after = max(after, waiting[queue])
                    waiting[queue] = waiting[wire] = after + takes
                sent_tail[number] = after
                if source == d:
                    longest = max(longest, after + takes)
                else:
                    onward[v, source] = max(onward.get((v, source), 0.0), after + takes)
            for v, readers, deliver in served.makes[run]:
                first, each, nbytes = network.latency[d], network.s_per_byte[d], network.bytes[v]
                for r in readers:
                    stop = device[r]
                    # What goes by wires has been counted with its transfer.
                    if stop == d or not none:
                        after = seconds[r][stop] + tail[r] + (first[stop] + nbytes * each[stop])
                        if after > longest:
                            longest = after
                for stop in () if none else deliver:
                    longest = max(longest, first[stop] + nbytes * each[stop])
            for r in served.later[run]:
                longest = max(longest, seconds[r][device[r]] + tail[r])
            wanted[run] = longest
            lane = behind[d]
            k = self.lane[run]
            tail[run] = max(longest, lane[k])
            lane[k] = tail[run] + seconds[run][d]

    def critical(self) -> list[int]:
        """Runs that nothing can delay without a longer makespan, and those that make or read a value whose transfer is
        so; all where what no run makes comes last. After `tails`."""
        served, limit = self.served, self.makespan * (1 - NEAR)
        found = dict.fromkeys(served.run[i] for i in served.numbers if self.end[i] + self.tail[i] >= limit)
        for (run, v, _, stop, *_, came), after in zip(self.sent, self.sent_tail):
            if came + after >= limit:
                if run < self.network.runs:
                    found[run] = None
                own = (served.run[i] for i in served.readers[v] if self.device[i] == stop)
                found.update(dict.fromkeys(own))
        return [*(found or range(self.network.runs))]

    def reach(self, run: int, device: int) -> tuple[float, float]:
        """When all that a run reads could be on a device, and the seconds that would still be wanted after its end
        there, with all else as it is and wires that nobody else takes; after `tails`."""
        if device == self.device[run]:
            return self.ready[run], self.wanted[run]
        network, served, where, problem = self.network, self.served, self.device, self.network.problem
        ready = after = 0.0
        for v in problem.reads[run]:
            there = self.there.get(v)
            if there and device in there:
                came = there[device]
            elif (problem.maker[v], device) in served.on:
                came = self.end[served.on[problem.maker[v], device]]
            else:
                maker = problem.maker[v]
                source, made = (where[maker], self.end[maker]) if maker >= 0 else (problem.home[v], 0.0)
                came = made + (
                    network.latency[source][device] + network.bytes[v] * network.s_per_byte[source][device]
                )
            if came > ready:
                ready = came
        for r in network.sooner[run]:
            ready = max(ready, self.end[r])
        first, each = network.latency[device], network.s_per_byte[device]
        for v, readers, deliver in served.makes[run]:
            nbytes = network.bytes[v]
            for r in readers:
                d = where[r]
                takes = served.seconds[r][d] + self.tail[r] + (first[d] + nbytes * each[d])
                if takes > after:
                    after = takes
            for d in deliver:
                after = max(after, first[d] + nbytes * each[d])
        for r in network.later[run]:
            after = max(after, network.seconds[r][where[r]] + self.tail[r])
        return ready, after
