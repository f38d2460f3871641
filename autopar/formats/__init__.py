"""Task graphs from files and from other libraries, all of them as `CostedGraph`, and plans as the file's JSON."""

from .sources import Source, load, partitioned, plain, read
from .written import described, text

__all__ = ["Source", "described", "load", "partitioned", "plain", "read", "text"]
