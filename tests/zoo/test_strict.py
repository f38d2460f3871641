"""Quick models of the zoo, and traps of memory and random numbers, on a CPU and two strict accelerators in turn."""

from __future__ import annotations

import re

import pytest
import rig

from .entry import Entry
from .models import MODELS
from .strict_route import REFUSED, shown
from .traps import TRAPS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(rig.KIND != "strict", reason="its devices are the stand-in's: --accelerator strict"),
]
NAMED = (
    "timm resnet10t", "gpt2", "outputs alias each other", "write through a view", "cache kept as an attribute",
    "inputs that share memory, one mutated", "operators that hand their argument on", "random draws of several kinds",
    "shape that depends on values", "attention with dropout in training", "buffer replaced by assignment",
)  # fmt: skip
CHOSEN = [entry for entry in (*MODELS, *TRAPS) if entry.name in NAMED or (entry in TRAPS and entry.quick)]


@pytest.mark.parametrize("entry", [pytest.param(entry, id=entry.name) for entry in CHOSEN])
def test_as_eager(entry: Entry) -> None:
    whole, halves = shown(entry)
    assert re.match(r"exact|\d", whole), whole
    assert halves == REFUSED or re.match(r"exact|\d", halves), halves
