"""Suites that time calls and training steps of autopar beside rivals in the same process."""

SUITES = ("overhead", "first_call", "overlap", "training", "optimizers", "predictions", "pipelines", "gpu")
"""Modules of this package with a `run`."""
