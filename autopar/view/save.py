"""Files of plans and timelines, written by `draw` and `save_timeline` in the format of their suffix."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any

from ..errors import AutoparError
from ..ir.plan import Plan
from ..ir.timeline import Theme, Timeline
from .pages import placed_page, timeline_page
from .placed import placed_svg
from .timeline import timeline_svg
from .trace import trace_bytes

_SIZED = (".svg", ".png", ".pdf")
"""Files whose width and theme can be chosen."""
_LEAST, _MOST = 640, 20_000
"""Limits on the width of a picture in pixels."""


def draw(
    plan: Plan, path: str | PathLike[str], *, width: float | None = None, theme: Theme | None = None
) -> None:
    """Write the placed graph as `.html` `.svg` `.png` or `.pdf`.

    `.svg`, `.png` and `.pdf` are `width` pixels wide (1200; more if the devices need it; a pixel of a PDF is 1/96 inch)
    and `light` or `dark`; a page fits its window and has both themes. Raises AutoparError for another suffix, a width
    or theme of another file, or for `.png` and `.pdf` without cairosvg.
    """
    _write(Path(path), plan, width=width, theme=theme)


def save_timeline(
    timeline: Timeline, path: str | PathLike[str], *, width: float | None = None, theme: Theme | None = None
) -> None:
    """Write a timeline for Perfetto or chrome://tracing (`.json`, `.json.gz`) or as a picture (`.svg` `.html` `.png`
    `.pdf`).

    `width` and `theme` are those of `draw`; the usual width is 1600 pixels. Raises AutoparError as `draw` does.
    """
    _write(Path(path), timeline, width=width, theme=theme)


def kind_of(target: Path, noun: type[Plan] | type[Timeline], *others: str) -> str:
    """Return the suffix of a file of a plan or timeline, which may be one of `others`. Raises AutoparError if it is
    unknown."""
    known = (*others, *WRITERS[noun])
    for kind in sorted(known, key=len, reverse=True):
        if target.name.lower().endswith(kind):
            return kind
    raise AutoparError(
        f"cannot write a {noun.__name__.lower()} to {str(target)!r}: the name must end in {', '.join(known)}"
    )


def _write(target: Path, noun: Plan | Timeline, **look: object) -> None:
    kind = kind_of(target, type(noun))
    chosen = {name: value for name, value in look.items() if value is not None}
    if chosen and kind not in _SIZED:
        raise AutoparError(f"{' and '.join(chosen)} cannot be chosen for {kind}, but for {', '.join(_SIZED)}")
    if chosen.get("theme", "light") not in ("light", "dark"):
        raise AutoparError(f"theme is {chosen['theme']!r}; it must be 'light' or 'dark'")
    wide = chosen.get("width", _LEAST)
    if not isinstance(wide, (int, float)) or not _LEAST <= wide <= _MOST:
        raise AutoparError(f"width is {wide!r}; it must be a number of pixels from {_LEAST} to {_MOST:,}")
    contents = WRITERS[type(noun)][kind](noun, **chosen)
    target.write_bytes(contents.encode() if isinstance(contents, str) else contents)


def _png(svg: str) -> bytes:
    """Return a picture as PNG, with two pixels for each of the SVG's."""
    return bytes(_cairo("png").svg2png(bytestring=svg.encode(), scale=2.0))


def _pdf(svg: str) -> bytes:
    """Return a picture as PDF with embedded fonts."""
    return bytes(_cairo("pdf").svg2pdf(bytestring=svg.encode()))


def _cairo(kind: str) -> Any:
    try:
        import cairosvg
    except ImportError:
        raise AutoparError(
            f"a .{kind} picture needs cairosvg, which is not installed; "
            "type: pip install 'autopar[png]', or write .svg or .html instead"
        ) from None
    except OSError as error:
        raise AutoparError(
            f"a .{kind} picture needs the cairo library, which cairosvg cannot find on this system; "
            "install it (Debian: apt install libcairo2, macOS: brew install cairo), "
            "or write .svg or .html instead"
        ) from error
    return cairosvg


WRITERS: dict[type, dict[str, Callable[..., str | bytes]]] = {
    Plan: {
        ".html": placed_page,
        ".svg": placed_svg,
        ".png": lambda plan, **look: _png(placed_svg(plan, **look)),
        ".pdf": lambda plan, **look: _pdf(placed_svg(plan, **look)),
    },
    Timeline: {
        ".json": lambda timeline: trace_bytes(timeline, compress=False),
        ".json.gz": lambda timeline: trace_bytes(timeline, compress=True),
        ".svg": timeline_svg,
        ".html": timeline_page,
        ".png": lambda timeline, **look: _png(timeline_svg(timeline, **look)),
        ".pdf": lambda timeline, **look: _pdf(timeline_svg(timeline, **look)),
    },
}
"""The writers of files, by class and suffix."""
