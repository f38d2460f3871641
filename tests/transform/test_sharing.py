"""Shares by speed and room: they add up, no device is given more than it has room for, and what fits is found."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.transform.split import allot, allot_within, allot_within_caps

DEVICES = st.lists(
    st.tuples(
        st.floats(0.1, 10),  # speed
        st.integers(0, 500),  # bytes it holds anyway
        st.integers(1, 50),  # bytes of each row
        st.one_of(st.none(), st.integers(0, 2000)),  # cap
    ),
    min_size=2,
    max_size=8,
)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    st.integers(1, 200), st.lists(st.tuples(st.floats(0.1, 10), st.floats(0, 100)), min_size=1, max_size=8)
)
def test_rows_follow_speed_up_to_the_room(batch, devices):
    speeds, rooms = zip(*devices)
    rows = allot_within(batch, speeds, rooms)
    if rows is None:
        assert sum(map(math.floor, rooms)) < batch
        return
    assert sum(rows) == batch and all(0 <= count <= room for count, room in zip(rows, rooms))
    free = [d for d in range(len(rows)) if rows[d] < math.floor(rooms[d])]
    for d in free:
        for other in range(len(rows)):
            # A slower device has more rows than its share only where the faster one is full.
            assert rows[other] / speeds[other] <= (rows[d] + 1) / speeds[d] + 1 / speeds[other] + 1e-9


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.integers(2, 64), DEVICES)
def test_what_fits_is_found_and_nothing_else(batch, devices):
    speeds, fixed, each, caps = zip(*devices)
    asked = []

    def peaks(rows):
        asked.append(rows)
        return [a + b * count for a, b, count in zip(fixed, each, rows)]

    found = allot_within_caps(batch, speeds, caps, peaks)
    rooms = [math.inf if cap is None else (cap - a) // b for a, b, cap in zip(fixed, each, caps)]
    # A device whose fixed bytes are over its cap can take no part at all, and peaks says so of no rows.
    possible = all(room >= 0 for room in rooms) and sum(rooms) >= batch
    plain = allot(batch, speeds)
    if all(count <= room for count, room in zip(plain, rooms)):
        assert found is None, "shares by speed fit as they are"
    elif possible:
        assert found is not None
        assert sum(found) == batch and all(count <= room for count, room in zip(found, rooms))
    else:
        assert found is None
    assert len(asked) <= 8


def test_rows_that_cannot_be_placed_end_the_search():
    assert allot_within_caps(8, [1, 1], [10, 10], lambda rows: None) is None


def test_the_first_device_fills_up_first():
    """The complaint about DataParallelTable: the first device holds the parameters and the outputs too."""

    def peaks(rows):
        return [100 + 10 * rows[0], *(10 + 10 * count for count in rows[1:])]

    found = allot_within_caps(32, [1.0] * 8, [120] + [100] * 7, peaks)
    assert found is not None and found[0] == 2 and sum(found) == 32 and max(found) <= 5
