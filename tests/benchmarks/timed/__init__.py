"""Suites that time calls and training steps of autopar beside rivals, in interleaved blocks."""

SUITES = ("overhead", "training", "pipelines")
"""Modules of this package with a `run`."""
