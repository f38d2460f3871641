"""Cuts of a chain: the least bottleneck there is, found by trying all."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.planner.pipelines.pricing import PRECISION, _Cutting

SECONDS = st.floats(0, 10).map(lambda s: round(s, 2))


@st.composite
def cuttings(draw) -> _Cutting:
    """Up to nine units in up to four stages, each with its own speed, links and perhaps a cap."""
    units, stages = draw(st.integers(2, 9)), draw(st.integers(1, 4))
    work = draw(st.lists(SECONDS, min_size=units, max_size=units))
    speeds = draw(st.lists(st.sampled_from([1.0, 2.0, 3.5]), min_size=stages, max_size=stages))
    spent = [np.concatenate(([0.0], np.cumsum(work))) * speed for speed in speeds]
    links = [
        np.array([0.0, *draw(st.lists(SECONDS, min_size=units - 1, max_size=units - 1)), 0.0])
        for _ in range(stages - 1)
    ]
    held = np.concatenate(([0.0], np.cumsum(draw(st.lists(SECONDS, min_size=units, max_size=units)))))
    caps = draw(st.lists(st.none() | st.floats(5, 40), min_size=stages, max_size=stages))
    return _Cutting(spent, links, [held] * stages, caps)


def fits(cutting: _Cutting, cuts) -> bool:
    stages = zip(cutting.held, cutting.caps, cuts, cuts[1:])
    return all(cap is None or held[stop] - held[start] <= cap for held, cap, start, stop in stages)


@pytest.mark.slow
@given(cuttings())
@settings(max_examples=100, deadline=None)
def test_no_cuts_have_a_smaller_bottleneck(cutting):
    units, stages = len(cutting.spent[0]) - 1, len(cutting.spent)
    all_cuts = [(0, *inner, units) for inner in combinations(range(1, units), stages - 1)]
    fitting = [cutting.bottleneck(cuts) for cuts in all_cuts if fits(cutting, cuts)]
    best = cutting.least_bottleneck()
    if best is None:
        assert not fitting
        return
    assert fits(cutting, best) and len(best) == stages + 1 and sorted(set(best)) == best
    assert cutting.bottleneck(best) <= min(fitting) * (1 + 2 * PRECISION) + 1e-12
