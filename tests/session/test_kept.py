"""Of what serves signatures the least recently used goes."""

from __future__ import annotations

import pytest

from autopar.session import program_cache as calls
from autopar.session.options import Options
from autopar.session.program_cache import ProgramCache

MOST = 8


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "SIZES", MOST)


class Made:
    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


def filled(count: int) -> tuple[ProgramCache[Made], list[Made]]:
    kept, made = ProgramCache[Made]("the model", None, Options()), [Made() for _ in range(count)]
    for key, each in enumerate(made):
        kept.add(key, each)
    return kept, made


def test_the_least_recently_used_goes_and_is_closed() -> None:
    kept, made = filled(MOST)
    assert kept.used(0) is made[0] and kept.used("unknown") is None
    kept.add("one more", Made())
    assert len(kept) == MOST and 1 not in kept and 0 in kept
    assert [each.closed for each in made] == [0, 1] + [0] * (MOST - 2)


def test_that_it_goes_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    filled(MOST)
    assert not caplog.records
    filled(MOST + 3)
    assert [
        record.message.startswith(f"the model is called with more than {MOST}") for record in caplog.records
    ] == [True]


def test_what_is_dropped_is_closed_and_closing_keeps() -> None:
    kept, made = filled(3)
    kept.drop(made[1])
    assert [*kept] == [0, 2] and made[1].closed == 1
    kept.close()
    assert [*kept] == [0, 2] and [each.closed for each in made] == [1, 1, 1]
