"""Every real architecture of the zoo, family by family."""

from __future__ import annotations

from . import images, language, sight  # noqa: F401
from .entry import REGISTRY, Entry

MODELS: tuple[Entry, ...] = tuple(entry for entry in REGISTRY.values() if entry.family != "trap")
