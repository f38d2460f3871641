"""HTML of a bounded size for notebooks: of a plan, a timeline or a text."""

from __future__ import annotations

import html

from ..ir.plan import Plan
from ..ir.timeline import Timeline
from ..text.tables import counted, seconds
from .placed import placed_svg
from .timeline import timeline_svg

STEPS = 2_000
"""Steps above which a picture is left to a file: a notebook keeps what it shows."""


def plan_html(plan: Plan) -> str:
    """The picture of a plan; of a large one the first rows of its table."""
    return _picture(placed_svg(plan)) if len(plan.steps) <= STEPS else text_html(repr(plan))


def timeline_html(timeline: Timeline) -> str:
    """The picture of a timeline; of a large one a sentence."""
    if len(timeline.spans) <= STEPS:
        return _picture(timeline_svg(timeline))
    return text_html(
        f"timeline of {timeline.title}: {counted(len(timeline.spans), 'span')} in {seconds(timeline.makespan)}; "
        "timeline.save('run.html') draws them"
    )


def text_html(text: str) -> str:
    """Text as it is, columns under each other."""
    return f"<pre>{html.escape(text)}</pre>"


def _picture(svg: str) -> str:
    return f'<div style="overflow: auto">{svg}</div>'
