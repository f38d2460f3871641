"""Task graphs from files and other libraries as `CostedGraph`, and plans as the JSON of the graph file."""

from .read import Source, plain, read
from .write import described, text

__all__ = ["Source", "described", "plain", "read", "text"]
