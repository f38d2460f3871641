"""`draw` and `save_timeline`: which picture a file gets, by its suffix."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from ..errors import AutoparError
from ..ir.plan import Plan
from ..ir.timeline import Timeline

PLAN_KINDS = (".html", ".svg", ".png", ".dot", ".txt")
TIMELINE_KINDS = (".json", ".json.gz", ".svg", ".html", ".png")


def draw(plan: Plan, path: str | PathLike[str], *, timeline: Timeline | None = None) -> None:
    """Write the placed graph as `.html` `.svg` `.png` `.dot` or `.txt`; a measured `timeline` adds what it
    measured.

    Raises AutoparError for another suffix, or for `.png` when cairosvg is not installed.
    """
    target = Path(path)
    kind = kind_of(target, PLAN_KINDS, "a plan")
    if kind == ".dot":
        from .dot import dot_text

        target.write_text(dot_text(plan), encoding="utf-8")
    elif kind == ".txt":
        from .report.text import text_chart

        target.write_text(text_chart(plan), encoding="utf-8")
    elif kind == ".html":
        from .pages.html import placed_page

        target.write_text(placed_page(plan, timeline), encoding="utf-8")
    else:
        from .placed import placed_svg

        _picture(target, kind, placed_svg(plan, timeline))


def save_timeline(timeline: Timeline, path: str | PathLike[str]) -> None:
    """Write a timeline for Perfetto or chrome://tracing (`.json`, `.json.gz`) or as a picture (`.svg`
    `.html` `.png`).

    Raises AutoparError for another suffix, or for `.png` when cairosvg is not installed.
    """
    target = Path(path)
    kind = kind_of(target, TIMELINE_KINDS, "a timeline")
    if kind.startswith(".json"):
        from .trace import trace_bytes

        target.write_bytes(trace_bytes(timeline, compress=kind == ".json.gz"))
    elif kind == ".html":
        from .pages.html import timeline_page

        target.write_text(timeline_page(timeline), encoding="utf-8")
    else:
        from .timeline import timeline_svg

        _picture(target, kind, timeline_svg(timeline))


def _picture(target: Path, kind: str, svg: str) -> None:
    if kind == ".png":
        from .drawing.png import png_bytes

        target.write_bytes(png_bytes(svg))
    else:
        target.write_text(svg, encoding="utf-8")


def kind_of(target: Path, known: tuple[str, ...], what: str) -> str:
    """The suffix of a file to be written; AutoparError when it is none of those known."""
    name = target.name.lower()
    for kind in sorted(known, key=len, reverse=True):
        if name.endswith(kind):
            return kind
    raise AutoparError(f"cannot write {what} to {str(target)!r}: the name must end in {', '.join(known)}")
