"""HTML: pictures as self-contained pages that fetch nothing, and of a bounded size for notebooks."""

from __future__ import annotations

import html
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined

from ...ir.plan import Plan
from ...ir.timeline import Timeline
from ...text.tables import counted, percent, seconds, size
from ..drawing import fonts
from ..drawing.svg import Svg, clean
from ..placed import placed_picture, placed_svg
from ..placed.layout import lay_out
from ..report.names import best_of_each, chosen
from ..report.statistics import device_busy
from ..timeline import timeline_picture, timeline_svg
from .facts import arrow_facts, box_facts, example, longest_clusters

_MOST_STEPS = 2_000
"""Steps above which a notebook gets no picture: it keeps what it shows."""


_LEAST = 0.55
"""Share of its size to which a picture shrinks with the window, as its labels must be read: then it scrolls."""


def _source(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")


_TEMPLATES = Environment(
    loader=FunctionLoader(_source),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters |= {"seconds": seconds, "bytes": size, "percent": percent}
_TEMPLATES.globals |= {"font": fonts.FAMILY, "longest_clusters": longest_clusters}


def placed_page(plan: Plan, timeline: Timeline | None = None) -> str:
    """The placed graph as one HTML file: the picture, panels beside it, and the facts of each box and arrow on hover,
    focus and touch."""
    layout = lay_out(plan)
    picture = placed_picture(layout, timeline)
    facts = {f"b{index}": box_facts(layout, box, timeline) for index, box in enumerate(layout.boxes)}
    facts |= {f"t{index}": arrow_facts(layout, arrow) for index, arrow in enumerate(layout.arrows)}
    stacks = [(index, box) for index, box in enumerate(layout.boxes) if box.card.copies]
    return _page(
        "placed.html",
        title=plan.costed.graph.name,
        label=plan.costed.machine.label,
        picture=picture,
        layout=layout,
        facts=facts,
        example=example(layout),
        stacks=sorted(stacks, key=lambda pair: (pair[1].card.start, pair[1].card.lane)),
        busy=device_busy(plan.timeline()),
        measured=device_busy(timeline) if timeline else {},
        candidates=best_of_each(plan),
        chosen=chosen(plan),
    )


def timeline_page(timeline: Timeline) -> str:
    """The timeline picture as one HTML file; spans say what they are when pointed at."""
    return _page("page.html", title=timeline.title, label=timeline.label, picture=timeline_picture(timeline))


def _page(template: str, *, picture: Svg, **values: Any) -> str:
    least = max(640.0, picture.width * _LEAST)
    page = _TEMPLATES.get_template(template).render(picture=str(picture), least=least, **values)
    return clean(page)


def plan_html(plan: Plan) -> str:
    """For a notebook: the picture of a plan; of a large one the first rows of its table."""
    return _scrolled(placed_svg(plan)) if len(plan.steps) <= _MOST_STEPS else text_html(repr(plan))


def timeline_html(timeline: Timeline) -> str:
    """For a notebook: the picture of a timeline; of a large one a sentence."""
    if len(timeline.spans) <= _MOST_STEPS:
        return _scrolled(timeline_svg(timeline))
    spans = f"{counted(len(timeline.spans), 'span')} in {seconds(timeline.makespan)}"
    return text_html(f"timeline of {timeline.title}: {spans}; timeline.save('run.html') draws them")


def text_html(text: str) -> str:
    """Text as it is, columns under each other."""
    return f"<pre>{html.escape(text)}</pre>"


def _scrolled(picture: str) -> str:
    return f'<div style="overflow: auto">{picture}</div>'
