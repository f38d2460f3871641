"""Who runs what when calls follow each other without a pause: the placement of the smallest load, and its bound."""

from .balance import balance
from .bound import bound
from .loads import Hop, Loads, Value

__all__ = ["Hop", "Loads", "Value", "balance", "bound"]
