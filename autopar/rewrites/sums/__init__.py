"""Tasks that mix the rows of a batch become tasks that pass rows or sum them: `summed`."""

from .rewrite import summed

__all__ = ["summed"]
