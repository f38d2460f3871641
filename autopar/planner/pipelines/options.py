"""An option to run a chain on processes: replicas, stages, micro-batches and schedule, without cuts; and the sequence
of actions of each process in the schedules.

As in `torch.distributed.pipelining`: GPipe (Huang et al., NeurIPS 2019), 1F1B (Narayanan et al., SOSP 2019; DAPPLE:
Fan et al., PPoPP 2021), interleaved 1F1B (Narayanan et al., SC 2021) and ZB1P (Qi et al., "Zero bubble pipeline
parallelism", ICLR 2024).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...errors import PlanError
from ...ir.distribution import SCHEDULES

Action: TypeAlias = tuple[str, int, int]
"""A pass: kind, stage and micro-batch. `F`: forward; `B`: whole backward; `I`: its input gradients;
`W`: its weight gradients."""


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


def refusal(schedule: str, positions: int, chunks: int, micro_batches: int) -> str:
    """Return the reason why torch's schedule does not support these numbers; "" if it does."""
    if schedule not in SCHEDULES:
        return f"schedule {schedule!r} is not known; give one of {', '.join(SCHEDULES)}"
    if schedule in ("gpipe", "1f1b"):
        if chunks > 1:
            return f"{schedule} has one stage to a process; use interleaved or zero-bubble"
        if schedule == "1f1b" and micro_batches < positions:
            return f"1f1b needs a micro-batch for each of {positions} stages, at least"
        return ""
    rounds = max(1, micro_batches // positions)
    if micro_batches % rounds:
        return f"{schedule} needs micro-batches that are a multiple of {rounds}, its rounds"
    return ""


def orders(schedule: str, positions: int, chunks: int, micro_batches: int) -> list[list[Action]]:
    """Return the actions of each of `positions` processes with `chunks` stages each: stage s is at s modulo positions.

    Raises PlanError for numbers that the schedule does not support. O(positions × chunks × micro_batches).
    """
    wrong = refusal(schedule, positions, chunks, micro_batches)
    if wrong:
        raise PlanError(wrong)
    if schedule == "gpipe":
        return [
            [(what, stage, m) for what in "FB" for m in range(micro_batches)] for stage in range(positions)
        ]
    if schedule == "1f1b":
        return [[*_one_f_one_b(stage, positions - stage, micro_batches)] for stage in range(positions)]
    apart = schedule == "zero-bubble"
    return [[*_interleaved(at, positions, chunks, micro_batches, apart)] for at in range(positions)]


@lru_cache(maxsize=4096)
def in_flight(schedule: str, positions: int, chunks: int, micro_batches: int, at: int) -> NDArray[np.int64]:
    """Return the micro-batches in flight (forward done, backward not finished) of each chunk of a process, right after
    each forward that may be the worst: (moments, chunks). In closed form, equal to a walk through `orders`."""
    if schedule == "gpipe":
        return np.array([[micro_batches]])
    if schedule == "1f1b":
        return np.array([[min(positions - at, micro_batches)]])
    apart = schedule == "zero-bubble"
    each, ahead = _rounds(at, positions, chunks, micro_batches, apart)
    # What is in flight repeats from round to round, once there are backwards.
    moments = np.arange(1, min(chunks * micro_batches, ahead + at * apart + 2 * chunks * each) + 1)
    over = np.maximum(moments - 1 - ahead - (at if apart else 0), 0)
    number = np.arange(chunks)
    return _begun(moments, number, each) - _begun(over, number[::-1], each)


def _begun(passes: NDArray[np.int64], turn: NDArray[np.int64], each: int) -> NDArray[np.int64]:
    """Return the micro-batches of each chunk among the first `passes`. `turn`: the turn of a chunk in each
    round."""
    rounds, rest = np.divmod(passes, each * len(turn))
    begun: NDArray[np.int64] = rounds[:, None] * each + np.clip(rest[:, None] - turn * each, 0, each)
    return begun


def _rounds(at: int, positions: int, chunks: int, micro_batches: int, apart: bool) -> tuple[int, int]:
    """Return micro-batches of a round, and warm-up forwards before the first backward, of the interleaved
    schedules."""
    each = micro_batches // max(1, micro_batches // positions)
    ahead = (chunks - 1) * each + (1 if apart else 2) * (positions - 1 - at)
    return each, min(chunks * micro_batches, ahead)


def _one_f_one_b(stage: int, ahead: int, micro_batches: int) -> Iterator[Action]:
    """Yield 1F1B: as many forwards as there are stages from this one on, then a backward and a forward alternately."""
    ahead = min(ahead, micro_batches)
    for m in range(ahead):
        yield "F", stage, m
    for m in range(micro_batches):
        yield "B", stage, m
        if ahead + m < micro_batches:
            yield "F", stage, ahead + m


def _interleaved(at: int, positions: int, chunks: int, micro_batches: int, apart: bool) -> Iterator[Action]:
    """Yield interleaved 1F1B: forwards pass through the chunks in rounds of about as many micro-batches as processes,
    backwards in reverse.

    With a divided backward (`apart`), weight gradients follow `at` backwards later, the rest at the end.
    """
    each, ahead = _rounds(at, positions, chunks, micro_batches, apart)
    total = chunks * micro_batches
    forward = _turns(at, positions, [*range(chunks)], each)
    backward = _turns(at, positions, [*reversed(range(chunks))], each)
    weights = _turns(at, positions, [*reversed(range(chunks))], each)
    for _ in range(ahead):
        yield "F", *next(forward)
    for number in range(total):
        if ahead + number < total:
            yield "F", *next(forward)
        yield "I" if apart else "B", *next(backward)
        if apart and number >= at:
            yield "W", *next(weights)
    for _ in range(min(at, total) if apart else 0):
        yield "W", *next(weights)


def _turns(at: int, positions: int, chunks: list[int], each: int) -> Iterator[tuple[int, int]]:
    """Yield (stage, micro-batch) of one process in rounds: `each` micro-batches through every chunk."""
    for begin in count(0, each):
        for chunk in chunks:
            for m in range(begin, begin + each):
                yield chunk * positions + at, m
