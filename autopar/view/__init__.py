"""Pictures, traces and text of plans and timelines. It reads all data types; none of them imports it."""

from .report import Report, explain
from .report.reasons import explain_clusters
from .report.statistics import hidden
from .save import draw, save_timeline

__all__ = ["Report", "draw", "explain", "explain_clusters", "hidden", "save_timeline"]
