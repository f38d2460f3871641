"""Plans and timelines as pictures, traces and text. Reads every noun, is read by none."""

from .files import draw, save_timeline
from .reduction import hidden
from .report import explain
from .why import explain_runs

__all__ = ["draw", "explain", "explain_runs", "hidden", "save_timeline"]
