"""A model as a chain of units, with the figures needed to cut it into pipeline stages; and the chain with recomputation
in the backward, or with tensor parallelism. Pure data."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...errors import PlanError
from ...ir.device import Link
from .grid import all_reduce_s

Numbers: TypeAlias = NDArray[np.float64]

FEW, MANY = 32, 256
"""Limits on the stages tried: with repeated layers (or their number, if larger), and without."""


class RowCost(NamedTuple):
    """Seconds of a unit on one kind of process: `fixed_s + per_row_s × rows`; a row is one sample of the batch."""

    fixed_s: float = 0.0
    per_row_s: float = 0.0

    def seconds(self, rows: float) -> float:
        """Return the seconds of `rows` rows."""
        return self.fixed_s + self.per_row_s * rows

    def plus(self, other: RowCost) -> RowCost:
        """Return the cost of both, one after the other."""
        return RowCost(self.fixed_s + other.fixed_s, self.per_row_s + other.per_row_s)


@dataclass(frozen=True, slots=True)
class Unit:
    """An operator of the model, or several that are never separated.

    forward, backward: costs for each of `Chain.kinds`, or one for all.
    weights: (key, bytes) of the trained parameters it reads; a shared tensor has one key.
    buffer_bytes: state that is not trained.
    saved_bytes: bytes per row that the forward saves for the backward.
    crossing_bytes: bytes per row of all values that cross a cut right after this unit; a skip connection counts for
    every cut that it crosses.
    weight_share: share of the backward that computes gradients of weights, which a zero-bubble schedule may delay.
    block: the repeated layer it belongs to, if any.
    divisible: tensor parallelism divides its work, weights and saved bytes.
    sum_bytes: bytes per row that tensor parallelism sums over the group, in the forward and again in the backward.
    """

    name: str
    forward: tuple[RowCost, ...]
    backward: tuple[RowCost, ...] = (RowCost(),)
    weights: tuple[tuple[str, int], ...] = ()
    buffer_bytes: int = 0
    saved_bytes: float = 0.0
    crossing_bytes: float = 0.0
    module: str = ""
    weight_share: float = 0.5
    block: str = ""
    divisible: bool = False
    sum_bytes: float = 0.0


@dataclass(frozen=True)
class Chain:
    """Units of a model in topological order. `kinds`: kinds of process that they are priced for, as in `Process.kind`.
    A process needs `scratch_bytes` per row in addition to what it saves.

    added_bytes_per_s: for each kind, or one for all, bytes of weight gradients added to those of earlier micro-batches
    in a second; infinite if the products that compute them also add them, as in Megatron-LM.

    Example:
        Chain("mlp", ("host0",), tuple(
            Unit(f"layer{i}", (RowCost(1e-5, 1e-6),), (RowCost(2e-5, 2e-6),), ((f"layer{i}.weight", 4096),),
                 saved_bytes=256, crossing_bytes=256)
            for i in range(12)
        ))
    """

    name: str
    kinds: tuple[str, ...]
    units: tuple[Unit, ...]
    scratch_bytes: float = 0.0
    added_bytes_per_s: tuple[float, ...] = (math.inf,)

    @property
    def most_stages(self) -> int:
        """Limit on the stages worth trying: the number of repeated layers, if there are many."""
        blocks = {unit.block for unit in self.units if unit.block}
        return min(len(self.units), max(len(blocks), FEW) if blocks else MANY)

    def kind(self, name: str) -> int:
        """Return the number of a kind of process. Raises PlanError if the units are not priced for it."""
        if name not in self.kinds:
            raise PlanError(
                f"the chain {self.name!r} is not priced for processes such as {name!r}, but for "
                f"{', '.join(self.kinds)}; price its units for each kind that processes(hosts) names"
            )
        return self.kinds.index(name)

    @cached_property
    def _costs(self) -> dict[str, NDArray[np.float64]]:
        """Prefix sums over the units of the figures of `RowCost`: (kinds, units + 1, 2)."""
        count, shares = len(self.kinds), np.array([unit.weight_share for unit in self.units])
        forward = np.array([_each(unit.forward, count) for unit in self.units], float)
        backward = np.array([_each(unit.backward, count) for unit in self.units], float)
        costs = {"forward": forward, "backward": backward, "weight": backward * shares[:, None, None]}
        none = np.zeros((count, 1, 2))
        return {
            word: np.concatenate((none, sums.transpose(1, 0, 2).cumsum(axis=1)), axis=1)
            for word, sums in costs.items()
        }

    def upto(self, what: str, kind: int, rows: float, micro_batches: int = 1) -> Numbers:
        """Return the mean seconds of a micro-batch in all units before each position; `what` is `forward`, `backward`,
        or `weight` (the weight gradients in the backward). All micro-batches but the first add their weight gradients
        to those of earlier ones."""
        key = what, kind, rows, micro_batches
        if key not in self._known:
            sums = self._costs[what][kind]
            prefix = sums[:, 0] + sums[:, 1] * rows
            if what != "forward" and micro_batches > 1:
                rate = self.added_bytes_per_s[min(kind, len(self.added_bytes_per_s) - 1)]
                prefix += self.weights / rate * (1 - 1 / micro_batches)
            self._known[key] = prefix
        return self._known[key]

    @cached_property
    def _known(self) -> dict[tuple[str, int, float, int], Numbers]:
        return {}

    @cached_property
    def saved(self) -> Numbers:
        """Bytes per row saved by all units before each position."""
        return np.concatenate(([0.0], np.cumsum([unit.saved_bytes for unit in self.units])))

    @cached_property
    def crossing(self) -> Numbers:
        """Bytes per row that cross a cut at each position; 0 at both ends."""
        return np.array([0.0, *(unit.crossing_bytes for unit in self.units[:-1]), 0.0])

    @cached_property
    def weights(self) -> NDArray[np.int64]:
        """Bytes of the parameters of all units before each position, counted for each unit that reads them."""
        return np.concatenate(([0], np.cumsum([sum(_bytes(unit)) for unit in self.units])))

    @cached_property
    def uses(self) -> list[tuple[int, NDArray[np.int64]]]:
        """Bytes of each parameter that several units read, and the number of these before each position."""
        uses = []
        for nbytes, users in self.shared.values():
            counts = np.zeros(len(self.units) + 1, np.int64)
            np.add.at(counts, [user + 1 for user in users], 1)
            uses.append((nbytes, np.cumsum(counts)))
        return uses

    @cached_property
    def buffers(self) -> NDArray[np.int64]:
        """Bytes of untrained state of all units before each position."""
        return np.concatenate(([0], np.cumsum([unit.buffer_bytes for unit in self.units])))

    @cached_property
    def shared(self) -> dict[str, tuple[int, tuple[int, ...]]]:
        """Bytes of each parameter that several units read, and those units."""
        users: dict[str, list[int]] = {}
        sizes: dict[str, int] = {}
        for number, unit in enumerate(self.units):
            for key, nbytes in unit.weights:
                users.setdefault(key, []).append(number)
                sizes[key] = nbytes
        return {key: (sizes[key], tuple(of)) for key, of in users.items() if len(of) > 1}

    def weight_bytes(self, first: int, stop: int) -> int:
        """Return the bytes of the trained parameters of units `first` to `stop - 1`, each tensor once."""
        total = int(self.weights[stop] - self.weights[first])
        for nbytes, uses in self.uses:
            total -= nbytes * max(0, int(uses[stop] - uses[first]) - 1)
        return total

    def buffer_bytes(self, first: int, stop: int) -> int:
        """Return the bytes of untrained state of units `first` to `stop - 1`."""
        return int(self.buffers[stop] - self.buffers[first])


def _bytes(unit: Unit) -> list[int]:
    return [nbytes for _, nbytes in unit.weights]


def _each(costs: tuple[RowCost, ...], count: int) -> tuple[RowCost, ...]:
    """Return the costs of each of `count` kinds, from one for all or one for each."""
    return costs * (count // len(costs))


def recomputed(chain: Chain) -> Chain:
    """Recompute each repeated layer in the backward, so that only its input is saved (Chen et al., "Training deep nets
    with sublinear memory cost", 2016). During recomputation, one layer's saved values are alive."""
    units: list[Unit] = []
    scratch, before = chain.scratch_bytes, 0.0
    for block, members in groupby(chain.units, key=lambda unit: unit.block):
        layer = list(members)
        if block:
            scratch = max(scratch, sum(unit.saved_bytes for unit in layer))
            for number, unit in enumerate(layer):
                count = max(len(unit.backward), len(unit.forward))
                again = zip(_each(unit.backward, count), _each(unit.forward, count))
                both = tuple(backward.plus(forward) for backward, forward in again)
                saved = 0.0 if number else before
                share = unit.weight_share * _share(unit.backward, both)
                units.append(replace(unit, backward=both, saved_bytes=saved, weight_share=share))
        else:
            units += layer
        before = layer[-1].crossing_bytes
    return replace(chain, units=tuple(units), scratch_bytes=scratch)


def tensor_parallel(chain: Chain, group: int, link: Link) -> Chain:
    """Divide the divisible units of a chain over `group` accelerators joined by links like `link`.

    Products come in pairs, by column and by row (Shoeybi et al., "Megatron-LM", 2019): attention and MLP
    together sum activations twice in the forward and twice in the backward. Figures are for one accelerator.
    """
    if group == 1:
        return chain
    return replace(chain, units=tuple(_shared(unit, group, link) for unit in chain.units))


def _shared(unit: Unit, group: int, link: Link) -> Unit:
    if not unit.divisible:
        return unit
    latency = 2 * (group - 1).bit_length() * link.latency_s if unit.sum_bytes else 0.0
    moved = all_reduce_s(group, unit.sum_bytes, 0.0, link.bytes_per_s)

    def each(costs: tuple[RowCost, ...]) -> tuple[RowCost, ...]:
        return tuple(RowCost(cost.fixed_s + latency, cost.per_row_s / group + moved) for cost in costs)

    backward = each(unit.backward)
    divided = tuple(cost.per_row_s / group for cost in unit.backward)
    plain = sum(divided) / sum(cost.per_row_s for cost in backward) if any(divided) else 1.0
    return replace(
        unit,
        forward=each(unit.forward),
        backward=backward,
        weights=tuple((key, -(-nbytes // group)) for key, nbytes in unit.weights),
        saved_bytes=unit.saved_bytes / group,
        weight_share=unit.weight_share * plain,
    )


def _share(part: tuple[RowCost, ...], whole: tuple[RowCost, ...]) -> float:
    total = sum(cost.per_row_s for cost in whole)
    return sum(cost.per_row_s for cost in part) / total if total else 1.0
