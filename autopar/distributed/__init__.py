"""Models over several hosts: autopar plans, `torch.distributed` runs, under `torchrun`.

    from autopar.distributed import guarded, load_latest, save

Nothing is imported until it is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .agreement import agreed
    from .checkpoint import load_latest, save
    from .heartbeat import guarded
    from .merged_trace import merged

_HOME = {
    "agreed": "agreement",
    "guarded": "heartbeat",
    "load_latest": "checkpoint",
    "merged": "merged_trace",
    "save": "checkpoint",
}

__all__ = ["agreed", "guarded", "load_latest", "merged", "save"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(
            f"module 'autopar.distributed' has no attribute {name!r}; it has {', '.join(__all__)}"
        )
    # Timelines are saved by what stands above them.
    import_module("..view", __name__)
    return getattr(import_module(f".{_HOME[name]}", __name__), name)
