"""Pipelined calls: the placement of the smallest period, and a lower bound on the period."""

from .balance import balance
from .bound import bound
from .loads import Hop, Loads, Value

__all__ = ["Hop", "Loads", "Value", "balance", "bound"]
