"""Chains that are made of others: recomputed layers, and units shared out over a group of accelerators."""

from __future__ import annotations

from dataclasses import replace

import pytest
from chains import even_chain
from hypothesis import given
from hypothesis import strategies as st

from autopar.ir.device import Link
from autopar.planner.pipelines import Chain
from autopar.planner.pipelines.chain import recomputed, tensor_parallel
from autopar.planner.pipelines.grid import all_reduce_s

FREE = Link("a", "b", 0.0, 1e30, None)


def layered(layers: int, each: int) -> Chain:
    """Equal layers of equal units between two that are in none; the second of a layer sums 1,000 bytes."""
    plain = even_chain(layers * each + 2, crossing=50.0)
    units = tuple(
        replace(unit, block=f"layers.{(i - 1) // each}", divisible=True, sum_bytes=1000.0 * (i % each == 0))
        if 0 < i <= layers * each
        else unit
        for i, unit in enumerate(plain.units)
    )
    return replace(plain, units=units)


@given(st.integers(1, 5), st.integers(1, 4))
def test_recomputed_layers_save_their_input_and_take_their_forward_again(layers, each):
    chain = layered(layers, each)
    again = recomputed(chain)
    assert again.saved[-1] == pytest.approx(layers * 50.0 + 2 * 100)
    assert again.scratch_bytes == pytest.approx(each * 100.0)
    inside = slice(1, layers * each + 1)
    forward = sum(unit.forward[0].per_row_s for unit in chain.units[inside])
    assert again.upto("backward", 0, 4)[-1] == pytest.approx(chain.upto("backward", 0, 4)[-1] + 4 * forward)
    assert again.upto("weight", 0, 4)[-1] == pytest.approx(chain.upto("weight", 0, 4)[-1])
    assert list(again.upto("forward", 0, 4)) == list(chain.upto("forward", 0, 4))


@given(st.integers(1, 4), st.sampled_from([2, 4, 8]))
def test_a_group_shares_work_weights_and_saved_bytes_of_divisible_units(layers, group):
    chain = layered(layers, 3)
    shared = tensor_parallel(chain, group, FREE)
    for old, new in zip(chain.units, shared.units):
        parts = group if old.divisible else 1
        assert new.forward[0].per_row_s == pytest.approx(old.forward[0].per_row_s / parts)
        assert new.backward[0].per_row_s == pytest.approx(old.backward[0].per_row_s / parts)
        assert new.saved_bytes == pytest.approx(old.saved_bytes / parts)
        assert new.crossing_bytes == old.crossing_bytes
        assert [n * parts for _, n in new.weights] == [n for _, n in old.weights]
    assert tensor_parallel(chain, 1, FREE) is chain


@given(st.sampled_from([2, 4, 8]), st.floats(1e-6, 1e-4), st.floats(1e6, 1e9))
def test_sums_of_a_group_are_in_the_forward_and_in_the_backward(group, latency, rate):
    chain = layered(2, 3)
    slow, quick = (
        tensor_parallel(chain, group, Link("a", "b", latency, rate, None)),
        tensor_parallel(chain, group, FREE),
    )
    rows, sums = 5, sum(unit.sum_bytes > 0 for unit in chain.units)
    once = all_reduce_s(group, rows * 1000.0, latency, rate)
    for word in ("forward", "backward"):
        longer = slow.upto(word, 0, rows)[-1] - quick.upto(word, 0, rows)[-1]
        assert longer == pytest.approx(sums * once, rel=1e-6)
    assert slow.upto("weight", 0, rows)[-1] == pytest.approx(quick.upto("weight", 0, rows)[-1], rel=0.2)


def test_an_all_reduce_sends_all_but_one_share_twice():
    assert all_reduce_s(4, 1e9, 0.0, 1e9) == pytest.approx(1.5)
    assert all_reduce_s(1, 1e9, 1.0, 1e9) == 0.0
    assert all_reduce_s(8, 1.0, 1e-3, 1e30) == pytest.approx(6e-3)
