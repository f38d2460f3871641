"""Progress of long stages: on a terminal a bar over items, or a count of seconds where there are none;
elsewhere, in a notebook or a log, a line every few seconds."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO, TypeVar

log = logging.getLogger("autopar")

T = TypeVar("T")

PATIENCE_S = 1.0
"""No bar before this: most stages are over sooner."""
EVERY_S = 5.0
"""Between two lines where there is no terminal."""
WIDTH = 30


def bar(items: Sequence[T], title: str, stream: TextIO | None = None) -> Iterator[T]:
    """The items, with a bar on a terminal once they have taken over a second; it is wiped at the end. Elsewhere a
    warning every five seconds says how far they are."""
    out = sys.stderr if stream is None else stream
    terminal = out.isatty()
    start = said = time.monotonic()
    shown = 0
    try:
        for number, item in enumerate(items):
            now = time.monotonic()
            if terminal and now - start > PATIENCE_S:
                filled = "#" * (WIDTH * number // len(items))
                line = f"{title} [{filled.ljust(WIDTH)}] {number}/{len(items)}"
                out.write("\r" + line.ljust(shown))
                out.flush()
                shown = len(line)
            elif not terminal and now - said > EVERY_S:
                log.warning("%s: %d of %d, after %.0f s", title, number, len(items), now - start)
                said = now
            yield item
    finally:
        if shown:
            out.write("\r" + " " * shown + "\r")
            out.flush()


@contextmanager
def ticking(title: str, stream: TextIO | None = None) -> Iterator[None]:
    """Count the seconds of the block on a terminal once there is more than one; they are wiped at the end. Elsewhere a
    warning every five seconds says that it is at work."""
    out = sys.stderr if stream is None else stream
    over = threading.Event()
    count = _counted if out.isatty() else _logged
    counter = threading.Thread(target=count, args=(title, over, out), name="autopar progress", daemon=True)
    counter.start()
    try:
        yield
    finally:
        over.set()
        counter.join()


def _counted(title: str, over: threading.Event, out: TextIO) -> None:
    start, shown = time.monotonic(), 0
    while not over.wait(PATIENCE_S):
        line = f"{title} … {time.monotonic() - start:.0f} s"
        out.write("\r" + line)
        out.flush()
        shown = len(line)
    if shown:
        out.write("\r" + " " * shown + "\r")
        out.flush()


def _logged(title: str, over: threading.Event, _: TextIO) -> None:
    start = time.monotonic()
    while not over.wait(EVERY_S):
        # A logger without handlers shows warnings and nothing below.
        log.warning("%s: at work for %.0f s", title, time.monotonic() - start)
