"""Plans and timelines as pictures, traces and text. Reads every noun, is read by none."""

from .files import draw, save_timeline
from .reduction import hidden
from .report import explain

__all__ = ["draw", "explain", "hidden", "save_timeline"]
