"""No program of the public reports gets a wrong answer without a word: autopar answers as eager does, or refuses."""

from __future__ import annotations

import pytest

from . import table
from .cases import CASES, Case

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("case", [pytest.param(c, id=f"{c.issue}-{c.title}") for c in CASES])
def test_no_answer_is_silently_wrong(case: Case) -> None:
    (row,) = table.rows([case], ["autopar"])
    assert row.verdicts["autopar"] != table.WRONG


def test_a_wrong_answer_is_told() -> None:
    """The judge of this table can fail."""
    wrong = Case(0, "answers otherwise when compiled", lambda compile: compile is not table.eager)
    (row,) = table.rows([wrong], ["autopar"])
    assert row.verdicts["autopar"] == table.WRONG
