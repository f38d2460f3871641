"""Callables of operators by name; and composites, which stay whole in training."""
