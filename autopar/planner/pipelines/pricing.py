"""The cuts of an option and their price: seconds of stages, memory, lower bound, and simulated step."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ...ir.distribution import BUCKET_BYTES, Stage
from .chain import Chain, Numbers
from .grid import Grid
from .simulation import Option, in_flight, passes_of, simulate

MOST_GROUPS = 16
"""Limit on the groups in which a sharded stage is gathered."""
GATHERED = 4
"""Factor on the bytes of a group: its parameters and those of the next one, its gradients, and their message."""
PRECISION = 1e-6
"""Relative precision of the least bottleneck."""


@dataclass(frozen=True)
class _Cutting:
    """A chain to cut, with figures of stage s.

    The least feasible limit is found by bisection (Iqbal, "Approximate algorithms for partitioning problems", IJPP
    1991; Pınar and Aykanat, "Fast optimal load balancing algorithms for 1D partitioning", JPDC 2004). A limit is tested
    by dynamic programming over all positions, since a shorter stage may help.

    spent[s]: seconds of all units before each position.
    link[s]: seconds on the outgoing link for a cut at each position.
    held[s]: bytes of all units before each position, limited by `caps[s]` (None: unlimited).
    ties: (bytes, uses before each position) of tensors that `held` counts per use but a stage holds once.
    """

    spent: Sequence[Numbers]
    link: Sequence[Numbers]
    held: Sequence[Numbers]
    caps: Sequence[float | None]
    ties: Sequence[tuple[float, NDArray[np.int64]]] = ()

    @property
    def uncapped(self) -> _Cutting:
        """The problem without caps."""
        return replace(self, caps=[None] * len(self.caps))

    def less(self, nbytes: Sequence[float]) -> _Cutting:
        """Return the problem with caps reduced by `nbytes` for each stage."""
        caps = [None if cap is None else cap - cut for cap, cut in zip(self.caps, nbytes)]
        return replace(self, caps=caps)

    def least_bottleneck(self) -> list[int] | None:
        """Return cuts, from 0 to the number of units, with the least bottleneck within `PRECISION`; None if
        infeasible."""
        units = len(self.spent[0]) - 1
        low = min(float(times[-1]) for times in self.spent) / len(self.spent)
        high = max(float(times[-1]) for times in (*self.spent, *map(np.maximum.accumulate, self.link)))
        best = self._under(high)
        if units < len(self.spent) or best is None:
            return None
        high = self.bottleneck(best)
        while high - low > PRECISION * high:
            limit = (low + high) / 2
            cuts = self._under(limit)
            if cuts is None:
                low = limit
            else:
                best, high = cuts, min(limit, self.bottleneck(cuts))
        return best

    def bottleneck(self, cuts: Sequence[int]) -> float:
        """Return the seconds of the slowest stage or link."""
        stages = max(float(t[b] - t[a]) for t, a, b in zip(self.spent, cuts, cuts[1:]))
        return max(stages, max((float(w[b]) for w, b in zip(self.link, cuts[1:-1])), default=0.0))

    def _under(self, limit: float) -> list[int] | None:
        """Find cuts under a limit by dynamic programming over the ends of each stage; None if infeasible. A stage that
        ends at a position is shortest from the last position at which the previous stage can end."""
        stages, units, slack = len(self.spent), len(self.spent[0]) - 1, limit * (1 + 1e-12)
        places = np.arange(units + 1)
        ends, before = places == 0, []
        for s, (spent, held, cap) in enumerate(zip(self.spent, self.held, self.caps)):
            start = np.concatenate(([-1], np.maximum.accumulate(np.where(ends, places, -1))[:-1]))
            ends = (start >= 0) & (spent - spent[start] <= slack)
            if cap is not None:
                again = sum(
                    (nbytes * np.maximum(uses - uses[start] - 1, 0) for nbytes, uses in self.ties),
                    np.zeros(1),
                )
                ends &= held - held[start] - again <= cap
            if s + 1 < stages:
                ends &= self.link[s] <= slack
            if not ends.any():
                return None
            before.append(start)
        if not ends[units]:
            return None
        cuts = [units]
        for start in reversed(before):
            cuts.append(int(start[cuts[-1]]))
        return cuts[::-1]


@dataclass(frozen=True)
class Setup:
    """An option on a grid of processes, without cuts. `kept`: bytes for each byte of trained weights, itself included,
    over all replicas that shard them."""

    chain: Chain
    grid: Grid
    option: Option
    kept: float

    @property
    def state(self) -> float:
        """Bytes in a process for each byte of trained weights of its stages."""
        return self.kept / self.option.replicas if self.option.sharded else self.kept

    def groups(self, first: int, stop: int) -> tuple[int, ...]:
        """Return the ends of a stage's groups of units whose parameters are gathered together, of about equal
        bytes."""
        weights = self.chain.weights[first : stop + 1]
        total = int(weights[-1] - weights[0])
        count = min(MOST_GROUPS, max(1, total // BUCKET_BYTES))
        ends = first + np.searchsorted(weights, weights[0] + total * np.arange(1, count) / count)
        return tuple(sorted({*ends.tolist(), stop} - {first}))

    @cached_property
    def kinds(self) -> tuple[int, ...]:
        """Slowest kind at each position."""
        return tuple(
            max((self.chain.kind(kind) for kind in kinds), key=lambda k: float(self._spent(k)[-1]))
            for kinds in self.grid.kinds
        )

    def _spent(self, kind: int) -> Numbers:
        spent = self.upto("forward", kind)
        return spent + self.upto("backward", kind) if self.option.trained else spent

    def upto(self, what: str, kind: int) -> Numbers:
        """Return the seconds of a micro-batch in all units before each position, as `Chain.upto`."""
        return self.chain.upto(what, kind, self.option.rows, self.option.micro_batches)

    @property
    def roomy(self) -> bool:
        """False if a replica's memory is too small for the weights and one micro-batch, however cut."""
        chain, caps = self.chain, self.grid.caps
        least = self.state * chain.weight_bytes(0, len(chain.units))
        if self.option.trained:
            least += self.option.rows * float(chain.saved[-1])
        return None in caps or least <= sum(cap or 0 for cap in caps)

    def live(self, position: int) -> NDArray[np.int64]:
        """Return how many micro-batches of each chunk of a position have saved bytes alive, at moments that
        may be the worst."""
        option = self.option
        if not option.trained:
            return np.zeros((1, option.chunks), np.int64)
        return in_flight(option.schedule, option.positions, option.chunks, option.micro_batches, position)

    @cached_property
    def cutting(self) -> _Cutting:
        """The cutting problem."""
        option, chain, count = self.option, self.chain, self.option.positions
        spent = {kind: self._spent(kind) for kind in set(self.kinds)}
        crossing = chain.crossing * option.rows
        live = [self.live(at).max(axis=0) for at in range(count)]
        most = [live[s % count][s // count] for s in range(option.stages)]
        state = self.state + (GATHERED / MOST_GROUPS if option.sharded else 0.0)
        held = state * chain.weights + chain.buffers + option.rows * np.outer(most, chain.saved)
        ties = [(state * nbytes, uses) for nbytes, uses in chain.uses]
        links: list[Numbers] = []
        for s in range(option.stages - 1):
            src, dst = s % count, (s + 1) % count
            pair = [self.grid.links[src, dst], self.grid.links[dst, src]][: 2 if option.trained else 1]
            each = [link.latency_s + crossing / link.bytes_per_s for link in pair] if src != dst else []
            links.append(np.maximum.reduce(each) if each else np.zeros(len(crossing)))
        caps = [None if cap is None else cap / option.chunks for cap in self.grid.caps] * option.chunks
        return _Cutting(
            [spent[self.kinds[s % count]] for s in range(option.stages)], links, list(held), caps, ties
        )


@dataclass(frozen=True)
class Partition:
    """A setup with its cuts, from 0 to the number of units."""

    setup: Setup
    cuts: tuple[int, ...]

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """Stages with their figures for one micro-batch."""
        setup, chain, rows = self.setup, self.setup.chain, self.setup.option.rows
        stages = []
        for number, (first, stop) in enumerate(zip(self.cuts, self.cuts[1:])):
            kind = setup.kinds[number % setup.option.positions]
            stages.append(
                Stage(
                    first, stop, self._seconds("forward", kind, first, stop),
                    self._seconds("backward", kind, first, stop) if setup.option.trained else 0.0,
                    round(float(chain.crossing[stop]) * rows),
                    round(float(chain.saved[stop] - chain.saved[first]) * rows) if setup.option.trained else 0,
                    chain.weight_bytes(first, stop) + chain.buffer_bytes(first, stop),
                    setup.groups(first, stop) if setup.option.sharded else (),
                )
            )  # fmt: skip
        return tuple(stages)

    def _seconds(self, what: str, kind: int, first: int, stop: int) -> float:
        upto = self.setup.upto(what, kind)
        return float(upto[stop] - upto[first])

    @cached_property
    def passes(self) -> list[dict[str, float]]:
        """Seconds of each stage's actions, as in `passes_of`."""
        setup, option = self.setup, self.setup.option
        shares = [
            self._seconds("weight", setup.kinds[number % option.positions], stage.first, stage.stop)
            / stage.backward_s
            if stage.backward_s
            else 0.0
            for number, stage in enumerate(self.stages)
        ]
        weights = [setup.chain.weight_bytes(stage.first, stage.stop) for stage in self.stages]
        return passes_of(setup.grid, option, self.stages, weights, shares)

    @cached_property
    def ties(self) -> tuple[tuple[tuple[int, ...], int], ...]:
        """(stages, bytes) of each parameter that several stages share."""
        ties = [
            (tuple(dict.fromkeys(bisect_right(self.cuts, user) - 1 for user in users)), nbytes)
            for nbytes, users in self.setup.chain.shared.values()
        ]
        return tuple((on, nbytes) for on, nbytes in ties if len(on) > 1)

    @cached_property
    def memory(self) -> tuple[int, ...]:
        """Peak bytes of each position: state, micro-batches in flight, and one message in and out."""
        return tuple(self._held(position) for position in range(self.setup.option.positions))

    def _held(self, position: int) -> int:
        chain, option = self.setup.chain, self.setup.option
        stages = self.stages[position :: option.positions]
        state, moving, gathered = option.rows * chain.scratch_bytes, 0, 0
        for stage in stages:
            weights = chain.weight_bytes(stage.first, stage.stop)
            state += self.setup.state * weights + chain.buffer_bytes(stage.first, stage.stop)
            gathered = max(gathered, self._gathered(stage))
            moving = max(moving, stage.bytes_out + round(float(chain.crossing[stage.first]) * option.rows))
        saved = self.setup.live(position) @ np.array([stage.saved_bytes for stage in stages])
        return round(state) + moving + gathered + int(saved.max())

    def _gathered(self, stage: Stage) -> int:
        """Return the bytes that a sharded stage holds beyond its shards: its largest group, and parameters used by
        several groups, with their gradients."""
        chain, ends = self.setup.chain, (stage.first, *stage.groups)
        largest = max((chain.weight_bytes(a, b) for a, b in pairwise(ends)), default=0)
        several = sum(
            nbytes
            for nbytes, users in chain.shared.values()
            if len({bisect_right(ends, user) for user in users if stage.first <= user < stage.stop}) > 1
        )
        return GATHERED * largest + 2 * several if stage.groups else 0

    @cached_property
    def over(self) -> tuple[int, int]:
        """The largest excess over a cap in bytes, and its position; at most 0 if it fits."""
        rows = zip(self.memory, self.setup.grid.caps)
        return max(
            (nbytes - cap if cap is not None else -nbytes, position)
            for position, (nbytes, cap) in enumerate(rows)
        )

    @cached_property
    def ideal_s(self) -> float:
        """Seconds of the busiest process without waits."""
        count = self.setup.option.positions
        busy = [0.0] * count
        for number, stage in enumerate(self.stages):
            busy[number % count] += stage.forward_s + stage.backward_s
        return self.setup.option.micro_batches * max(busy)

    def bound_s(self, period: bool) -> float:
        """Return a lower bound on the step: for each process, arrival of the first micro-batch, all its work, and the
        way of the last gradient back to the first. With `period`, only its work and that of each link."""
        option, passes, grid = self.setup.option, self.passes, self.setup.grid
        count, m = option.positions, option.micro_batches
        links = [
            grid.links[s % count, (s + 1) % count].seconds(stage.bytes_out)
            if count > 1 and stage.bytes_out
            else 0.0
            for s, stage in enumerate(self.stages[:-1])
        ]
        if period:
            return max(self.ideal_s, m * max(links, default=0.0))
        back = "I" if option.schedule == "zero-bubble" and count > 1 else "B"
        reduced = [max(stage["sum"] for stage in passes[at::count]) for at in range(count)]
        head = tail = bound = 0.0
        for at in range(count):
            work = m * sum(stage["F"] + stage["B"] for stage in passes[at::count])
            end = work + (reduced[at] if back == "B" or not at else 0.0)
            if back == "B":
                end = max(end, work + tail + reduced[0])
            bound = max(bound, head + end)
            if at + 1 < count:
                head += passes[at]["F"] + links[at]
                tail += passes[at][back] if option.trained else 0.0
        return bound

    def step_s(self, period: bool) -> float:
        """Return the simulated seconds of a step; with `period`, of one of many successive steps."""
        option, grid = self.setup.option, self.setup.grid
        once = simulate(grid, option, self.stages, self.passes, self.ties).makespan
        if not period:
            return once
        # Only forward steps have a period, and two of these are one longer step.
        twice = replace(option, micro_batches=2 * option.micro_batches)
        return simulate(grid, twice, self.stages, self.passes, self.ties).makespan - once
