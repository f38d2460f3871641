"""Every model of the zoo gives eager's answer under any placement: quick ones always, all with `-m zoo`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from autopar.errors import CaptureError, PlanError

from . import coverage, routes
from .compare import verdict
from .coverage import STRICT, Row
from .entry import Entry
from .models import MODELS
from .strict_route import ERRORS, REFUSED, verdicts
from .traps import TRAPS

ALL = (*MODELS, *TRAPS)
ROWS: dict[str, Row] = {}
SEEDS = (0, 1)


@pytest.fixture(scope="session", autouse=True)
def table() -> Iterator[None]:
    """Write the table when every model of the zoo was tried."""
    yield
    if set(ROWS) == {entry.name for entry in ALL}:
        coverage.write(ROWS[entry.name] for entry in ALL)


def show(entry: Entry) -> Row:
    """Run an entry on every route and say how each went; a row without `how` was refused."""
    row = Row(entry.name, entry.family, reason=entry.loose)
    reference = routes.eager(entry)
    try:
        subject = routes.Subject.of(entry)
    except CaptureError as error:
        row.reason = " ".join(str(error).split())
        return row
    row.reason = row.reason or " ".join(" ".join(subject.captured.notes).split())
    row.how, row.tasks = subject.captured.how, len(subject.captured.graph.tasks)
    ways: dict[str, Callable[[], Any]] = {
        "task by task": lambda: routes.interpreted(subject),
        "cpu": lambda: routes.compiled(subject),
        "round robin": lambda: routes.executed(subject),
        "adversarial": lambda: [routes.adversarial(subject, seed) for seed in SEEDS],
        "batch in two": lambda: routes.executed(subject, parts=2),
    }
    if row.how == "opaque":
        # One step in one lane has no order to turn round, and the adversary would change copies of its state.
        del ways["adversarial"], ways["batch in two"]
    for name, way in ways.items():
        try:
            answer = way()
        except PlanError as error:
            if name == "batch in two" and "cannot be cut" in str(error):
                continue
            row.verdicts[name] = f"PlanError: {error}"
            continue
        except ERRORS as error:
            row.verdicts[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            continue
        expected = [reference] * len(SEEDS) if name == "adversarial" else reference
        row.verdicts[name] = verdict(expected, answer)
    return row


def judge(entry: Entry) -> None:
    """Show an entry and fail unless it is refused as it should be, or equal everywhere."""
    row = ROWS[entry.name] = show(entry)
    if entry.refuses:
        assert not row.how, f"captured by {row.how}, should have been refused: {entry.refuses}"
        assert re.search(entry.refuses, row.reason), row.reason
        return
    assert row.how, row.reason
    wrong = {route: verdict for route, verdict in row.verdicts.items() if not re.match(r"exact|\d", verdict)}
    assert not wrong, "\n".join(f"{route}: {verdict}" for route, verdict in wrong.items())
    assert entry.loose or row.verdicts["task by task"] == row.verdicts["cpu"] == "exact", row.verdicts


@pytest.mark.parametrize("entry", [pytest.param(e, id=e.name) for e in ALL if e.quick])
def test_quick(entry: Entry) -> None:
    judge(entry)


@pytest.mark.zoo
@pytest.mark.parametrize("entry", [pytest.param(e, id=e.name) for e in ALL])
def test_all(entry: Entry) -> None:
    judge(entry)


@pytest.mark.zoo
def test_all_on_the_strict_accelerator() -> None:
    """After all others, whose rows it adds a cell to."""
    found = verdicts(entry.name for entry in ALL)
    for name, row in ROWS.items():
        row.verdicts[STRICT] = found[name]
    assert not {
        name: cell for name, cell in found.items() if cell != REFUSED and not re.match(r"exact|\d", cell)
    }
