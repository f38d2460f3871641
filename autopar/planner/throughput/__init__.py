"""Throughput of successive calls: the placement with the smallest period."""

from .balance import balance
from .loads import Loads, Net, Standing, loads_of

__all__ = ["Loads", "Net", "Standing", "balance", "loads_of"]
