"""Models over several hosts: autopar plans, `torch.distributed` runs, under `torchrun`.

    from autopar.distributed import load_latest, save

Nothing is imported until it is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .agreement import agreed
    from .checkpoint import load_latest, save
    from .merged_trace import merged
    from .tensor_split import tensor_parallel

_HOME = {
    "agreed": "agreement",
    "load_latest": "checkpoint",
    "merged": "merged_trace",
    "save": "checkpoint",
    "tensor_parallel": "tensor_split",
}

__all__ = ["agreed", "load_latest", "merged", "save", "tensor_parallel"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(
            f"module 'autopar.distributed' has no attribute {name!r}; it has {', '.join(__all__)}"
        )
    return getattr(import_module(f".{_HOME[name]}", __name__), name)
