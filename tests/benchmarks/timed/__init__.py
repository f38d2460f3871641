"""Suites that time calls and training steps of autopar beside rivals, in the same process or in pairs of processes."""

SUITES = (
    "overhead",
    "first_call",
    "overlap",
    "training",
    "optimizers",
    "predictions",
    "pipelines",
    "processes",
    "generate",
)
"""Modules of this package with a `run`."""
