"""Plans and timelines as pictures, traces and text. Reads every noun, is read by none."""

from .files import draw, save_timeline
from .report import explain

__all__ = ["draw", "explain", "save_timeline"]
