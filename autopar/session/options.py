"""Checked options of `compile`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import torch
from torch import nn

from ..capture.region import slots
from ..costs.detect import current, present
from ..costs.pins import Home, lives, naming, require_devices, require_home, require_paths
from ..errors import DeviceError, PlanError
from ..ir.graph import Graph
from ..ir.machine import Machine
from ..planner import require_policy
from ..runtime.kernels import LIBRARIES, named
from ..transform.split import allot

Pins: TypeAlias = Mapping[str, str | int | torch.device]
"""Devices by module path, glob or parameter path, as in the device maps of Hugging Face accelerate: "" is the
whole model, a number an accelerator."""


Kernels: TypeAlias = (
    Literal["eager", "auto", "inductor", "inductor frozen", "onnxruntime", "openvino", "cudagraphs"] | str
)
"""Kernels of PyTorch, of the fastest library, of one library, or of a backend of `torch.compile`, by name."""


@dataclass(frozen=True)
class Options:
    """The keywords of `autopar.compile`. Raises PlanError for an invalid value."""

    pins: Mapping[str, Any] = field(default_factory=dict)
    policy: Any = "auto"
    split: Any = "auto"
    measure: bool | None = None
    check: Literal["first", "always", "never"] = "first"
    outputs: Literal["as_input", "as_placed"] = "as_input"
    batch_norm: Literal["full", "per_part"] = "full"
    recompute: Literal["auto"] | float | None = None
    home: Home = "auto"
    kernels: Kernels = "eager"

    def __post_init__(self) -> None:
        if not isinstance(self.pins, Mapping) or not all(isinstance(path, str) for path in self.pins):
            lacks = "module" if isinstance(self.pins, Mapping) else "device"
            raise PlanError(
                f'pins={self.pins!r} names no {lacks}; write pins={{"path.of.a.module": "cuda:0"}}'
            )
        if not isinstance(self.policy, str) and not callable(self.policy):
            raise PlanError(
                f'policy={self.policy!r} is not known; give "auto", another name, or a function of the costed graph'
            )
        one_of("check", self.check, ("first", "always", "never"))
        one_of("outputs", self.outputs, ("as_input", "as_placed"))
        one_of("batch_norm", self.batch_norm, ("full", "per_part"))
        known = ("eager", "auto", *LIBRARIES)
        if self.kernels not in known and not (isinstance(self.kernels, str) and named(self.kernels)):
            raise PlanError(
                f"kernels={self.kernels!r} is not known; give one of {', '.join(map(repr, known))}, or a backend from "
                "torch.compiler.list_backends()"
            )
        one_of("measure", self.measure, (None, True, False))
        if self.recompute not in (None, "auto") and not _is_share(self.recompute):
            raise PlanError(
                f'recompute={self.recompute!r} is not known; give None, "auto", or the share of the saved bytes that '
                "may stay saved, from 0 to 1"
            )

    def fitting(self, machine: Machine, model: Any) -> Options:
        """Return the options with the machine's device names in `pins`. Raises PlanError or DeviceError for
        names that this machine, or the model if it is a module, lacks."""
        require_policy(self.policy, machine.device)
        _require_split(self.split, machine)
        pins = {path: _device(path, device, machine) for path, device in self.pins.items()}
        require_devices(pins, machine)
        require_home(self.home, machine)
        if isinstance(model, nn.Module):
            paths = _paths(model)
            require_paths(pins, paths)
            if not isinstance(self.home, str):
                require_paths(self.home, paths, "home")
        return replace(self, pins=pins)

    def measures(self, machine: Machine) -> bool:
        """Return True if operations are timed before planning: if the user asks for it or, by default, if the
        devices are present and there are several lanes to choose from."""
        return not machine.serial and self.explains(machine) if self.measure is None else self.measure

    def explains(self, machine: Machine) -> bool:
        """Return True if operations are timed before a prediction is shown: if the devices are present and none is a
        stand-in or has the user's figures."""
        return self.measure is not False and present(machine)

    def within(self, graph: Graph) -> Options:
        """Return the options for one graph of a model whose pins are already checked, with only the pins that
        name something in this graph."""
        return replace(self, pins=naming(graph, self.pins))

    def require_homes(self, machine: Machine, model: Any) -> None:
        """Raise PlanError if a weight of a module is not on its declared home; those on meta are yet to come."""
        for path, owner, key in slots(model) if isinstance(model, nn.Module) else ():
            device, tensor = lives(path, self.home), owner[key]
            if device and not tensor.is_meta and str(tensor.device) != machine.device[device].torch_device:
                raise PlanError(
                    f"home= says that {path} lives on {device}, but it is on {tensor.device}; move it there before, as "
                    f"with model.to({machine.device[device].torch_device!r})"
                )


def require_changing(kernels: Any) -> None:
    """Raise PlanError for kernels that fold the weights, which a training step changes."""
    library = named(kernels) if isinstance(kernels, str) else None
    if library is not None and library.folds:
        trains = ("eager", "auto", *sorted(name for name, each in LIBRARIES.items() if not each.folds))
        raise PlanError(
            f"kernels={kernels!r} folds the weights, which a training step changes; give one of "
            f"{', '.join(map(repr, trains))}, or a backend from torch.compiler.list_backends()"
        )


def _require_split(wanted: Any, machine: Machine) -> None:
    """Raise PlanError or DeviceError for a `split=` that is invalid on this machine for any graph."""
    if wanted in (None, "auto", "features"):
        return
    if isinstance(wanted, bool) or not isinstance(wanted, (int, Mapping)):
        raise PlanError(
            f'split={wanted!r} is not known; give "auto", "features", None, a number of parts or {{device: share}}'
        )
    if isinstance(wanted, Mapping):
        for name in wanted:
            machine.require(name)
        allot(1, tuple(wanted.values()))
    elif wanted < 1:
        raise PlanError(f"split={wanted}: the number of parts is at least 1")


def _device(path: str, device: Any, machine: Machine) -> str:
    """Return the machine's name of a device given as in accelerate: a name, a number, a torch.device."""
    if isinstance(device, int) and not isinstance(device, bool):
        kinds = [device.kind for device in machine.devices if not device.traits.host]
        return f"{kinds[0] if kinds else 'cuda'}:{device}"
    if not isinstance(device, (str, torch.device)):
        raise DeviceError(f'the pin {path!r} is to {device!r}, which is not a device; write "cuda:0", or 0')
    name = str(device)
    if name in machine.device:
        return name
    if name in ("disk", "meta"):
        raise DeviceError(
            f'the pin {path!r} is to {name!r}, and autopar keeps weights in memory: pin it to "cpu"'
        )
    if name == "cpu:0":
        return "cpu"
    return f"{name}:{current(name)}" if name.isalpha() and name != "cpu" else name


def _paths(model: nn.Module) -> list[str]:
    """Return the paths of its modules, parameters and buffers, shared ones included."""
    modules = (path for path, _ in model.named_modules(remove_duplicate=False) if path)
    return [*modules, *(path for path, _, _ in slots(model))]


def _is_share(value: Any) -> bool:
    # True would pass as the share 1, with which nothing is recomputed.
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1


def one_of(name: str, value: Any, allowed: tuple[Any, ...]) -> None:
    """Raise PlanError if the value of a keyword is not one of those allowed."""
    if value not in allowed:
        raise PlanError(f"{name}={value!r} is not known; give one of {', '.join(map(repr, allowed))}")
