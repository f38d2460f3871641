"""What a terminal shows of stages that may take long: a bar over items, a count of seconds where there are none."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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


@contextmanager
def ticking(title: str, stream: TextIO | None = None) -> Iterator[None]:
    """Count the seconds of the block on a terminal once there is more than one; they are wiped at the end."""
    out = sys.stderr if stream is None else stream
    if not out.isatty():
        yield
        return
    over = threading.Event()
    start = time.monotonic()

    def count() -> None:
        shown = 0
        while not over.wait(PATIENCE_S):
            line = f"{title} … {time.monotonic() - start:.0f} s"
            out.write("\r" + line)
            out.flush()
            shown = len(line)
        if shown:
            out.write("\r" + " " * shown + "\r")
            out.flush()

    counter = threading.Thread(target=count, name="autopar progress", daemon=True)
    counter.start()
    try:
        yield
    finally:
        over.set()
        counter.join()
