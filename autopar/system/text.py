"""Text for people: aligned tables, numbers and names as people read and write them, progress of long stages.

Progress is shown on a terminal as a bar over items, or as a count of seconds where there are none; elsewhere, in a
notebook or a log, as a line every few seconds.
"""

from __future__ import annotations

import logging
import math
import re
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, TextIO, TypeVar

from ..errors import DeviceError, PlanError

log = logging.getLogger("autopar")

T = TypeVar("T")

PATIENCE_S = 1.0
"""No bar before this: most stages are over sooner."""
EVERY_S = 5.0
"""Between two lines where there is no terminal."""
_WIDTH = 30


def table(rows: Sequence[Sequence[Any]], *, right: Sequence[int] = (), widest: int = 48) -> str:
    """Rows as aligned text, the first a heading. Columns in `right` are flush right; long cells end in `…`."""
    cells = [[clip(str(cell), widest) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    lines = [
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths))
        ).rstrip()
        for row in cells
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def clip(text: str, widest: int) -> str:
    """Text of at most `widest` characters, which ends in `…` where it was longer."""
    return text if len(text) <= widest else text[: widest - 1] + "…" if widest > 0 else ""


_UP = 0.9995
"""From this share of a unit on a figure is rounded up to it: `1.00 ms`, not `1000 µs`."""


_LONG = 1e6
"""Seconds that are too many to be counted off by eye."""


def seconds(value: float) -> str:
    """A duration in the unit that keeps one to three digits before the point: `4.90 ms`; from weeks on, and under a
    nanosecond, three digits and a power of ten."""
    if abs(value) >= _LONG:
        return f"{value:.3g} s"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9)):
        if abs(value) >= size * _UP:
            return f"{value / size:.{_places(value / size)}f} {unit}"
    return f"{value / 1e-9:.3g} ns" if value else "0 s"


def size(value: float) -> str:
    """Bytes in decimal units: `164 kB`, `1.24 MB`."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(value) >= scale * _UP:
            return f"{value / scale:.{_places(value / scale)}f} {unit}"
    return f"{value:.0f} B"


def percent(share: float) -> str:
    """A share of one as a whole percentage: `58 %`."""
    return "∞ %" if share == math.inf else f"{share * 100:.0f} %"


def free(share: float) -> str:
    """A share that is free, which is all of it where nothing is held alone."""
    return "> 99 %" if 0.995 <= share < 1 else percent(share)


def counted(number: int, noun: str) -> str:
    """A number with its noun: `1 task`, `3 tasks`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _places(value: float) -> int:
    return 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0


_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", 1):
    _UNITS |= {_letter: 1000**_power, f"{_letter}b": 1000**_power, f"{_letter}ib": 1024**_power}


def parse_bytes(size: int | float | str) -> int:
    """Bytes of `6GiB`, `500 MB`, `1.5g` or a number; decimal unless the unit has an i. DeviceError for the
    rest."""
    if isinstance(size, (int, float)) and not isinstance(size, bool) and 0 <= size < float("inf"):
        return int(size)
    if isinstance(size, str):
        match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([a-zA-Z]*)\s*", size)
        if match and match[2].lower() in _UNITS:
            return round(float(match[1]) * _UNITS[match[2].lower()])
    raise DeviceError(f'{size!r} is no amount of memory; write bytes as a number, or "6GiB", "500MB"')


def meant(pattern: str, names: Collection[str], complaint: str) -> list[str]:
    """The names that a name, or a glob of names, means. Where there is none raises PlanError: the complaint, and what
    may have been meant."""
    found = [pattern] if pattern in names else [name for name in names if fnmatchcase(name, pattern)]
    if not found:
        near = get_close_matches(pattern, names, 1)
        hint = f"did you mean {near[0]!r}?" if near else "give the id of a task, or a glob of ids"
        raise PlanError(f"{complaint}; {hint}")
    return found


def bar(items: Sequence[T], title: str, stream: TextIO | None = None) -> Iterator[T]:
    """The items, with a bar on a terminal once they have taken over a second; it is wiped at the end. Elsewhere a
    warning every five seconds says how far they are."""
    number, count = 0, len(items)

    def line(_: float) -> str:
        return f"{title} [{('#' * (_WIDTH * number // count)).ljust(_WIDTH)}] {number}/{count}"

    with _told(line, lambda took: f"{title}: {number} of {count}, after {took:.0f} s", stream):
        for number, item in enumerate(items):  # noqa: B007 - what is told goes by it
            yield item


@contextmanager
def ticking(title: str, stream: TextIO | None = None) -> Iterator[None]:
    """Count the seconds of the block on a terminal once there is more than one; they are wiped at the end. Elsewhere a
    warning every five seconds says that it is at work."""
    with _told(
        lambda took: f"{title} … {took:.0f} s", lambda took: f"{title}: at work for {took:.0f} s", stream
    ):
        yield


@contextmanager
def _told(
    line: Callable[[float], str], report: Callable[[float], str], stream: TextIO | None
) -> Iterator[None]:
    """Write the line of so many seconds on a terminal, else log the report, from a thread while the block runs."""
    out = sys.stderr if stream is None else stream
    over = threading.Event()

    def tell() -> None:
        start, shown, terminal = time.monotonic(), 0, out.isatty()
        while not over.wait(PATIENCE_S if terminal else EVERY_S):
            if terminal:
                text = line(time.monotonic() - start)
                out.write("\r" + text.ljust(shown))
                out.flush()
                shown = len(text)
            else:
                # A logger without handlers shows warnings and nothing below.
                log.warning("%s", report(time.monotonic() - start))
        if shown:
            out.write("\r" + " " * shown + "\r")
            out.flush()

    teller = threading.Thread(target=tell, name="autopar progress", daemon=True)
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()
