"""Capture of a model as a graph: Dynamo's trace of a call as tasks and values, with FLOPs, cuts, effects and source
lines."""

from .captured import Captured

__all__ = ["Captured"]
