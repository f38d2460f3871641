"""Turn a model and example inputs into a graph."""

from .captured import Captured
from .refusals import Untraceable, fails_alone
from .routes import capture

__all__ = ["Captured", "Untraceable", "capture", "fails_alone"]
