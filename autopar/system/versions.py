"""The releases of torch that autopar supports."""

from __future__ import annotations

import re

FIRST, LAST = (2, 11), (2, 15)
"""The oldest and the newest supported release of torch, as (major, minor)."""

SUPPORTED = "torch {}.{} to {}.{}".format(*FIRST, *LAST)
TO_TYPE = "pip install 'torch>={}.{},<{}.{}'".format(*FIRST, LAST[0], LAST[1] + 1)


def supported(version: str) -> bool:
    """True if this release of torch, such as `2.13.0+cpu`, is one that the tests are run with."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return found is not None and FIRST <= (int(found[1]), int(found[2])) <= LAST
