"""Quick models of the zoo and all traps, round robin over a CPU and two strict accelerators."""

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
MORE = ("bert", "llama", "t5 (tied weights)", "clip")
"""Models of which the run without an accelerator leaves the kind to another."""
CHOSEN = (*(entry for entry in MODELS if entry.quick or entry.name in MORE), *TRAPS)


@pytest.mark.thin(4)
@pytest.mark.parametrize("entry", [pytest.param(entry, id=entry.name) for entry in CHOSEN])
def test_as_eager(entry: Entry) -> None:
    whole, halves = shown(entry)
    assert re.match(r"exact|\d", whole), whole
    assert halves == REFUSED or re.match(r"exact|\d", halves), halves
