"""This machine, its files, and text for people. Here: the version of autopar, and the releases of torch that it
supports."""

from __future__ import annotations

import re

VERSION = "0.1.0"

FIRST, LAST = (2, 11), (2, 15)
"""The oldest and the newest supported release of torch, as (major, minor)."""

SUPPORTED = "torch {}.{} to {}.{}".format(*FIRST, *LAST)
TO_TYPE = "pip install 'torch>={}.{},<{}.{}'".format(*FIRST, LAST[0], LAST[1] + 1)


def release(version: str) -> tuple[int, int]:
    """Return major and minor of a torch release, such as `2.13.0+cpu`; (0, 0) for other text."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def lacking(version: str, error: ImportError) -> str:
    """Return the sentence about a private name that a torch release lacks."""
    return f"torch {version} lacks {error.name or error}, which capture needs; autopar supports {SUPPORTED}: {TO_TYPE}"


def supported(version: str) -> bool:
    """Return True if the tests run with this torch release."""
    return FIRST <= release(version) <= LAST
