"""Turn a model and example inputs into a graph."""

from .captured import Captured
from .routes import capture

__all__ = ["Captured", "capture"]
