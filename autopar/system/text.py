"""Text for people: aligned tables, numbers, names, and the progress of long stages.

Progress is a count of seconds on a terminal; elsewhere, in a notebook or log, a line every few seconds.
"""

from __future__ import annotations

import logging
import math
import re
import sys
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, TextIO

from ..errors import DeviceError, PlanError

log = logging.getLogger("autopar")

PATIENCE_S = 1.0
"""Seconds before a count appears: most stages end sooner."""
EVERY_S = 5.0
"""Seconds between two lines without a terminal."""


def table(rows: Sequence[Sequence[Any]], *, right: Sequence[int] = (), widest: int = 48) -> str:
    """Format rows as aligned text, the first one a heading. Columns in `right` are right-aligned; long cells end in
    `…`."""
    cells = [[clip(printable(str(cell)), widest) for cell in row] for row in rows]
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


def printable(text: str) -> str:
    """Return text for one line of a terminal: line breaks, control characters and changes of direction escaped, as
    names from a file may have them."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def clip(text: str, widest: int) -> str:
    """Shorten text to at most `widest` characters, with `…` at its end."""
    return text if len(text) <= widest else text[: widest - 1] + "…" if widest > 0 else ""


_UP = 0.9995
"""Share of a unit from which a figure is rounded up to it: `1.00 ms`, not `1000 µs`."""


_LONG = 1e6
"""Seconds above which a duration has an exponent."""


def seconds(value: float) -> str:
    """Format a duration with one to three digits before the point: `4.90 ms`; from weeks on, and below 1 ns, with
    three digits and an exponent."""
    if abs(value) >= _LONG:
        return f"{value:.3g} s"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9)):
        if abs(value) >= size * _UP:
            return f"{value / size:.{_places(value / size)}f} {unit}"
    return f"{value / 1e-9:.3g} ns" if value else "0 s"


def size(value: float) -> str:
    """Format bytes in decimal units: `164 kB`, `1.24 MB`."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(value) >= scale * _UP:
            return f"{value / scale:.{_places(value / scale)}f} {unit}"
    return f"{value:.0f} B"


def percent(share: float) -> str:
    """Format a share as a whole percentage: `58 %`."""
    return "∞ %" if share == math.inf else f"{share * 100:.0f} %"


def free(share: float) -> str:
    """Format a free share as a percentage: `100 %` only if nothing at all is held."""
    return "> 99 %" if 0.995 <= share < 1 else percent(share)


def brief(error: BaseException) -> str:
    """Return the class of an error, with the first line of its text if it has one."""
    lines = str(error).strip().splitlines()
    return ": ".join((type(error).__name__, *lines[:1])).rstrip()


def counted(number: int, noun: str) -> str:
    """Format a number with its noun: `1 task`, `3 tasks`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _places(value: float) -> int:
    return 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0


_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", 1):
    _UNITS |= {_letter: 1000**_power, f"{_letter}b": 1000**_power, f"{_letter}ib": 1024**_power}


def parse_bytes(size: int | float | str) -> int:
    """Parse bytes from `6GiB`, `500 MB`, `1.5g` or a number; decimal unless the unit has an i. Raises DeviceError."""
    if isinstance(size, (int, float)) and not isinstance(size, bool) and 0 <= size < float("inf"):
        return int(size)
    if isinstance(size, str):
        match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([a-zA-Z]*)\s*", size)
        if match and match[2].lower() in _UNITS:
            return round(float(match[1]) * _UNITS[match[2].lower()])
    raise DeviceError(f'{size!r} is not an amount of memory; write bytes as a number, or "6GiB", "500MB"')


def meant(pattern: str, names: Collection[str], complaint: str) -> list[str]:
    """Return the names that match a name or glob. Raises PlanError with the complaint and a suggestion if there are
    none."""
    matches = [pattern] if pattern in names else [name for name in names if fnmatchcase(name, pattern)]
    if not matches:
        near = get_close_matches(pattern, names, 1)
        hint = f"did you mean {near[0]!r}?" if near else "give the id of a task, or a glob of ids"
        raise PlanError(f"{complaint}; {hint}")
    return matches


@contextmanager
def ticking(title: str, stream: TextIO | None = None) -> Iterator[None]:
    """Count the seconds of the block on a terminal after 1 s, wiped at the end; elsewhere, log every 5 s that it
    runs."""
    out = sys.stderr if stream is None else stream
    over = threading.Event()

    def tell() -> None:
        start, shown, terminal = time.monotonic(), 0, out.isatty()
        while not over.wait(PATIENCE_S if terminal else EVERY_S):
            took = time.monotonic() - start
            if terminal:
                text = f"{title} … {took:.0f} s"
                out.write("\r" + text.ljust(shown))
                out.flush()
                shown = len(text)
            else:
                # A logger without handlers shows only warnings and errors.
                log.warning("%s: at work for %.0f s", title, took)
        if shown:
            out.write("\r" + " " * shown + "\r")
            out.flush()

    teller = threading.Thread(target=tell, name="autopar progress", daemon=True)
    try:
        # An interrupt may come while the thread starts.
        teller.start()
        yield
    finally:
        over.set()
        if teller.is_alive():
            teller.join()
