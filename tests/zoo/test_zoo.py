"""Every model of the zoo gives eager's answer under any placement: quick ones always, all with `-m zoo`."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from autopar.errors import PlanError

from . import coverage, routes
from .compare import verdict
from .coverage import STRICT, Row
from .entry import Entry
from .models import MODELS
from .strict_route import ERRORS, REFUSED, verdicts
from .traps import TRAPS

pytestmark = pytest.mark.slow

ALL = (*MODELS, *TRAPS)
ROWS: dict[str, Row] = {}


@pytest.fixture(scope="session", autouse=True)
def table() -> Iterator[None]:
    """Write the table when every model of the zoo was tried."""
    yield
    if set(ROWS) == {entry.name for entry in ALL}:
        coverage.write(ROWS[entry.name] for entry in ALL)


def show(entry: Entry, *left_out: str) -> Row:
    """Run an entry on every route but some and say how each went."""
    row = Row(entry.name, entry.family, reason=entry.loose)
    reference = routes.eager(entry)
    for name, route in routes.routes().items():
        if name in left_out:
            continue
        try:
            answer, found = routes.placed(entry, route)
        except PlanError as error:
            if name == "batch in two" and "cannot be cut" in str(error):
                continue
            row.verdicts[name] = f"PlanError: {error}"
        except ERRORS as error:
            row.verdicts[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        else:
            row.verdicts[name] = verdict(reference, answer)
            row.found = row.found or found
    return row


def judge(row: Row, entry: Entry) -> None:
    """Fail unless an entry is placed as far as it should be, and equal everywhere."""
    wrong = {route: verdict for route, verdict in row.verdicts.items() if not re.match(r"exact|\d", verdict)}
    assert not wrong, "\n".join(f"{route}: {verdict}" for route, verdict in wrong.items())
    whole = [row.verdicts[name] for name in ("task by task", "cpu") if name in row.verdicts]
    assert entry.loose or set(whole) == {"exact"}, row.verdicts
    assert row.found is not None and row.found.graphs <= entry.graphs, row.found
    assert bool(row.written) == bool(entry.written) and re.search(entry.written, row.written), row.written


@pytest.mark.parametrize(
    "entry",
    # tests/uses/test_language.py has the calls of GPT-2, and those that go on from a cache.
    [pytest.param(e, id=e.name) for e in ALL if e.quick and e.name != "gpt2"],
)
def test_quick(entry: Entry) -> None:
    # What is exact on a CPU is so task by task.
    judge(show(entry, "task by task"), entry)


@pytest.mark.zoo
@pytest.mark.parametrize("entry", [pytest.param(e, id=e.name) for e in ALL])
def test_all(entry: Entry) -> None:
    ROWS[entry.name] = show(entry)
    judge(ROWS[entry.name], entry)


@pytest.mark.zoo
def test_all_on_the_strict_accelerator() -> None:
    """After all others, whose rows it adds a cell to."""
    found = verdicts(entry.name for entry in ALL)
    for name, row in ROWS.items():
        row.verdicts[STRICT] = found[name]
    assert not {
        name: cell for name, cell in found.items() if cell != REFUSED and not re.match(r"exact|\d", cell)
    }
