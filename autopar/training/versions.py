"""Versions in which all ranks of a job must agree."""

from __future__ import annotations

import platform

import torch

from ..system.versions import VERSION


def versions() -> dict[str, str]:
    """Return the versions of Python, torch and autopar, which can make equal models different programs."""
    return {
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "torch": torch.__version__.partition("+")[0],
        "autopar": VERSION,
    }
