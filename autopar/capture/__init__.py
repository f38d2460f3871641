"""Model → graph: what Dynamo captured of a call as tasks and values, with FLOPs, cuts, effects and source lines."""

from .captured import Captured
from .refusals import Untraceable, fails_alone

__all__ = ["Captured", "Untraceable", "fails_alone"]
