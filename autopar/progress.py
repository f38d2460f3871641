"""A plain text bar on stderr for what may take long."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import TextIO, TypeVar

T = TypeVar("T")

PATIENCE_S = 1.0
"""No bar before this: most stages are over sooner."""
WIDTH = 30


def bar(items: Sequence[T], title: str, stream: TextIO | None = None) -> Iterator[T]:
    """The items, with a bar on a terminal once they have taken over a second; it is wiped at the end."""
    out = sys.stderr if stream is None else stream
    start = time.monotonic()
    shown = 0
    try:
        for number, item in enumerate(items):
            if out.isatty() and time.monotonic() - start > PATIENCE_S:
                filled = "#" * (WIDTH * number // len(items))
                line = f"{title} [{filled.ljust(WIDTH)}] {number}/{len(items)}"
                out.write("\r" + line.ljust(shown))
                out.flush()
                shown = len(line)
            yield item
    finally:
        if shown:
            out.write("\r" + " " * shown + "\r")
            out.flush()
