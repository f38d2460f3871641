"""Small models of our own, each with one thing that captures, planners and runtimes get wrong."""

from __future__ import annotations

from . import traps_calls, traps_state  # noqa: F401
from .entry import REGISTRY, Entry

TRAPS: tuple[Entry, ...] = tuple(entry for entry in REGISTRY.values() if entry.family == "trap")
