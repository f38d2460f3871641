"""Pipelined calls: the placement of the smallest period, and a lower bound on the period."""

from .balance import balance, bound
from .loads import Hop, Loads, Standing, Value, loads_of

__all__ = ["Hop", "Loads", "Standing", "Value", "balance", "bound", "loads_of"]
