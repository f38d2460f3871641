"""Inference, training and `DataParallel` on an accelerator, as on the CPU."""

import itertools

import pytest
import rig
from rig_cases import WAYS, Case

pytestmark = pytest.mark.gpu


def chosen() -> list[Case]:
    """Each model in two ways; homes, policies and cuts by turns, so that each way meets each of them."""
    ways, settings = [*WAYS], [*itertools.product(("cpu", rig.FIRST), rig.POLICIES, (None, 2))]
    return [
        Case(ways[at % 4], model, *settings[(5 * at) % len(settings)])
        for at, model in enumerate((*rig.MODELS, *reversed(rig.MODELS)))
    ]


@pytest.mark.parametrize("case", chosen(), ids=str)
def test_as_on_the_cpu(case):
    assert case.run() <= rig.LIMIT
