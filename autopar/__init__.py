"""Make an ordinary PyTorch model use every device of the machine it is on.

    fast = autopar.compile(model, ["cpu", "cuda:0", "cuda:1"])
    y = fast(x)

Nothing is imported until it is used, so that planning alone never loads torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .system.versions import VERSION

if TYPE_CHECKING:
    # As themselves, so that they count as exported.
    from .distributed.distribute import distribute as distribute
    from .distributed.pipeline.job import Distributed as Distributed
    from .engine.api import compile as compile
    from .engine.api import plan as plan
    from .engine.api import train_step as train_step
    from .engine.compiled import Compiled as Compiled
    from .engine.data_parallel import DataParallel as DataParallel
    from .errors import AutoparError as AutoparError
    from .errors import CaptureError as CaptureError
    from .errors import DeviceError as DeviceError
    from .errors import DifferenceError as DifferenceError
    from .errors import LateError as LateError
    from .errors import MemoryCapError as MemoryCapError
    from .errors import PlanError as PlanError
    from .errors import ProgramError as ProgramError
    from .errors import RunError as RunError
    from .ir.device import Device as Device
    from .ir.device import Link as Link
    from .ir.distribution import Distribution as Distribution
    from .ir.graph import Graph as Graph
    from .ir.graph import Task as Task
    from .ir.graph import Value as Value
    from .ir.hosts import Host as Host
    from .ir.hosts import Hosts as Hosts
    from .ir.machine import Machine as Machine
    from .ir.plan import Plan as Plan
    from .ir.program import Program as Program
    from .ir.timeline import Span as Span
    from .ir.timeline import Timeline as Timeline
    from .planner import schedule as schedule
    from .training.step import TrainStep as TrainStep

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

__all__ = sorted(_MODULE)


def __getattr__(name: str) -> Any:
    if name not in _MODULE:
        raise AttributeError(f"module 'autopar' has no attribute {name!r}; it has {', '.join(__all__)}")
    # `view` registers how plans and timelines are drawn, since their own room cannot import it.
    import_module(".view", __name__)
    return getattr(import_module(f".{_MODULE[name]}", __name__), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
