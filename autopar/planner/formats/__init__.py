"""Task graphs from files and from other libraries, all of them as `CostedGraph`, and plans as the file's JSON."""

from .read import Source, load, partitioned, plain, read
from .write import described, text

__all__ = ["Source", "described", "load", "partitioned", "plain", "read", "text"]
