"""Task graphs from files and other libraries as `CostedGraph`."""

from .read import Source, plain, read

__all__ = ["Source", "plain", "read"]
