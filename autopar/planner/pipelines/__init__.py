"""Pipelines over hosts: a model as a chain of units, cut into stages, with replicas, micro-batches and a schedule."""

from .chain import Chain, RowCost, Unit
from .choose import distribution
from .grid import Process, processes

__all__ = ["Chain", "Process", "RowCost", "Unit", "distribution", "processes"]
