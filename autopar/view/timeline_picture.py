"""The timeline as SVG."""

from __future__ import annotations

from ..timeline import Timeline
from .svg import Svg


def timeline_svg(timeline: Timeline) -> str:
    """The picture of a timeline."""
    return str(Svg(1600, 400, timeline.title))
