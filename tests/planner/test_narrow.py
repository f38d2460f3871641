"""Machines where links are missing: devices that cannot be part of a plan are left out, and no others."""

import itertools
import random
from unittest import mock

import pytest
from benchmarks.judging import described
from benchmarks.verify import infeasibilities
from hypothesis import given, settings
from hypothesis import strategies as st
from taskfiles import randomly

from autopar.errors import PlanError
from autopar.planner import place
from autopar.planner.formats import read
from autopar.planner.model.instance import Instance


def placements(instance):
    """All placements of each cluster once where every value can come from its maker to its readers."""
    for device in itertools.product(*instance.allowed):
        ways = [
            instance.route[device[m] if m >= 0 else instance.home[v]][d]
            for v, m in enumerate(instance.maker)
            for d in (*(device[r] for r in instance.readers[v]), *instance.deliver[v])
        ]
        together = all(len({device[r] for r in members}) == 1 for members in instance.members)
        if None not in ways and together:
            yield device


@pytest.mark.slow
@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10**9))
def test_narrowed_devices_keep_every_feasible_placement(seed):
    draw = random.Random(seed)
    graph = randomly(draw, 5)
    graph["links"] = [own for own in graph["links"] if draw.random() < 0.5]
    try:
        costed = read(graph)
    except PlanError:
        return
    with mock.patch("autopar.planner.model.instance._narrow", lambda instance: instance.allowed):
        found = [*placements(Instance(costed))]
    if not found:
        with pytest.raises(PlanError, match=r"no link, nor two in a row, brings .*; add a link"):
            Instance(costed)
        return
    allowed = Instance(costed).allowed
    assert all(d in allowed[r] for device in found for r, d in enumerate(device))
    assert infeasibilities(graph, described(place(costed))) == []
