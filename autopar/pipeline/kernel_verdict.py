"""`Verdict`: the result of a race between compiled forms of a program, stored on disk for later processes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ..ir.graph import Graph
from ..ir.program import Program
from ..system import cache

PACKAGES = ("torch", "onnxruntime", "openvino", "autopar")

RACES = 2
"""Processes in which eager must win before no other races: work beside the first race may have slowed the kernels."""


@dataclass
class Verdict:
    """Name of the fastest arrangement, median seconds of a call of each, and the reasons why others were not timed.

    races: number of processes in which eager won.
    """

    winner: str = "eager"
    seconds: dict[str, float] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    races: int = 0

    def __str__(self) -> str:
        eager = self.seconds.get("eager", 0.0)
        lost = "".join(f"; {name}: {why}" for name, why in self.refused.items())
        if not eager:
            return f"kernels: {self.winner}{lost}"
        ratios = {name: took / eager for name, took in sorted(self.seconds.items(), key=lambda item: item[1])}
        rest = ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items() if name != self.winner)
        return f"kernels: {self.winner}, {ratios.get(self.winner, 1.0):.2f} of eager's time ({rest}{lost})"


def signature(graph: Graph, program: Program, threads: int) -> str:
    """Return a hash of everything that the seconds of a program depend on, except the machine and library versions."""
    tasks = [(task.target, task.args, task.kwargs) for task in graph.tasks]
    values = [(value.name, value.shape, value.dtype) for value in graph.values]
    text = repr((tasks, values, str(program), threads))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def load(key: str) -> Verdict | None:
    """Return the verdict stored under this signature; None if there is none."""
    entry = cache.load(_file()).get(key)
    with suppress(TypeError):
        return Verdict(**entry) if isinstance(entry, Mapping) else None
    return None


def store(key: str, verdict: Verdict) -> None:
    """Store a verdict."""
    entries = cache.load(_file())
    entries[key] = vars(verdict)
    cache.store(_file(), entries)


def _file() -> Path:
    return cache.file_for("kernels", [_version(name) for name in PACKAGES])


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
