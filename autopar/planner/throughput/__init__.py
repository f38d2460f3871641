"""Throughput of successive calls: the placement with the smallest period."""

from .balance import balance
from .loads import Hop, Loads, Standing, Value, loads_of

__all__ = ["Hop", "Loads", "Standing", "Value", "balance", "loads_of"]
