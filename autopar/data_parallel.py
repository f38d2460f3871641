"""A drop-in replacement of `nn.DataParallel`: `from autopar import DataParallel`."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from .api import compile
from .capture.torch_private import pytree
from .costs.detect import accelerators
from .errors import CaptureError, DeviceError, PlanError
from .ir.device import kind_of
from .ir.graph import PART
from .ir.plan import Plan
from .session.classes import sharing
from .session.compiled import CompiledModule

log = logging.getLogger("autopar")


class DataParallel(CompiledModule):
    """A module whose batch is split evenly over `device_ids`, with the arguments of `torch.nn.DataParallel`.

    Args:
        module: The model. `state_dict()` has its own keys, without `module.`; `.module` is always the plain model.
        device_ids: Indices or names of accelerators ("cuda:1", "emulated:0", "cpu"); None: all accelerators. If there
            is no accelerator, None and indices mean the CPU alone, as in torch.
        output_device: Index or name of the device of the outputs (-1: the CPU); None: the first of `device_ids`.
        dim: Batch axis of the inputs. The axis is found in the graph; a `dim` other than 0 must agree with it.
        options: Keywords of `autopar.compile`: `split={"cuda:0": 0.2, "cuda:1": 0.8}` or "auto" for uneven parts,
            `memory=` for caps, `batch_norm="per_part"` for statistics of each part, as in torch.

    Unlike torch, outputs are those of the plain model for any `device_ids`, replicas persist from call to call, and
    the module may stay on the CPU. Raises DeviceError for devices that are absent or listed twice, CaptureError if
    `module` is not a module, PlanError if the batch cannot be split or has another axis than `dim`.
    """

    __slots__ = ("_deliver", "_held", "device_ids", "dim", "output_device")

    device_ids: list[Any]
    output_device: Any
    dim: int
    _deliver: torch.device
    _held: Plan | None

    def __new__(cls, module: nn.Module, *_: Any, **__: Any) -> DataParallel:
        """Create an instance of the module's own class as well. Raises CaptureError if `module` is not a module."""
        if not isinstance(module, nn.Module):
            raise CaptureError(
                f"DataParallel takes an nn.Module, not {module!r}; for a function use autopar.compile"
            )
        return sharing(cls, module, cls)

    def __init__(
        self,
        module: nn.Module,
        device_ids: Sequence[int | str | torch.device] | None = None,
        output_device: int | str | torch.device | None = None,
        dim: int = 0,
        **options: Any,
    ) -> None:
        if isinstance(dim, bool) or not isinstance(dim, int):
            raise PlanError(f"dim={dim!r} is not an axis; give the number of the batch's axis in the inputs")
        for name in options.keys() - inspect.signature(compile).parameters:
            raise TypeError(f"DataParallel() got an unexpected keyword argument {name!r}")
        ids = _all(device_ids)
        names = [_name(given) for given in ids]
        deliver = names[0] if output_device is None else _name(output_device)
        if deliver not in names and kind_of(deliver).stand_in:
            raise DeviceError(
                f"output_device={output_device!r} is not among device_ids, {', '.join(names)}: give one of them, or "
                "-1 for the CPU"
            )
        machine = _machine(module, [*names, *([deliver] if deliver not in names else [])])
        usual: dict[str, Any] = {"outputs": "as_placed"}
        if len(names) > 1:
            usual["split"] = dict.fromkeys(names, 1.0)
        else:
            usual |= {"split": None, "policy": f"single {names[0]}"}
        placement = compile(module, machine, **{**usual, **options})._placement
        placement.compile_alike = lambda other: DataParallel(other, device_ids, output_device, dim, **options)
        own: dict[str, Any] = {
            "_placement": placement,
            "device_ids": list(ids),
            "dim": dim,
            "output_device": ids[0] if output_device is None else output_device,
            "_deliver": torch.device("cpu" if kind_of(deliver).stand_in else deliver),
            "_held": None,
        }
        for name, value in own.items():
            object.__setattr__(self, name, value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs of the module, on the output device."""
        output = super().__call__(*args, **kwargs)
        placed = self._placement.session.latest
        if placed is not None and placed[1].plan is not self._held:
            object.__setattr__(self, "_held", placed[1].plan)
            _require_axis(placed[1].plan, self.dim)
        to = self._deliver
        return pytree.tree_map_only(torch.Tensor, lambda t: t if t.device == to else t.to(to), output)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Load into the plain model. Keys of a `torch.nn.DataParallel` checkpoint, which all begin with `module.`, are
        accepted."""
        wrapped = bool(state_dict) and all(key.startswith("module.") for key in state_dict)
        if wrapped and not hasattr(self.module, "module"):
            state_dict = {key.removeprefix("module."): value for key, value in state_dict.items()}
        return super().load_state_dict(state_dict, *args, **kwargs)

    def __repr__(self) -> str:
        return f"autopar.DataParallel({self.module!r}, device_ids={self.device_ids})"


def _all(device_ids: Any) -> tuple[Any, ...]:
    """Return the ids; for None the ids of all accelerators; ("cpu",) if there is no accelerator to number."""
    if device_ids is None:
        return tuple(range(len(accelerators()))) or ("cpu",)
    if isinstance(device_ids, (int, str, torch.device)):
        raise DeviceError(f"device_ids is a list, not {device_ids!r}; write [{device_ids!r}]")
    ids = tuple(device_ids)
    if not ids:
        raise DeviceError("device_ids is empty; give at least one, or None for all accelerators")
    if not accelerators() and all(isinstance(item, int) and not isinstance(item, bool) for item in ids):
        log.warning('there is no accelerator here: device_ids=%s means the CPU; to split the batch nevertheless, '
                    'give ["emulated:0", "emulated:1"]', list(ids))  # fmt: skip
        return ("cpu",)
    return ids


def _name(given: int | str | torch.device) -> str:
    """Return the name of a device: an index counts accelerators, -1 is the CPU."""
    if isinstance(given, bool) or not isinstance(given, (int, str, torch.device)):
        raise DeviceError(
            f'{given!r} is not a device; give an index, or a name such as "cuda:0" or "emulated:0"'
        )
    if isinstance(given, int):
        kind = torch.accelerator.current_accelerator()
        return "cpu" if given == -1 else f"{kind.type if kind and accelerators() else 'cuda'}:{given}"
    name = str(given)
    if "*" in name:
        raise DeviceError(
            f"{name!r} is one device with several lanes, and DataParallel gives each device a part of the batch; use "
            f"autopar.compile(module, [{name!r}], split={name.rpartition('*')[2]})"
        )
    return name if name == "cpu" or ":" in name else f"{name}:0"


def _machine(module: nn.Module, names: Sequence[str]) -> list[str]:
    """Return the devices of the machine, with the CPU as host unless all of the module is on the others."""
    homes = {str(tensor.device) for tensor in (*module.parameters(), *module.buffers())}
    outside = not homes or bool(homes - {*names})
    return ["cpu", *names] if outside and "cpu" not in names else [*names]


def _require_axis(plan: Plan, dim: int) -> None:
    """Raise PlanError if the inputs have no axis `dim`, or if a `dim` other than 0 differs from the split axis."""
    graph = plan.costed.graph
    for task in graph.tasks:
        if task.target != PART or task.inputs[0] not in graph.inputs:
            continue
        value = graph.value[task.inputs[0]]
        axis, rank = task.args[1], len(value.shape)
        if not -rank <= dim < rank:
            raise PlanError(f"dim={dim}: input {value.path or value.name!r} has {rank} axes")
        if dim and dim % rank != axis:
            raise PlanError(
                f"dim={dim}: the rows that {graph.name!r} treats independently are along axis {axis} of input "
                f"{value.path or value.name!r}; give dim={axis}"
            )
