"""A plan over hosts: the stages of a model, replicas, micro-batches and pipeline schedule. Pure data."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from os import PathLike

from ..errors import PlanError
from ..system.text import COLUMNS, seconds, size, table, wrapped
from . import serialize
from .hosts import Hosts

FORMAT = "autopar distribution 1"
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble")
"""Pipeline schedules by name: `ScheduleGPipe`, `Schedule1F1B`, `ScheduleInterleaved1F1B` and
`ScheduleInterleavedZeroBubble` of `torch.distributed.pipelining`."""
BUCKET_BYTES = 25 << 20
FIRST_BUCKET_BYTES = 1 << 20
"""Bytes of gradients in one all-reduce, and in the first of a group, as in DistributedDataParallel."""
UNSHARDED = (
    "zero-bubble computes gradients of weights apart from the backward, where FSDP2 does not gather them"
)
"""Reason why the zero-bubble schedule and sharded replicas exclude each other."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Units `first` to `stop - 1` of a model.

    forward_s, backward_s: seconds of one micro-batch on the planned host.
    bytes_out: bytes sent to later stages for one micro-batch.
    saved_bytes: bytes that the forward saves for the backward, for one micro-batch.
    state_bytes: bytes of parameters and buffers.
    groups: ends of the groups of units whose sharded parameters (FSDP2) are gathered together; empty: no
    sharding.
    """

    first: int
    stop: int
    forward_s: float
    backward_s: float
    bytes_out: int
    saved_bytes: int
    state_bytes: int
    groups: tuple[int, ...] = ()


@dataclass(frozen=True)
class Distribution:
    """Stages of a model on hosts.

    units: names of the model's operators, in order.
    ranks: host of each process as `ranks[replica][position]`. Stage s is at position s modulo their number,
    so a process may have several stages.
    micro_batches: number for one replica.
    batch: rows of one step over all replicas.
    step_s: predicted seconds of a step; with `period`, from one batch to the next without a pause.
    ideal_s: seconds that the busiest process would take without waits.
    memory: peak bytes of each position.
    trained: True for forward, backward and sum of gradients, False for forward only.
    tried: (description, predicted seconds of a step or None if too large) of the other plans.
    ties: (stages, bytes) of parameters that several stages share.
    """

    model: str
    units: tuple[str, ...]
    hosts: Hosts
    stages: tuple[Stage, ...]
    ranks: tuple[tuple[str, ...], ...]
    micro_batches: int
    schedule: str
    batch: int
    step_s: float
    ideal_s: float
    memory: tuple[int, ...]
    trained: bool = True
    tried: tuple[tuple[str, float | None], ...] = ()
    ties: tuple[tuple[tuple[int, ...], int], ...] = ()
    period: bool = False

    @property
    def replicas(self) -> int:
        """Number of replicas of the whole model."""
        return len(self.ranks)

    @property
    def positions(self) -> int:
        """Number of processes of one replica."""
        return len(self.ranks[0])

    @property
    def sharded(self) -> bool:
        """True if replicas shard the parameters, their gradients and the optimizer's state."""
        return bool(self.stages[0].groups)

    @property
    def bubble(self) -> float:
        """Predicted share of a step in which the busiest process waits."""
        return 1 - self.ideal_s / self.step_s if self.step_s > 0 else 0.0

    def position(self, stage: int) -> int:
        """Return the position within a replica of the process that has a stage."""
        return stage % self.positions

    def check(self) -> Distribution:
        """Return self, or raise PlanError with the first error."""
        if self.schedule not in SCHEDULES:
            raise PlanError(f"schedule={self.schedule!r} is not known; give one of {', '.join(SCHEDULES)}")
        if not self.ranks or not self.positions or len({len(row) for row in self.ranks}) > 1:
            raise PlanError("every replica needs the same number of processes, one at least")
        for row in self.ranks:
            for name in row:
                if name not in self.hosts.host:
                    raise PlanError(f"no host {name!r}; there are {', '.join(self.hosts.host)}")
        if not self.stages or len(self.stages) % self.positions:
            raise PlanError(
                f"{len(self.stages)} stages cannot be shared out to {self.positions} processes evenly; "
                "give a multiple of them"
            )
        if len(self.stages) > self.positions and self.schedule in ("gpipe", "1f1b"):
            raise PlanError(f"{self.schedule} has one stage to a process; use interleaved or zero-bubble")
        ends = [0, *(stage.stop for stage in self.stages)]
        for number, (stage, end) in enumerate(zip(self.stages, ends)):
            if stage.first != end or stage.stop <= stage.first:
                raise PlanError(
                    f"stage {number} has units {stage.first} to {stage.stop - 1}; it must begin with {end} "
                    "and have one at least"
                )
        if ends[-1] != len(self.units):
            raise PlanError(f"the stages end with unit {ends[-1] - 1} of {len(self.units)}")
        self._check_groups()
        parts = self.micro_batches * self.replicas
        if self.micro_batches < 1 or self.batch < parts or self.batch % parts:
            raise PlanError(
                f"{self.batch} rows cannot be {self.micro_batches} equal micro-batches in each of {self.replicas} "
                "replicas"
            )
        return self

    def _check_groups(self) -> None:
        for number, stage in enumerate(self.stages):
            if bool(stage.groups) != self.sharded:
                raise PlanError(
                    f"stage {number} must be sharded as the others are: give all of them groups, or none"
                )
            ends = (stage.first, *stage.groups)
            if stage.groups and (ends[-1] != stage.stop or any(a >= b for a, b in pairwise(ends))):
                raise PlanError(
                    f"groups of stage {number} end at {list(stage.groups)}; they must rise from {stage.first} to "
                    f"{stage.stop}"
                )
        if self.sharded and self.replicas < 2:
            raise PlanError(
                "one replica has nobody to share its parameters with; give replicas=2, or no groups"
            )
        if self.sharded and self.schedule == "zero-bubble":
            raise PlanError(f"{UNSHARDED}; give schedule='1f1b' or 'interleaved', or shard_replicas=False")

    def save(self, path: str | PathLike[str]) -> None:
        """Write to a JSON file."""
        serialize.save(self, FORMAT, path)

    @staticmethod
    def load(path: str | PathLike[str]) -> Distribution:
        """Read a file written by `save`; PlanError says what is wrong with it."""
        return serialize.load(Distribution, FORMAT, path).check()

    def __str__(self) -> str:
        rows = [("stage", "process", "hosts", "units", "forward", "backward", "sends", "keeps", "state")]
        for number, stage in enumerate(self.stages):
            position = self.position(number)
            on = [row[position] for row in self.ranks]
            rows.append((
                str(number), str(position), ", ".join(on[:3]) + (", …" if len(on) > 3 else ""),
                f"{self.units[stage.first]} … {self.units[stage.stop - 1]}", seconds(stage.forward_s),
                seconds(stage.backward_s), size(stage.bytes_out), size(stage.saved_bytes), size(stage.state_bytes),
            ))  # fmt: skip
        what = "a step" if self.trained else "a batch, forward only"
        if self.period:
            what = "from one batch to the next (throughput), forward only"
        head = (
            f"{self.model}: {len(self.stages)} stages × {self.replicas} {'sharded ' * self.sharded}replicas, "
            f"{self.micro_batches} micro-batches, {self.schedule}; predicted {seconds(self.step_s)} {what}, of which "
            f"the busiest process waits {self.bubble:.0%}"
        )
        return f"{wrapped(head)}\n\n{table(rows, right=range(4, 9), width=COLUMNS)}"
