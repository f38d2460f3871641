"""Pictures, traces and text of plans and timelines. It reads all data types; none of them imports it."""

from ..ir.machine import Machine
from ..ir.pictures import register
from ..ir.plan import Plan
from ..ir.timeline import Timeline
from .pages import plan_html, text_html, timeline_html
from .placed.fold import titles
from .report import Report, explain
from .report.reasons import explain_clusters
from .report.statistics import hidden
from .save import draw, save_timeline

__all__ = ["Report", "draw", "explain", "explain_clusters", "hidden", "save_timeline"]

register("draw", Plan, lambda plan, path, width, theme: draw(plan, path, width=width, theme=theme))
register("explain", Plan, lambda plan, *names: explain(plan, None, None, (), *names))
register("html", Plan, plan_html)
register("titles", Plan, titles)
register(
    "save",
    Timeline,
    lambda timeline, path, width, theme: save_timeline(timeline, path, width=width, theme=theme),
)
register("html", Timeline, timeline_html)
register("html", Machine, lambda machine: text_html(str(machine)))
