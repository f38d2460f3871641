"""Options to run a chain on processes: replicas, stages, micro-batches and schedule, without cuts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ...errors import PlanError
from ...ir.distribution import SCHEDULES, UNSHARDED
from .orders import Action, orders, refusal

OBJECTIVES = ("training", "latency", "throughput")
"""`training`: least step of forward, backward and gradient sums. `latency`: least forward of one batch. `throughput`:
least period of successive batches, forward only."""
CHUNKS = (2, 4, 8)
"""Numbers of stages for each process, tried with interleaved schedules."""
ALL_UP_TO = 16
"""Limit on processes up to which every pipeline length is tried; above, divisors of their number."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option: `positions` processes for each of `replicas`, with `chunks` stages each; `rows` of each micro-batch.
    `sharded`: replicas shard the parameters of their stages (FSDP2)."""

    replicas: int
    positions: int
    chunks: int
    micro_batches: int
    schedule: str
    rows: int
    trained: bool
    sharded: bool = False

    @property
    def stages(self) -> int:
        """Number of stages."""
        return self.positions * self.chunks

    @property
    def shardable(self) -> bool:
        """True if replicas could shard their parameters."""
        return self.trained and self.replicas > 1 and self.schedule != "zero-bubble"

    def orders(self) -> list[list[Action]]:
        """Return the actions of each position."""
        if not self.trained:
            return [[("F", stage, m) for m in range(self.micro_batches)] for stage in range(self.positions)]
        return orders(self.schedule, self.positions, self.chunks, self.micro_batches)

    def __str__(self) -> str:
        each = f" × {self.chunks} stages" if self.chunks > 1 else ""
        replicas = f"{self.replicas} {'sharded ' * self.sharded}replicas"
        return (
            f"{replicas} × {self.positions} processes{each}, {self.micro_batches} micro-batches of {self.rows} rows, "
            f"{self.schedule}"
        )


@dataclass(frozen=True, slots=True)
class Request:
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

    def check(self, members: int, units: int) -> Request:
        """Return self, or raise PlanError with the number that is impossible for this many processes and units."""
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
        if (self.stages or 1) > units:
            raise PlanError(f"stages={self.stages} are more than the {units} units of the model; give fewer")
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


def options(request: Request, members: int, most: int) -> Iterator[Option]:
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


def _shapes(request: Request, members: int, units: int) -> Iterator[tuple[int, int]]:
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


def _schedules(request: Request, positions: int, units: int) -> Iterator[tuple[str, int]]:
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
