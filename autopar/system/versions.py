"""The releases of torch that autopar supports."""

from __future__ import annotations

import re

FIRST, LAST = (2, 11), (2, 15)
"""The oldest and the newest supported release of torch, as (major, minor)."""

SUPPORTED = "torch {}.{} to {}.{}".format(*FIRST, *LAST)
TO_TYPE = "pip install 'torch>={}.{},<{}.{}'".format(*FIRST, LAST[0], LAST[1] + 1)


def release(version: str) -> tuple[int, int]:
    """Major and minor of a release of torch, such as `2.13.0+cpu`; (0, 0) where the text is none."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def lacking(version: str, error: ImportError) -> str:
    """The sentence about a private name that a release of torch has not."""
    return f"torch {version} lacks {error.name or error}, which capture needs; autopar supports {SUPPORTED}: {TO_TYPE}"


def supported(version: str) -> bool:
    """True if this release of torch is one that the tests are run with."""
    return FIRST <= release(version) <= LAST
