"""The number of cores of the host that this process may use."""

from __future__ import annotations

import os


def cores() -> int:
    """Those it is allowed to run on, where the system tells, else all there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
