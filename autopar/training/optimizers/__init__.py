"""An optimizer's step as tasks of a graph, with torch's own formulas; planning groups those of small parameters."""

from .formulas import FORMULAS
from .obstacles import obstacle
from .updates import committed, trained, updated

__all__ = ["FORMULAS", "committed", "obstacle", "trained", "updated"]
