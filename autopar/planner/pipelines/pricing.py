"""One way to run a chain, with its cuts: the seconds of its stages, its memory, a lower bound, its simulated step."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ...ir.distribution import Stage
from .chain import Chain, Numbers
from .cuts import Cutting
from .grid import Grid
from .options import Option
from .orders import Action, in_flight, orders
from .simulation import simulate, sums


@dataclass(frozen=True)
class Setup:
    """An option on a grid of processes, before any cut. `state` is the bytes kept for each byte of trained weights,
    that byte included."""

    chain: Chain
    grid: Grid
    option: Option
    state: float

    @cached_property
    def kinds(self) -> tuple[int, ...]:
        """The slowest kind of each position."""
        return tuple(
            max((self.chain.kind(kind) for kind in kinds), key=lambda k: float(self._spent(k)[-1]))
            for kinds in self.grid.kinds
        )

    def _spent(self, kind: int) -> Numbers:
        rows = self.option.rows
        spent = self.chain.upto("forward", kind, rows)
        return spent + self.chain.upto("backward", kind, rows) if self.option.trained else spent

    @property
    def roomy(self) -> bool:
        """False where all memory of a replica is too small for the weights and one micro-batch, however it is cut."""
        chain, caps = self.chain, self.grid.caps
        least = self.state * chain.weight_bytes(0, len(chain.units))
        if self.option.trained:
            least += self.option.rows * float(chain.saved[-1])
        return None in caps or least <= sum(cap or 0 for cap in caps)

    @cached_property
    def orders(self) -> list[list[Action]]:
        """The actions of each position."""
        option = self.option
        return orders(option.schedule, option.positions, option.chunks, option.micro_batches, option.trained)

    def live(self, position: int) -> NDArray[np.int64]:
        """Micro-batches of each chunk of a position whose saved bytes are held, at moments that may be the worst."""
        option = self.option
        if not option.trained:
            return np.zeros((1, option.chunks), np.int64)
        return in_flight(option.schedule, option.positions, option.chunks, option.micro_batches, position)

    @cached_property
    def cutting(self) -> Cutting:
        """The problem of where to cut."""
        option, chain, count = self.option, self.chain, self.option.positions
        spent = {kind: self._spent(kind) for kind in set(self.kinds)}
        crossing = chain.crossing * option.rows
        live = [self.live(at).max(axis=0) for at in range(count)]
        most = [live[s % count][s // count] for s in range(option.stages)]
        held = self.state * chain.weights + chain.buffers + option.rows * np.outer(most, chain.saved)
        ties = [(self.state * nbytes, uses) for nbytes, uses in chain.uses]
        links: list[Numbers] = []
        for s in range(option.stages - 1):
            src, dst = s % count, (s + 1) % count
            pair = [self.grid.ways[src, dst], self.grid.ways[dst, src]][: 2 if option.trained else 1]
            each = [way.latency_s + crossing / way.bytes_per_s for way in pair] if src != dst else []
            links.append(np.maximum.reduce(each) if each else np.zeros(len(crossing)))
        caps = [self._cap(s % count) for s in range(option.stages)]
        return Cutting(
            [spent[self.kinds[s % count]] for s in range(option.stages)], links, list(held), caps, ties
        )

    def _cap(self, position: int) -> float | None:
        cap = self.grid.caps[position]
        return None if cap is None else cap / self.option.chunks


@dataclass(frozen=True)
class Priced:
    """A setup with its cuts, from 0 to the number of units."""

    setup: Setup
    cuts: tuple[int, ...]

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """The stages with their figures for one micro-batch."""
        setup, chain, rows = self.setup, self.setup.chain, self.setup.option.rows
        found = []
        for number, (first, stop) in enumerate(zip(self.cuts, self.cuts[1:])):
            kind = setup.kinds[number % setup.option.positions]
            found.append(
                Stage(
                    first, stop, self._seconds("forward", kind, first, stop),
                    self._seconds("backward", kind, first, stop) if setup.option.trained else 0.0,
                    round(float(chain.crossing[stop]) * rows),
                    round(float(chain.saved[stop] - chain.saved[first]) * rows) if setup.option.trained else 0,
                    chain.weight_bytes(first, stop) + chain.buffer_bytes(first, stop),
                )
            )  # fmt: skip
        return tuple(found)

    def _seconds(self, what: str, kind: int, first: int, stop: int) -> float:
        upto = self.setup.chain.upto(what, kind, self.setup.option.rows)
        return float(upto[stop] - upto[first])

    @cached_property
    def weights(self) -> list[int]:
        """Bytes of the parameters of each stage that are trained."""
        trained = self.setup.option.trained
        return [self.setup.chain.weight_bytes(s.first, s.stop) if trained else 0 for s in self.stages]

    @cached_property
    def weights_s(self) -> list[float]:
        """Seconds of each stage's backward that make the gradients of weights."""
        trained, kinds = self.setup.option.trained, self.setup.kinds
        return [
            self._seconds("weight", kinds[number % len(kinds)], stage.first, stage.stop) if trained else 0.0
            for number, stage in enumerate(self.stages)
        ]

    @cached_property
    def ties(self) -> tuple[tuple[tuple[int, ...], int], ...]:
        """(stages, bytes) of each parameter that several stages have."""
        found = [
            (tuple(dict.fromkeys(self._stage_of(user) for user in users)), nbytes)
            for nbytes, users in self.setup.chain.shared.values()
        ]
        return tuple((on, nbytes) for on, nbytes in found if len(on) > 1)

    def _stage_of(self, unit: int) -> int:
        return next(number for number, stop in enumerate(self.cuts[1:]) if unit < stop)

    @cached_property
    def memory(self) -> tuple[int, ...]:
        """Peak bytes of each position: state, what the schedule has in flight, and one message in and out."""
        return tuple(self._held(position) for position in range(self.setup.option.positions))

    def _held(self, position: int) -> int:
        chain, option = self.setup.chain, self.setup.option
        own = self.stages[position :: option.positions]
        state, moving = option.rows * chain.scratch_bytes, 0
        for stage in own:
            weights = chain.weight_bytes(stage.first, stage.stop)
            state += self.setup.state * weights + chain.buffer_bytes(stage.first, stage.stop)
            moving = max(moving, stage.bytes_out + round(float(chain.crossing[stage.first]) * option.rows))
        saved = self.setup.live(position) @ np.array([stage.saved_bytes for stage in own])
        return round(state) + moving + int(saved.max())

    @cached_property
    def over(self) -> tuple[int, int]:
        """Bytes above the cap, the most of any position, and that position; up to 0 where it fits."""
        rows = zip(self.memory, self.setup.grid.caps)
        return max(
            (nbytes - cap if cap is not None else -nbytes, position)
            for position, (nbytes, cap) in enumerate(rows)
        )

    @cached_property
    def ideal_s(self) -> float:
        """Seconds of the busiest process alone, without any wait."""
        count = self.setup.option.positions
        busy = [0.0] * count
        for number, stage in enumerate(self.stages):
            busy[number % count] += stage.forward_s + stage.backward_s
        return self.setup.option.micro_batches * max(busy)

    def bound_s(self, period: bool) -> float:
        """No step is shorter: the first micro-batch must come to a process and the last gradient go from there to the
        first, and in between it has all its work. With `period`, only the work, and that of each link."""
        option, grid = self.setup.option, self.setup.grid
        count, m = option.positions, option.micro_batches
        links = [
            grid.ways[s % count, (s + 1) % count].seconds(self.stages[s].bytes_out) if count > 1 else 0.0
            for s in range(option.stages - 1)
        ]
        if period:
            return max(self.ideal_s, m * max(links, default=0.0))
        apart = option.schedule == "zero-bubble" and count > 1
        reduced = [grid.reduce_s(at, max(self.weights[at::count])) for at in range(count)]
        head = tail = found = 0.0
        for at in range(count):
            own = range(at, option.stages, count)
            work = m * sum(self.stages[s].forward_s + self.stages[s].backward_s for s in own)
            end = work + (0.0 if apart and at else reduced[at])
            if not apart:
                end = max(end, work + tail + reduced[0])
            found = max(found, head + end)
            if at + 1 < count:
                head += self.stages[at].forward_s + links[at]
                tail += self.stages[at].backward_s - (self.weights_s[at] if apart else 0.0)
        return found

    def step_s(self, period: bool) -> float:
        """Seconds of a step as the simulator plays it; with `period` those of one of many that follow each other."""
        setup = self.setup
        first = self._played(setup.orders)
        if not period:
            return first
        once = setup.option.micro_batches
        twice = [
            [*order, *(action._replace(micro_batch=action.micro_batch + once) for action in order)]
            for order in setup.orders
        ]
        return self._played(twice) - first

    def _played(self, turns: list[list[Action]]) -> float:
        grid = self.setup.grid
        summed = sums(grid, self.weights, self.ties if self.setup.option.trained else ())
        return simulate(self.stages, self.weights_s, summed, turns, grid.ways).makespan
