"""Text for people: aligned tables, numbers, names, and the progress of long stages."""

from __future__ import annotations

import logging
import math
import re
import sys
import textwrap
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

from ..errors import DeviceError, PlanError

log = logging.getLogger("autopar")

PATIENCE_S = 1.0
"""Seconds before a progress bar appears: most stages end sooner."""
COLUMNS = 100
"""Limit on the width of a report."""
_PROSE = 30
"""Least width of a last column that is wrapped."""


def table(
    rows: Sequence[Sequence[Any]], *, right: Sequence[int] = (), widest: int = 48, width: int | None = None
) -> str:
    """Format rows as aligned text, the first one a heading. Columns in `right` are right-aligned; long cells end in
    `…`.

    width: limit on the columns of a line. The last column is wrapped and the longest cells lose their middles.
    """
    cells = [[printable(str(cell)) for cell in row] for row in rows]
    cells = cells if width else [[clip(cell, widest) for cell in row] for row in cells]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    last = len(widths) - 1
    while width and sum(widths) + 2 * last > width:
        prose = last not in right and widths[last] > _PROSE
        widths[last if prose else widths.index(max(widths))] -= 1
    lines = []
    for row in cells:
        line = [shorten(cell, limit) for cell, limit in zip(row[:-1], widths)]
        parts = textwrap.wrap(row[-1], max(1, widths[last])) if len(row[-1]) > widths[last] else [row[-1]]
        for part in parts:
            lines.append(
                "  ".join(
                    cell.rjust(limit) if column in right else cell.ljust(limit)
                    for column, (cell, limit) in enumerate(zip([*line, part], widths))
                ).rstrip()
            )
            line = [""] * last
    lines.insert(1, "  ".join("-" * limit for limit in widths))
    return "\n".join(lines)


def wrapped(text: str, width: int = COLUMNS) -> str:
    """Return a paragraph in lines of at most `width` characters, all but the first indented."""
    return textwrap.fill(text, width, subsequent_indent="  ", break_on_hyphens=False)


def shorten(text: str, widest: int) -> str:
    """Shorten text to at most `widest` characters, with `…` in its middle: names often differ at their ends."""
    if len(text) <= widest:
        return text
    end = widest // 2
    return f"{text[: widest - end - 1]}…{text[len(text) - end :]}" if widest > 0 else ""


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


_NOTHING = 1e-12
"""Seconds below which a duration is a rounding error."""


def seconds(value: float) -> str:
    """Format a duration with one to three digits before the point: `4.90 ms`; from weeks on with an exponent."""
    if abs(value) >= _LONG:
        return f"{value:.3g} s"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9)):
        if abs(value) >= size * _UP:
            return f"{value / size:.{_places(value / size)}f} {unit}"
    return f"{value / 1e-9:.3g} ns" if abs(value) >= _NOTHING else "0 s"


def size(value: float) -> str:
    """Format bytes in decimal units: `164 kB`, `1.24 MB`."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(value) >= scale * _UP:
            return f"{value / scale:.{_places(value / scale)}f} {unit}"
    return f"{value:.0f} B"


def percent(share: float) -> str:
    """Format a share as a whole percentage: `58 %`."""
    return "∞ %" if share == math.inf else f"{share * 100:.0f} %"


def percent_free(share: float) -> str:
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


def matching(pattern: str, names: Collection[str], complaint: str) -> list[str]:
    """Return the names that match a name or glob. Raises PlanError with the complaint and a suggestion if there are
    none."""
    # A shortened name stands for those with its ends.
    glob = pattern.replace("…", "*")
    matches = [pattern] if pattern in names else [name for name in names if fnmatchcase(name, glob)]
    if not matches:
        near = get_close_matches(pattern, names, 1)
        hint = f"did you mean {near[0]!r}?" if near else "give the id of a task, or a glob of ids"
        raise PlanError(f"{complaint}; {hint}")
    return matches


@contextmanager
def stage(title: str) -> Iterator[None]:
    """Log the start of the block, and its seconds at the end, also if it raises. On a terminal and in a notebook, show
    a progress bar after 1 s, if the package rich is installed."""
    start, end = time.perf_counter(), "%s failed after %s"
    log.info("%s …", title)
    try:
        with _progress(title):
            yield
        end = "%s: %s"
    finally:
        log.info(end, title, seconds(time.perf_counter() - start))


@contextmanager
def _progress(title: str) -> Iterator[None]:
    """Show that the block is running; wiped at its end."""
    if not (sys.stderr is not None and sys.stderr.isatty()) and "ipykernel" not in sys.modules:
        yield
        return
    try:
        from rich.console import Console
        from rich.errors import LiveError
        from rich.markup import escape
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    except ImportError:
        yield
        return
    columns = TextColumn("autopar: {task.description}"), BarColumn(20), TimeElapsedColumn()
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    bar.add_task(escape(title), total=None)

    def show() -> None:
        # The caller may show a bar of its own.
        with suppress(LiveError):
            bar.start()

    timer = threading.Timer(PATIENCE_S, show)
    timer.daemon = True
    try:
        # An interrupt may come while the thread starts.
        timer.start()
        yield
    finally:
        timer.cancel()
        if timer.is_alive():
            timer.join()
        if bar.live.is_started:
            bar.stop()
