"""Task graphs from files and from other libraries, all of them as `CostedGraph`, and plans as the file's JSON."""

from .read import Source, plain, read
from .write import described, text

__all__ = ["Source", "described", "plain", "read", "text"]
