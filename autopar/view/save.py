"""Files of plans and timelines: a registry of writers by suffix, used by `draw` and `save_timeline`."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from ..errors import AutoparError
from ..ir.plan import Plan
from ..ir.timeline import Theme, Timeline
from .dot import dot_text
from .pages import placed_page, timeline_page
from .placed import placed_svg
from .timeline import timeline_svg
from .trace import trace_bytes

Writer: TypeAlias = Callable[..., str | bytes]
"""Returns the contents of a file: `writer(plan, measured)`, with a timeline or None, or `writer(timeline)`."""
W = TypeVar("W", bound=Writer)

_SIZED = (".svg", ".png", ".pdf")
"""Files whose width and theme can be chosen."""
_LEAST, _MOST = 640, 20_000
"""Limits on the width of a picture in pixels."""

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


def draw(
    plan: Plan,
    path: str | PathLike[str],
    *,
    timeline: Timeline | None = None,
    width: float | None = None,
    theme: Theme | None = None,
) -> None:
    """Write the placed graph as `.html` `.svg` `.png` `.pdf` or `.dot`, with figures of a measured `timeline` if given.

    `.svg`, `.png` and `.pdf` are `width` pixels wide (1200; more if the devices need it; a pixel of a PDF is 1/96 inch)
    and `light` or `dark`; a page fits its window and has both themes. Raises AutoparError for another suffix, a width
    or theme of another file, or for `.png` and `.pdf` without cairosvg.
    """
    _write(Path(path), "a plan", plan, timeline, width=width, theme=theme)


def save_timeline(
    timeline: Timeline,
    path: str | PathLike[str],
    *,
    width: float | None = None,
    theme: Theme | None = None,
) -> None:
    """Write a timeline for Perfetto or chrome://tracing (`.json`, `.json.gz`) or as a picture (`.svg` `.html` `.png`
    `.pdf`).

    `width` and `theme` are those of `draw`; the usual width is 1600 pixels. Raises AutoparError as `draw` does.
    """
    _write(Path(path), "a timeline", timeline, width=width, theme=theme)


def _write(target: Path, what: str, noun: Plan | Timeline, *more: Timeline | None, **look: object) -> None:
    kind = kind_of(target, suffixes(type(noun)), what)
    chosen = {name: value for name, value in look.items() if value is not None}
    if chosen and kind not in _SIZED:
        raise AutoparError(f"{' and '.join(chosen)} cannot be chosen for {kind}, but for {', '.join(_SIZED)}")
    if chosen.get("theme", "light") not in ("light", "dark"):
        raise AutoparError(f"theme is {chosen['theme']!r}; it must be 'light' or 'dark'")
    wide = chosen.get("width", _LEAST)
    if not isinstance(wide, (int, float)) or not _LEAST <= wide <= _MOST:
        raise AutoparError(f"width is {wide!r}; it must be a number of pixels from {_LEAST} to {_MOST:,}")
    contents = _WRITERS[type(noun)][kind](noun, *more, **chosen)
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
writer(".png", Plan)(lambda plan, measured, **look: png(placed_svg(plan, measured, **look)))
writer(".pdf", Plan)(lambda plan, measured, **look: pdf(placed_svg(plan, measured, **look)))
writer(".dot", Plan)(lambda plan, measured: dot_text(plan))
writer(".json", Timeline)(lambda timeline: trace_bytes(timeline, compress=False))
writer(".json.gz", Timeline)(lambda timeline: trace_bytes(timeline, compress=True))
writer(".svg", Timeline)(timeline_svg)
writer(".html", Timeline)(timeline_page)
writer(".png", Timeline)(lambda timeline, **look: png(timeline_svg(timeline, **look)))
writer(".pdf", Timeline)(lambda timeline, **look: pdf(timeline_svg(timeline, **look)))


def png(svg: str) -> bytes:
    """Return a picture as PNG, with two pixels for each of the SVG's.

    Raises AutoparError without cairosvg or the system's cairo library.
    """
    return bytes(_cairo("png").svg2png(bytestring=svg.encode(), scale=2.0))


def pdf(svg: str) -> bytes:
    """Return a picture as PDF with embedded fonts. Raises AutoparError as `png` does."""
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
