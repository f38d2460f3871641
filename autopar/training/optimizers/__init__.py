"""An optimizer's step as tasks of a graph, with torch's own formulas; planning groups those of small parameters."""

from .formulas import FORMULAS
from .updates import committed, obstacle, trained, updated

__all__ = ["FORMULAS", "committed", "obstacle", "trained", "updated"]
