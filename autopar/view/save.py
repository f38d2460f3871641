"""Files of plans and timelines: a registry of writers by suffix, used by `draw` and `save_timeline`."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import TypeAlias, TypeVar

from ..errors import AutoparError
from ..ir.plan import Plan
from ..ir.timeline import Timeline
from .dot import dot_text
from .pages import placed_page, timeline_page
from .placed import placed_svg
from .timeline import timeline_svg
from .trace import trace_bytes

Writer: TypeAlias = Callable[..., str | bytes]
"""Returns the contents of a file: `writer(plan, measured)`, with a timeline or None, or `writer(timeline)`."""
W = TypeVar("W", bound=Writer)

_WRITERS: dict[type, dict[str, Writer]] = {Plan: {}, Timeline: {}}


def writer(suffix: str, noun: type[Plan] | type[Timeline]) -> Callable[[W], W]:
    """Register the decorated `Writer` for files of plans or timelines with the suffix `suffix`, such as `.svg`."""

    def register(function: W) -> W:
        _WRITERS[noun][suffix] = function
        return function

    return register


def suffixes(noun: type[Plan] | type[Timeline]) -> tuple[str, ...]:
    """Return the suffixes of files of plans or timelines."""
    return tuple(_WRITERS[noun])


def draw(plan: Plan, path: str | PathLike[str], *, timeline: Timeline | None = None) -> None:
    """Write the placed graph as `.html` `.svg` `.png` or `.dot`, with figures of a measured `timeline` if given.

    Raises AutoparError for another suffix, or for `.png` without cairosvg.
    """
    _write(Path(path), "a plan", plan, timeline)


def save_timeline(timeline: Timeline, path: str | PathLike[str]) -> None:
    """Write a timeline for Perfetto or chrome://tracing (`.json`, `.json.gz`) or as a picture (`.svg` `.html` `.png`).

    Raises AutoparError for another suffix, or for `.png` without cairosvg.
    """
    _write(Path(path), "a timeline", timeline)


def _write(target: Path, what: str, noun: Plan | Timeline, *more: Timeline | None) -> None:
    kind = kind_of(target, suffixes(type(noun)), what)
    contents = _WRITERS[type(noun)][kind](noun, *more)
    target.write_bytes(contents.encode() if isinstance(contents, str) else contents)


def kind_of(target: Path, known: tuple[str, ...], what: str) -> str:
    """Return the suffix of an output file. Raises AutoparError if it is unknown."""
    name = target.name.lower()
    for kind in sorted(known, key=len, reverse=True):
        if name.endswith(kind):
            return kind
    raise AutoparError(f"cannot write {what} to {str(target)!r}: the name must end in {', '.join(known)}")


writer(".html", Plan)(placed_page)
writer(".svg", Plan)(placed_svg)
writer(".png", Plan)(lambda plan, measured: png(placed_svg(plan, measured)))
writer(".dot", Plan)(lambda plan, measured: dot_text(plan))
writer(".json", Timeline)(lambda timeline: trace_bytes(timeline, compress=False))
writer(".json.gz", Timeline)(lambda timeline: trace_bytes(timeline, compress=True))
writer(".svg", Timeline)(timeline_svg)
writer(".html", Timeline)(timeline_page)
writer(".png", Timeline)(lambda timeline: png(timeline_svg(timeline)))


def png(svg: str) -> bytes:
    """Return a picture as PNG, with two pixels for each of the SVG's.

    Raises AutoparError without cairosvg or the system's cairo library.
    """
    try:
        import cairosvg
    except ImportError:
        raise AutoparError(
            "a .png picture needs cairosvg, which is not installed; "
            "type: pip install 'autopar[png]', or write .svg or .html instead"
        ) from None
    except OSError as error:
        raise AutoparError(
            "a .png picture needs the cairo library, which cairosvg cannot find on this system; "
            "install it (Debian: apt install libcairo2, macOS: brew install cairo), "
            "or write .svg or .html instead"
        ) from error
    return bytes(cairosvg.svg2png(bytestring=svg.encode(), scale=2.0))
