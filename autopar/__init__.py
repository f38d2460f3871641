"""Make an ordinary PyTorch model use every device of the machine it is on.

    fast = autopar.compile(model, ["cpu", "cuda:0", "cuda:1"])
    y = fast(x)

Nothing is imported until it is used, so that planning alone never loads torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import compile, plan, train_step
    from .compiled import Compiled
    from .device import Device, Link
    from .errors import (
        AutoparError,
        CaptureError,
        DeviceError,
        DifferenceError,
        LateError,
        MemoryCapError,
        PlanError,
        ProgramError,
        RunError,
    )
    from .graph import Graph, Task, Value
    from .machine import Machine
    from .parallel import DataParallel
    from .plans import Plan
    from .programs import Program
    from .scheduling import schedule
    from .timeline import Span, Timeline
    from .training.step import TrainStep

__version__ = "0.1.0"

_HOME = {
    "api": ("compile", "plan", "train_step"),
    "compiled": ("Compiled",),
    "errors": (
        "AutoparError",
        "CaptureError",
        "DeviceError",
        "DifferenceError",
        "LateError",
        "MemoryCapError",
        "PlanError",
        "ProgramError",
        "RunError",
    ),
    "graph": ("Graph", "Task", "Value"),
    "device": ("Device", "Link"),
    "machine": ("Machine",),
    "parallel": ("DataParallel",),
    "plans": ("Plan",),
    "programs": ("Program",),
    "scheduling": ("schedule",),
    "training.step": ("TrainStep",),
    "timeline": ("Span", "Timeline"),
}
_MODULE = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "AutoparError",
    "CaptureError",
    "Compiled",
    "DataParallel",
    "Device",
    "DeviceError",
    "DifferenceError",
    "Graph",
    "LateError",
    "Link",
    "Machine",
    "MemoryCapError",
    "Plan",
    "PlanError",
    "Program",
    "ProgramError",
    "RunError",
    "Span",
    "Task",
    "Timeline",
    "TrainStep",
    "Value",
    "compile",
    "plan",
    "schedule",
    "train_step",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE:
        raise AttributeError(f"module 'autopar' has no attribute {name!r}; it has {', '.join(__all__)}")
    # Plans and timelines are drawn by what stands above them.
    import_module(".view", __name__)
    return getattr(import_module(f".{_MODULE[name]}", __name__), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
