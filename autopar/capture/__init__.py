"""Captured graphs: from traced nodes to tasks and values, their costs, cuts, effects and places in the source."""

from .captured import Captured
from .refusals import Untraceable, fails_alone

__all__ = ["Captured", "Untraceable", "fails_alone"]
