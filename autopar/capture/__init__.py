"""Capture of a model as a graph: Dynamo's trace of a call as tasks and values, with FLOPs, cuts, effects and source
lines."""

from .captured import Captured
from .refusals import Untraceable, fails_alone

__all__ = ["Captured", "Untraceable", "fails_alone"]
