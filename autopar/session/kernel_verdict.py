"""Which kernels of a program were the fastest (`Verdict`), stored for later processes; or the reason why none are
compiled for it: its devices, operators or weights do not allow it, or memory for further copies of the weights is
missing."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ..ir.plan import Plan
from ..ir.program import tasks_of
from ..runtime.replicas import Replicas
from ..system import cache
from ..system.text import COLUMNS, seconds, table
from .kernel_build import Form

PACKAGES = ("torch", "onnxruntime", "openvino", "autopar")


PLAIN = "the model itself"
"""The name of the plain model as the winner of the contest with whole calls of its compiled form."""


@dataclass
class Verdict:
    """The fastest library by name ("eager": PyTorch's own kernels), the median seconds of a call of each, and why
    others were not timed.

    plain: the plain model is faster than whole calls with the winner.
    built: seconds of the compilation by each library.
    errors: largest difference of each from eager, relative to the largest value.
    """

    winner: str = "eager"
    plain: bool = False
    seconds: dict[str, float] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    built: dict[str, float] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        eager, took = self.seconds.get("eager"), self.seconds.get(self.winner)
        how = f", {took / eager:.2f} of eager's time" if eager and took and not self.plain else ""
        return f"{PLAIN if self.plain else self.winner} serves{how}"

    def table(self) -> str:
        """Return the libraries, fastest first, with their seconds and errors, and which was chosen."""
        rows, eager = [("library", "compiled in", "error", "time", "÷ eager", "")], self.seconds.get("eager")
        chosen = PLAIN if self.plain else self.winner
        names = [*sorted(self.seconds, key=self.seconds.__getitem__), *self.built, *self.refused]
        if self.plain or chosen not in names:
            names.insert(0, chosen)
        for name in dict.fromkeys(names):
            took, built, off = self.seconds.get(name), self.built.get(name), self.errors.get(name)
            remark = "; ".join(filter(None, ("chosen" if name == chosen else "", self.refused.get(name, ""))))
            rows.append(
                (
                    name,
                    "-" if built is None else seconds(built),
                    "-" if off is None else f"{off:.0e}" if off else "0",
                    "-" if took is None else seconds(took),
                    f"{took / eager:.2f}" if took and eager else "-",
                    remark,
                )
            )
        return table(rows, right=(1, 2, 3, 4), width=COLUMNS)

    @classmethod
    def load(cls, key: str) -> Verdict | None:
        """Return the verdict stored under this signature; None if there is none."""
        entry = cache.load(_file()).get(key)
        with suppress(TypeError):
            return cls(**entry) if isinstance(entry, Mapping) else None
        return None

    def store(self, key: str) -> None:
        """Store the verdict under this signature."""
        entries = cache.load(_file())
        entries[key] = vars(self)
        cache.store(_file(), entries)


def signature(form: Form) -> str:
    """Return a hash of everything that the seconds of a program depend on, except the machine and library
    versions. Sizes that kernels leave open count by their magnitude only."""
    graph = form.plan.costed.graph
    tasks = [(task.target, task.args, task.kwargs) for task in graph.tasks]
    values = [
        (value.name, (form.symbols and value.open) or value.shape, value.dtype) for value in graph.values
    ]
    sizes = [size for size in form.captured.sizes if form.symbols and isinstance(size, int)]
    magnitude = max(sizes, default=0).bit_length()
    # Sorted, because costs that are measured again may change the order, which says nothing on one lane.
    lanes = [
        (lane.device, sorted((type(step).__name__, tasks_of(step)) for step in lane.steps))
        for lane in form.program.lanes
    ]
    text = repr((tasks, values, lanes, magnitude, form.threads, form.changing))
    text = _FLOAT.sub("OpenFloat(", text)
    if form.symbols:
        text = _SIZE.sub("OpenSize(", text)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


_FLOAT = re.compile(r"OpenFloat\([^,]+, ")
_SIZE = re.compile(r"OpenSize\(\d+, ")


def _file() -> Path:
    return cache.file_for("kernels", [installed(name) for name in PACKAGES])


def installed(name: str) -> str:
    """Return the version of an installed package; "" if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def refused(form: Form, pool: Replicas) -> str:
    """Return the reason why no kernels are compiled for a program; "" if they can be."""
    machine = form.plan.costed.machine
    if machine.absent or machine.clock == "declared":
        return "its devices are not here, or run on a declared clock"
    if any(task.random for task in form.captured.graph.tasks):
        return "it draws random numbers"
    steady = map(form.captured.state.__getitem__, filter(form.steady, form.plan.costed.graph.state))
    if any(owner[key].is_inference() for owner, key in steady):
        # Kernels for the weights of now would be out of date by then, as far as can be known.
        return (
            "weights or buffers were made in torch.inference_mode, in which PyTorch does not count their changes. "
            "Make, load or convert the model outside it"
        )
    room, others = more(form.plan), [held for other, held in [*pool.kernels.items()] if other.holds]
    for memory in form.plan.memory:
        device = machine.device[memory.device]
        if device.memory_bytes is None:
            continue
        alone = memory.peak + room[device.name]
        if alone > device.memory_bytes:
            return (
                f"{device.name} lacks the memory for other copies of the weights, or of all that a call makes"
            )
        if alone + sum(held.get(device.name, 0) for held in others) > device.memory_bytes:
            return (
                f"{device.name} lacks the memory for more copies of the weights: kernels for other sizes hold theirs. "
                "Pad the inputs to fewer shapes to have kernels for all"
            )
    return ""


def more(plan: Plan) -> dict[str, int]:
    """Return the bytes that kernels may take on each device in addition to the peak of the plan.

    On a CPU, a library may keep two more copies of the weights. On a GPU, two recordings may each keep all
    that a call makes. No proof covers other memory of a library.
    """
    graph, device = plan.costed.graph, plan.costed.machine.device
    state = sum(graph.value[name].bytes for name in graph.state)
    return {
        memory.device: 2 * (state if device[memory.device].torch_type == "cpu" else memory.peak)
        for memory in plan.memory
    }
