"""Derived chains: with recomputation in the backward, or with tensor parallelism."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

from .chain import Chain, RowCost, Unit
from .grid import Way, all_reduce_s


def recomputed(chain: Chain) -> Chain:
    """Recompute each repeated layer in the backward, so that only its input is saved (Chen et al., "Training deep nets
    with sublinear memory cost", 2016). During recomputation, one layer's saved values are alive."""
    units: list[Unit] = []
    scratch, before = chain.scratch_bytes, 0.0
    for block, members in groupby(chain.units, key=lambda unit: unit.block):
        own = list(members)
        if block:
            scratch = max(scratch, sum(unit.saved_bytes for unit in own))
            for number, unit in enumerate(own):
                both = tuple(_added(b, f) for b, f in _pairs(unit))
                kept = 0.0 if number else before
                share = unit.weight_share * _share(unit.backward, both)
                units.append(replace(unit, backward=both, saved_bytes=kept, weight_share=share))
        else:
            units += own
        before = own[-1].crossing_bytes
    return replace(chain, units=tuple(units), scratch_bytes=scratch)


def tensor_parallel(chain: Chain, group: int, link: Way) -> Chain:
    """Divide the divisible units of a chain over `group` accelerators joined by links like `link`.

    Pairs of a column and a row product (Shoeybi et al., "Megatron-LM", 2019): an attention layer and an MLP sum their
    activations twice in the forward and twice in the backward. Figures are for one accelerator.
    """
    if group == 1:
        return chain
    return replace(chain, units=tuple(_shared(unit, group, link) for unit in chain.units))


def _shared(unit: Unit, group: int, link: Way) -> Unit:
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


def _pairs(unit: Unit) -> list[tuple[RowCost, RowCost]]:
    """Return backward and forward costs of each kind."""
    count = max(len(unit.backward), len(unit.forward))
    return [
        (unit.backward[min(k, len(unit.backward) - 1)], unit.forward[min(k, len(unit.forward) - 1)])
        for k in range(count)
    ]


def _added(a: RowCost, b: RowCost) -> RowCost:
    return RowCost(a.fixed_s + b.fixed_s, a.per_row_s + b.per_row_s)


def _share(part: tuple[RowCost, ...], whole: tuple[RowCost, ...]) -> float:
    total = sum(cost.per_row_s for cost in whole)
    return sum(cost.per_row_s for cost in part) / total if total else 1.0
