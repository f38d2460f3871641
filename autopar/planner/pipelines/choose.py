"""`distribution`: choose stages, replicas, micro-batches and schedule of a chain on hosts, by simulation of the
candidates."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import count

from ...errors import MemoryCapError, PlanError
from ...ir.distribution import SCHEDULES, Distribution
from ...ir.hosts import Hosts
from ...system.process import uncollected
from ...system.text import parse_bytes, seconds, size
from .chain import Chain
from .grid import Process, grids, processes
from .options import Request, options
from .pricing import Partition, Setup

TRIES = 4
"""Limit on cuts under caps for one setup, each with less memory, until they fit."""
SHOWN = 40
"""Limit on the other plans that a distribution lists."""


@uncollected()
def distribution(  # noqa: PLR0913 - what users may fix
    chain: Chain,
    hosts: Hosts,
    batch: int,
    *,
    members: Sequence[Process] | None = None,
    objective: str = "training",
    schedules: Sequence[str] = SCHEDULES,
    micro_batches: int | None = None,
    replicas: int | None = None,
    stages: int | None = None,
    rows: int | None = None,
    memory: int | str | None = None,
    optimizer_bytes: float = 2.0,
    shard_replicas: bool | str = False,
    below: float | None = None,
) -> Distribution:
    """Find the fastest way to run a chain on hosts by best-first branch and bound over replicas, stages, cuts,
    micro-batches and schedule.

    members: the processes, by default one for each host (`processes`), of kinds that the chain is priced for. Some may
    stay unused; the first of equals are used.
    batch: rows of one step over all replicas, which divide it evenly, as micro-batches (of one replica) do.
    objective: `training`, `latency` or `throughput` (period of successive batches); the last two are forward only.
    schedules: those that may be tried.
    micro_batches, replicas, stages, rows: fixed numbers: micro-batches and stages of one replica, rows of a
    micro-batch.
    memory: cap of each device of a process, in bytes or as "6GiB", instead of its own.
    optimizer_bytes: for each byte of trained weights, in addition to weights and gradients: 2 for Adam, 0 for SGD.
    shard_replicas: shard weights, gradients and optimizer state (FSDP2): always, or with "auto" as needed.
    below: only find steps shorter than this, in seconds.

    Candidates not excluded by a lower bound are cut for the least bottleneck, and evenly by units, and simulated.
    Replicas differ only in hosts: one is simulated, with the slowest process and link of each position. Gradients are
    summed over replicas from the last backward of their stage on, overlapping with other stages. Deterministic.

    Raises PlanError for impossible numbers, and if nothing is below `below`; MemoryCapError if nothing fits.
    """
    found = processes(hosts) if members is None else members
    if memory is not None:
        cap = parse_bytes(memory)
        found = [replace(process, memory_bytes=cap) for process in found]
    request = Request(
        batch, objective, tuple(schedules), micro_batches, replicas, stages, rows, shard_replicas
    )
    request.check(len(found), len(chain.check().units))
    total = {
        kind: sum(float(chain.upto(word, chain.kind(kind), 1.0)[-1]) for word in ("forward", "backward"))
        for kind in {process.kind for process in found}
    }
    fast_first = sorted(found, key=lambda process: total[process.kind])
    state = 2 + optimizer_bytes if request.trained else 1.0
    return _Search(chain, hosts, request, fast_first, state, math.inf if below is None else below).run()


@dataclass
class _Search:
    """Best-first search: expand the least lower bound until none is below the best step."""

    chain: Chain
    hosts: Hosts
    request: Request
    members: Sequence[Process]
    state: float
    """Bytes for each byte of trained weights, itself included."""
    below: float
    best: tuple[float, Partition] | None = None
    nearest: Partition | None = None
    """Of those that do not fit, the one with the least excess."""
    tried: list[tuple[str, float | None]] = field(default_factory=list)

    def run(self) -> Distribution:
        number = count()
        grids_of = cache(partial(grids, self.hosts, self.members))
        setups = (
            Setup(self.chain, grid, option, self.state)
            for option in options(self.request, len(self.members), self.chain.most_stages)
            for grid in grids_of(option.replicas, option.positions)
        )
        queue: list[tuple[float, int, Setup | Partition]] = [
            (self._least(setup), next(number), setup) for setup in setups
        ]
        if not queue:
            raise PlanError(self._nothing())
        heapq.heapify(queue)
        while queue:
            bound, _, item = heapq.heappop(queue)
            if bound >= self._limit * (1 - 1e-9):
                break
            if isinstance(item, Partition):
                step = item.step_s(self._period)
                self.tried.append((str(item.setup.option), step))
                if step < self._limit:
                    self.best = step, item
                continue
            for found in self._cut(item):
                least = self._least(found) if isinstance(found, Setup) else found.bound_s(self._period)
                heapq.heappush(queue, (least, next(number), found))
        if not self.best:
            if self.nearest is None or queue:
                raise PlanError(
                    f"no step of {self.chain.name!r} takes less than {seconds(self.below)}; leave below out"
                )
            raise self._short(self.nearest)
        return self._result(*self.best)

    @property
    def _limit(self) -> float:
        """Seconds that a step must stay below to be the best."""
        return self.best[0] if self.best else self.below

    @property
    def _period(self) -> bool:
        return self.request.objective == "throughput"

    def _least(self, setup: Setup) -> float:
        """Return a lower bound on the step before any cut: a stage gets at most a share 1/m of the seconds
        that the earlier stages leave of the step."""
        option, kind = setup.option, self.chain.kind(self.members[0].kind)
        words = ("forward", "backward") if option.trained else ("forward",)
        total = sum(float(self.chain.upto(word, kind, option.rows)[-1]) for word in words)
        m, p = option.micro_batches, option.positions
        if self._period:
            return m * total / p
        if option.chunks == 1 and option.schedule != "zero-bubble":
            return total / (1 - (1 - 1 / m) ** p)
        return max(total if option.schedule != "zero-bubble" else 0.0, m * total / p)

    def _cut(self, setup: Setup) -> Iterator[Partition | Setup]:
        """Yield the setup with the cuts to simulate: those that fit and whose slowest stage is fast enough. If some do
        not fit, also yield the setup with sharded replicas, if allowed."""
        if not setup.roomy:
            if not self.best:
                self._fits(Partition(setup, self._plain(setup)))
            self.tried.append((str(setup.option), None))
            yield from self._sharded(setup)
            return
        found = dict.fromkeys([*self._even(setup), self._plain(setup)])
        quick = [Partition(setup, cuts) for cuts in found if not self._slow(setup, cuts)]
        fitting = [partition for partition in quick if self._fits(partition)]
        yield from fitting
        if len(fitting) < len(quick):
            yield from self._sharded(setup)
        if not found or (not fitting and len(quick) == len(found)):
            self.tried.append((str(setup.option), None))

    def _sharded(self, setup: Setup) -> Iterator[Setup]:
        option = setup.option
        if self.request.shard_replicas == "auto" and option.shardable and not option.sharded:
            yield replace(setup, option=replace(option, sharded=True))

    def _even(self, setup: Setup) -> Iterator[tuple[int, ...]]:
        """Yield cuts of the least bottleneck: without caps, with caps, and with less memory until they fit."""
        cuts = setup.cutting.uncapped.even()
        if cuts is None or self._slow(setup, cuts):
            return
        yield tuple(cuts)
        cutting = setup.cutting
        for _ in range(TRIES if any(cap is not None for cap in cutting.caps) else 0):
            cuts = cutting.even()
            if cuts is None or self._slow(setup, cuts):
                return
            yield tuple(cuts)
            partition = Partition(setup, tuple(cuts))
            if partition.over[0] <= 0:
                return
            # Only whole stages show messages, and that chunks are not full at one moment.
            over = [
                max(0, nbytes - (cap or nbytes)) for nbytes, cap in zip(partition.memory, setup.grid.caps)
            ]
            chunks = setup.option.chunks
            cutting = cutting.less([nbytes / chunks for nbytes in over] * chunks)

    def _slow(self, setup: Setup, cuts: Sequence[int]) -> bool:
        """Return True if the slowest stage or link alone takes as long as the best step."""
        if not self.best:
            return False
        return setup.option.micro_batches * setup.cutting.bottleneck(cuts) >= self.best[0]

    def _fits(self, partition: Partition) -> bool:
        over = partition.over[0]
        if over > 0 and (self.nearest is None or over < self.nearest.over[0]):
            self.nearest = partition
        return over <= 0

    def _plain(self, setup: Setup) -> tuple[int, ...]:
        """Return cuts into equal numbers of units."""
        units, stages = len(self.chain.units), setup.option.stages
        return tuple(s * units // stages for s in range(stages + 1))

    def _result(self, step: float, partition: Partition) -> Distribution:
        option, grid = partition.setup.option, partition.setup.grid
        chosen = str(option)
        others = [row for row in self.tried if row[0] != chosen and row[1] is not None]
        others.sort(key=lambda row: row[1] or 0.0)
        refused = [row for row in self.tried if row[1] is None]
        return Distribution(
            self.chain.name, tuple(unit.name for unit in self.chain.units), self.hosts, partition.stages,
            tuple(tuple(process.host for process in row) for row in grid.rows), option.micro_batches,
            option.schedule, self.request.batch, step, partition.ideal_s, partition.memory, option.trained,
            (*others, *refused)[:SHOWN], partition.ties, self._period,
        ).check()  # fmt: skip

    def _nothing(self) -> str:
        request = self.request
        fixed = ", ".join(
            f"{word}={number}"
            for word in ("replicas", "stages", "micro_batches", "rows")
            if (number := getattr(request, word)) is not None
        )
        return (
            f"no way to run {len(self.chain.units)} units on {len(self.members)} processes has {fixed or 'these'} "
            f"with {' or '.join(request.schedules)}; give other numbers, or leave one out"
        )

    def _short(self, partition: Partition) -> MemoryCapError:
        over, position = partition.over
        process, cap = partition.setup.grid.rows[0][position], partition.setup.grid.caps[position] or 0
        return MemoryCapError(
            f"nothing that was tried fits in memory: the nearest, {partition.setup.option}, needs "
            f"{size(partition.memory[position])} on {process.name}, where {size(cap)} are",
            f"raise it with memory={cap + over}, add hosts, or give a smaller batch, or an optimizer with less state"
            + ", or shard_replicas='auto'" * (self.request.trained and self.request.shard_replicas is False),
        )
