"""`distribution`: choose stages, replicas, micro-batches and schedule of a chain on hosts, by simulation of the
candidates."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import count

from ...errors import MemoryCapError, PlanError
from ...ir.distribution import SCHEDULES, UNSHARDED, Distribution
from ...ir.hosts import Hosts
from ...system.process import gc_paused
from ...system.text import parse_bytes, seconds, size
from .chain import Chain
from .grid import Process, grids, processes
from .pricing import Partition, Setup
from .simulation import Option, refusal

OBJECTIVES = ("training", "latency", "throughput")
"""`training`: least step of forward, backward and gradient sums. `latency`: least forward of one batch. `throughput`:
least period of successive batches, forward only."""
CHUNKS = (2, 4, 8)
"""Numbers of stages for each process, tried with interleaved schedules."""
ALL_UP_TO = 16
"""Limit on processes up to which every pipeline length is tried; above, divisors of their number."""
TRIES = 4
"""Limit on cuts under caps for one setup, each with less memory, until they fit."""
SHOWN = 40
"""Limit on the other plans that a distribution lists."""


@gc_paused()
def distribution(  # noqa: PLR0913 - what users may fix
    chain: Chain | Callable[[int], Chain],
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

    chain: one for micro-batches of any size, or a function from the rows of a micro-batch to the chain priced for them.
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
    group = processes(hosts) if members is None else members
    if memory is not None:
        cap = parse_bytes(memory)
        group = [replace(process, memory_bytes=cap) for process in group]
    request = _Request(
        batch, objective, tuple(schedules), micro_batches, replicas, stages, rows, shard_replicas
    )
    request.check(len(group))
    priced = (lambda _: chain) if isinstance(chain, Chain) else cache(chain)
    each = rows or max(1, batch // len(group))
    example = priced(each)
    if not example.units:
        raise PlanError(f"{example.name!r} computes nothing that could be planned")
    if (stages or 1) > len(example.units):
        raise PlanError(
            f"stages={stages} are more than the {len(example.units)} units of the model; give fewer"
        )
    total = {
        kind: sum(float(example.upto(word, example.kind(kind), each)[-1]) for word in ("forward", "backward"))
        for kind in {process.kind for process in group}
    }
    fast_first = sorted(group, key=lambda process: total[process.kind])
    state = 2 + optimizer_bytes if request.trained else 1.0
    below = math.inf if below is None else below
    return _Search(priced, example, hosts, request, fast_first, state, below).run()


@dataclass(frozen=True, slots=True)
class _Request:
    """Numbers fixed by the user; None: to be chosen."""

    batch: int
    objective: str
    schedules: Sequence[str] = SCHEDULES
    micro_batches: int | None = None
    replicas: int | None = None
    stages: int | None = None
    rows: int | None = None
    shard_replicas: bool | str = False

    @property
    def trained(self) -> bool:
        """True for a training step."""
        return self.objective == "training"

    def check(self, members: int) -> _Request:
        """Return self, or raise PlanError with the number that is impossible for this many processes."""
        if self.objective not in OBJECTIVES:
            raise PlanError(f"objective={self.objective!r} is not known; give one of {', '.join(OBJECTIVES)}")
        for name in self.schedules:
            if name not in SCHEDULES:
                raise PlanError(f"schedule {name!r} is not known; give some of {', '.join(SCHEDULES)}")
        self._check_shards()
        for word in ("batch", "micro_batches", "replicas", "stages", "rows"):
            number = getattr(self, word)
            if number is not None and (not isinstance(number, int) or number < 1):
                raise PlanError(f"{word}={number!r} is not a number of {word}; give a whole number from 1")
        replicas = self.replicas or 1
        if replicas > members:
            raise PlanError(f"replicas={replicas} are more than the {members} processes; give fewer")
        if self.batch % (replicas * (self.micro_batches or 1)):
            raise PlanError(
                f"a batch of {self.batch} rows cannot be {self.micro_batches or 1} equal micro-batches in each of "
                f"{replicas} replicas; give numbers whose product divides it"
            )
        return self

    def _check_shards(self) -> None:
        if self.shard_replicas not in (True, False, "auto"):
            raise PlanError(
                f"shard_replicas={self.shard_replicas!r} is not known; give True, False or 'auto'"
            )
        if self.shard_replicas is True:
            if not self.trained:
                raise PlanError(
                    "shard_replicas=True is for training; give loss=, or stages= to serve a large model"
                )
            if self.replicas == 1:
                raise PlanError(
                    "shard_replicas=True has nothing to share with replicas=1; give replicas=2 or more"
                )
            if set(self.schedules) == {"zero-bubble"}:
                raise PlanError(
                    f"{UNSHARDED}; give schedule='1f1b' or 'interleaved', or shard_replicas=False"
                )


@dataclass
class _Search:
    """Best-first search: expand the least lower bound until none is below the best step."""

    priced: Callable[[int], Chain]
    """From the rows of a micro-batch, the chain priced for them."""
    example: Chain
    """The chain priced for some number of rows. All have the same units."""
    hosts: Hosts
    request: _Request
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
            Setup(self.priced(option.rows), grid, option, self.state)
            for option in _options(self.request, len(self.members), self.example.most_stages)
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
            for successor in self._cut(item):
                least = (
                    self._least(successor)
                    if isinstance(successor, Setup)
                    else successor.bound_s(self._period)
                )
                heapq.heappush(queue, (least, next(number), successor))
        if not self.best:
            if self.nearest is None or queue:
                raise PlanError(
                    f"no step of {self.example.name!r} takes less than {seconds(self.below)}; leave below out"
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
        option, chain = setup.option, setup.chain
        words = ("forward", "backward") if option.trained else ("forward",)
        total = min(
            sum(float(chain.upto(word, kind, option.rows)[-1]) for word in words)
            for kind in {chain.kind(process.kind) for process in self.members}
        )
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
                self._fits(Partition(setup, self._by_units(setup)))
            self.tried.append((str(setup.option), None))
            yield from self._sharded(setup)
            return
        candidates = dict.fromkeys([*self._balanced(setup), self._by_units(setup)])
        quick = [Partition(setup, cuts) for cuts in candidates if not self._slow(setup, cuts)]
        fitting = [partition for partition in quick if self._fits(partition)]
        yield from fitting
        if len(fitting) < len(quick):
            yield from self._sharded(setup)
        if not candidates or (not fitting and len(quick) == len(candidates)):
            self.tried.append((str(setup.option), None))

    def _sharded(self, setup: Setup) -> Iterator[Setup]:
        option = setup.option
        if self.request.shard_replicas == "auto" and option.shardable and not option.sharded:
            yield replace(setup, option=replace(option, sharded=True))

    def _balanced(self, setup: Setup) -> Iterator[tuple[int, ...]]:
        """Yield cuts of the least bottleneck: without caps, with caps, and with less memory until they fit."""
        cuts = setup.cutting.uncapped.least_bottleneck()
        if cuts is None or self._slow(setup, cuts):
            return
        yield tuple(cuts)
        cutting = setup.cutting
        for _ in range(TRIES if any(cap is not None for cap in cutting.caps) else 0):
            cuts = cutting.least_bottleneck()
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

    def _by_units(self, setup: Setup) -> tuple[int, ...]:
        """Return cuts into equal numbers of units."""
        units, stages = len(setup.chain.units), setup.option.stages
        return tuple(s * units // stages for s in range(stages + 1))

    def _result(self, step: float, partition: Partition) -> Distribution:
        option, grid = partition.setup.option, partition.setup.grid
        chosen = str(option)
        others = [row for row in self.tried if row[0] != chosen and row[1] is not None]
        others.sort(key=lambda row: row[1] or 0.0)
        refused = [row for row in self.tried if row[1] is None]
        return Distribution(
            self.example.name, tuple(unit.name for unit in self.example.units), self.hosts, partition.stages,
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
            f"no way to run {len(self.example.units)} units on {len(self.members)} processes has {fixed or 'these'} "
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


def _options(request: _Request, members: int, most: int) -> Iterator[Option]:
    """Yield all options to try, simple ones first, with at most `most` stages unless more are requested.

    A batch is divided evenly by replicas and by micro-batches.
    """
    units = max(most, request.stages or 0)
    for positions, replicas in _shapes(request, members, units):
        each = request.batch // replicas
        for micro_batches in [request.micro_batches] if request.micro_batches else _divisors(each):
            if each % micro_batches or request.rows not in (None, each // micro_batches):
                continue
            for schedule, chunks in _schedules(request, positions, units):
                if request.trained and refusal(schedule, positions, chunks, micro_batches):
                    continue
                rows = each // micro_batches
                option = Option(replicas, positions, chunks, micro_batches, schedule, rows, request.trained)
                if request.shard_replicas is not True or replicas == 1:
                    yield option
                elif option.shardable:
                    yield replace(option, sharded=True)


def _shapes(request: _Request, members: int, units: int) -> Iterator[tuple[int, int]]:
    """Yield (processes of a replica, replicas)."""
    few = members <= ALL_UP_TO
    counts = [request.replicas] if request.replicas else _divisors(request.batch)
    for positions in range(1, min(members, units) + 1):
        if request.stages and request.stages % positions:
            continue
        if not few and members % positions:
            continue
        fitting = [count for count in counts if count <= members // positions]
        for replicas in fitting if few else fitting[-1:]:
            yield positions, replicas
    if not few and not request.replicas and request.stages in (None, 1):
        yield 1, 1


def _schedules(request: _Request, positions: int, units: int) -> Iterator[tuple[str, int]]:
    """Yield (schedule, stages of a process)."""
    wanted = sorted(request.schedules, key=("1f1b", "gpipe", "interleaved", "zero-bubble").index)
    if not request.trained or positions == 1:
        # Without a backward, or other processes to wait for, there is nothing to interleave.
        if request.stages in (None, positions):
            yield ("1f1b" if "1f1b" in wanted and request.trained else "gpipe"), 1
        return
    for schedule in wanted:
        several = schedule in ("interleaved", "zero-bubble")
        counts = (request.stages // positions,) if request.stages else (1, *CHUNKS)
        for chunks in counts if several else (1,):
            if schedule == "interleaved" and chunks == 1:
                continue
            if positions * chunks <= units and request.stages in (None, positions * chunks):
                yield schedule, chunks


def _divisors(number: int) -> list[int]:
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})
