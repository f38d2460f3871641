"""Make an ordinary PyTorch model use every device of the machine it is on.

    fast = autopar.compile(model, ["cpu", "cuda:0", "cuda:1"])
    y = fast(x)

Nothing is imported until it is used, so that planning alone never loads torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .system.versions import VERSION

if TYPE_CHECKING:
    from .distributed.distribute import distribute
    from .distributed.pipeline.job import Distributed
    from .engine.api import compile, plan, train_step
    from .engine.compiled import Compiled
    from .engine.data_parallel import DataParallel
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
    from .ir.device import Device, Link
    from .ir.distribution import Distribution
    from .ir.graph import Graph, Task, Value
    from .ir.hosts import Host, Hosts
    from .ir.machine import Machine
    from .ir.plan import Plan
    from .ir.program import Program
    from .ir.timeline import Span, Timeline
    from .planner import schedule
    from .training.step import TrainStep

__version__ = VERSION

_HOME = {
    "distributed.distribute": ("distribute",),
    "distributed.pipeline.job": ("Distributed",),
    "engine.api": ("compile", "plan", "train_step"),
    "engine.compiled": ("Compiled",),
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
    "ir.distribution": ("Distribution",),
    "ir.hosts": ("Host", "Hosts"),
    "ir.graph": ("Graph", "Task", "Value"),
    "ir.device": ("Device", "Link"),
    "ir.machine": ("Machine",),
    "engine.data_parallel": ("DataParallel",),
    "ir.plan": ("Plan",),
    "ir.program": ("Program",),
    "planner": ("schedule",),
    "training.step": ("TrainStep",),
    "ir.timeline": ("Span", "Timeline"),
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
    "Distributed",
    "Distribution",
    "Graph",
    "Host",
    "Hosts",
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
    "distribute",
    "plan",
    "schedule",
    "train_step",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE:
        raise AttributeError(f"module 'autopar' has no attribute {name!r}; it has {', '.join(__all__)}")
    # `view` registers how plans and timelines are drawn, since their own room cannot import it.
    import_module(".view", __name__)
    return getattr(import_module(f".{_MODULE[name]}", __name__), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
