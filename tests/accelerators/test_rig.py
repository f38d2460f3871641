"""Inference, training and `DataParallel` on an accelerator, as on the CPU. `rig_table.py` runs all of `rig_cases`."""

import itertools

import pytest
import rig
from rig_cases import Case

pytestmark = pytest.mark.gpu


def chosen() -> list[Case]:
    """Each way for each model and home; policies and cuts by turns, so that each meets each model."""
    found = []
    ways = ("inference", "own loop", "train_step")
    settings = itertools.cycle(itertools.product(rig.POLICIES, (None, 2)))
    for model in rig.MODELS:
        for home, way in itertools.product(("cpu", rig.FIRST), ways):
            found.append(Case(way, model, home, *next(settings)))
        next(settings)
    for home, model in zip(itertools.cycle((rig.FIRST, "cpu")), rig.MODELS):
        found.append(Case("DataParallel", model, home))
    return found


@pytest.mark.thin(4)
@pytest.mark.parametrize("case", chosen(), ids=str)
def test_as_on_the_cpu(case):
    assert case.run() <= rig.LIMIT
