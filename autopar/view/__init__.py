"""Plans and timelines as pictures, traces and text. Reads every noun, is read by none."""

from ..machine import Machine
from ..pictures import register
from ..plans import Plan
from ..timeline import Timeline
from .files import draw, save_timeline
from .notebook import plan_html, text_html, timeline_html
from .reduction import hidden
from .report import explain
from .why import explain_runs

__all__ = ["draw", "explain", "explain_runs", "hidden", "save_timeline"]

register("draw", Plan, draw)
register("explain", Plan, lambda plan, *runs: explain_runs(plan, runs) if runs else explain(plan))
register("html", Plan, plan_html)
register("save", Timeline, save_timeline)
register("html", Timeline, timeline_html)
register("html", Machine, lambda machine: text_html(str(machine)))
