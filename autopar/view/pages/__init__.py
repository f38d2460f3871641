"""HTML: self-contained pages without network access, of bounded size for notebooks."""

from __future__ import annotations

import html
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined

from ...ir.plan import Plan
from ...ir.timeline import Timeline
from ...system.text import counted, percent, seconds, size
from ..drawing import design
from ..drawing.svg import clean
from ..placed import placed_picture, placed_svg
from ..placed.fold import Card
from ..placed.layout import lay_out
from ..report.reasons import best_of_each, choices, chosen, module_of, waited
from ..report.statistics import device_busy, level_at
from ..timeline import timeline_picture, timeline_svg

_MOST_STEPS = 2_000
"""Limit on the steps of a picture in a notebook, which stores its outputs."""

_MOST_PARTS = 8
"""Limit on the named clusters of a folded box."""
WIDTHS = (992.0, 1248.0, 1488.0)
"""Widths in pixels of the pictures of a page, which shows the one for its window; at least at this size, so that text
has 11 pixels or more."""
ASIDE = 400.0
"""Pixels beside the widest picture, which a page without panels uses too."""


_TEMPLATES = Environment(
    loader=FunctionLoader(lambda name: (files(__package__) / name).read_text(encoding="utf-8")),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters |= {"seconds": seconds, "bytes": size, "percent": percent}


def placed_page(plan: Plan) -> str:
    """Return the placed graph as one HTML file: the picture, panels, and facts of boxes and arrows on hover, focus and
    touch."""
    layouts = [lay_out(plan, width) for width in WIDTHS]
    layout = layouts[0]

    def sent(card: Card) -> str:
        outputs = {value for cluster in card.clusters for value in plan.costed.cluster[cluster].makes}
        total = sum(t.bytes for t in plan.transfers if t.src == card.device and t.value in outputs)
        return size(total) if total else ""

    stacks = [(index, box) for index, box in enumerate(layout.boxes) if box.card.copies]
    return _page(
        "placed.html",
        title=plan.costed.graph.name,
        pictures=[placed_picture(each, width) for each, width in zip(layouts, WIDTHS)],
        layout=layout,
        sent=sent,
        stacks=sorted(stacks, key=lambda pair: -pair[1].card.busy),
        busy=device_busy(plan.timeline()),
        candidates=best_of_each(plan),
        chosen=chosen(plan),
    )


def _longest_clusters(plan: Plan, clusters: Sequence[str]) -> list[tuple[str, str]]:
    """Return the longest of some clusters with durations, and the number of others."""
    places = sorted(map(plan.place.__getitem__, clusters), key=lambda p: (p.start - p.end, p.start))
    shown = [(plan.words.cluster(p.cluster), seconds(p.end - p.start)) for p in places[:_MOST_PARTS]]
    more = len(places) - len(shown)
    return [*shown, (f"and {more} shorter ones", "")] if more else shown


def timeline_page(timeline: Timeline) -> str:
    """Return the timeline picture as one HTML file, with the times of a bar on hover, focus and touch."""
    wider = [width + ASIDE * (width == WIDTHS[-1]) for width in WIDTHS]
    pictures = [timeline_picture(timeline, width) for width in wider]
    return _page("page.html", title=timeline.title, pictures=pictures)


def _page(template: str, **values: Any) -> str:
    return clean(_TEMPLATES.get_template(template).render(**values))


_DARK = "\n".join(
    f'[{name}="{light}"] {{ {name}: {dark} }}'
    for light, dark in design.DARK.items()
    for name in ("fill", "stroke")
)
"""Style rules that give shapes their colours of the dark theme."""
_DARK_NOTEBOOK = ":is([data-jp-theme-light=false], .vscode-dark, .vscode-high-contrast, html[theme=dark])"
"""Selector of a dark page of JupyterLab, Visual Studio Code or Colab."""

_TEMPLATES.globals |= {
    "dark": _DARK,
    "font": design.FAMILY,
    "choices": choices,
    "level_at": level_at,
    "longest_clusters": _longest_clusters,
    "module_of": module_of,
    "waited": waited,
}


def plan_html(plan: Plan) -> str:
    """Return the picture of a plan for a notebook; for a large one the first rows of its table."""
    return _scrolled(placed_svg(plan)) if len(plan.steps) <= _MOST_STEPS else text_html(repr(plan))


def timeline_html(timeline: Timeline) -> str:
    """Return the picture of a timeline for a notebook; for a large one a sentence."""
    if len(timeline.spans) <= _MOST_STEPS:
        return _scrolled(timeline_svg(timeline))
    spans = f"{counted(len(timeline.spans), 'span')} in {seconds(timeline.makespan)}"
    return text_html(f"timeline of {timeline.title}: {spans}; timeline.save('run.html') draws them")


def text_html(text: str) -> str:
    """Return preformatted text, with columns that are aligned even in a notebook whose text is proportional."""
    style = "font-family: ui-monospace, monospace; white-space: pre; overflow: auto"
    return f'<pre style="{style}">{html.escape(text)}</pre>'


def _scrolled(picture: str) -> str:
    style = f"<style>{_DARK_NOTEBOOK} .autopar-picture {{ {_DARK} }}</style>"
    return f'<div class="autopar-picture" style="overflow: auto">{style}{picture}</div>'
