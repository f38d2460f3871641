"""An optimizer's step as tasks of a graph, one for each parameter, with torch's own formulas."""

from .obstacles import obstacle
from .updates import committed, trained, updated

__all__ = ["committed", "obstacle", "trained", "updated"]
