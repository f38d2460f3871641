"""Ends, checkpoints and timelines of jobs: what a fault leaves, and what is seen of it."""
