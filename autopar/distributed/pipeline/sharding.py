"""Stages whose parameters are sharded over their replicas, by FSDP2 (`torch.distributed.fsdp.fully_shard`)."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from ...ir.distribution import Distribution, Stage
from .stages import StageModule
from .units import Units


class ShardedStage(nn.Module):
    """A stage of one `StageModule` for each group of units, whose parameters are gathered while the group runs.

    It is called like a `StageModule`. A parameter used by several groups belongs to the stage itself, which gathers it
    for its whole forward and its whole backward.
    """

    def __init__(self, units: Units, stage: Stage, device: torch.device) -> None:
        super().__init__()
        ends = (stage.first, *stage.groups)
        groups = [StageModule(units, first, stop, device) for first, stop in pairwise(ends)]
        self._order, self.groups = tuple(groups), nn.ModuleList(groups)
        users = Counter(id(p) for group in groups for p in group.parameters())
        several = {id(p): p for group in groups for p in group.parameters() if users[id(p)] > 1}
        self.several = nn.ParameterList(several.values())
        self.needs = tuple(dict.fromkeys(name for group in groups for name in group.needs))
        self.paths = {f"several.{at}": units.paths[id(p)] for at, p in enumerate(self.several)}
        for at, group in enumerate(groups):
            self.paths |= {f"groups.{at}.{own}": paths for own, paths in group.paths.items()}
        self.answer = groups[-1].answer
        self.train(units.model.training)

    def forward(self, *received: torch.Tensor, **inputs: Any) -> Any:
        """Run the groups in order."""
        for group in self._order:
            received = group(*received, **{name: inputs[name] for name in group.needs})
        return received

    def shard(self, model: nn.Module, mesh: DeviceMesh, whole: set[nn.Parameter]) -> None:
        """Keep only this process's rows of each parameter that is not in `whole`, as a DTensor, here and in the model.

        Gradients are summed over the mesh, not averaged.
        """
        several = {*self.several}
        for module, others in (*((group, several) for group in self.groups), (self, set[nn.Parameter]())):
            own = fully_shard(module, mesh=mesh, reshard_after_forward=True, ignored_params=whole | others)
            own.set_gradient_divide_factor(1.0)
            # gloo neither averages nor scales.
            own.set_force_sum_reduction_for_comms(True)
        for name, parameter in self.named_parameters():
            for path in self.paths[name]:
                owner, _, last = path.rpartition(".")
                model.get_submodule(owner).register_parameter(last, parameter)
        # Groups write no view that they are given, and `owned` copies those that the loss could.
        warnings.filterwarnings("ignore", r"FSDP2-wrapped module \(FSDP\w*Stage\) returned a view")


def owned(outputs: Any) -> Any:
    """Return the outputs of a sharded stage without views, whose hooks are lost when they are written in place."""
    return tuple(out.clone() if out._base is not None else out for out in outputs)


def sharded(
    stages: Mapping[int, StageModule | ShardedStage],
    plan: Distribution,
    grid: Sequence[Sequence[int]],
    device: torch.device,
    model: nn.Module,
) -> set[str]:
    """Shard the stages of this process; return the paths of the parameters that each replica keeps whole.

    Kept whole are parameters shared by several stages of one process, which `fully_shard` cannot gather for both;
    those it does not support; and those of another dtype than most, which cannot be sent in one message with others.
    """
    if device.index is not None:
        torch.accelerator.set_device_index(device.index)
    named = [
        (plan.position(number), stage.paths[name][0], parameter)
        for number, stage in stages.items()
        for name, parameter in stage.named_parameters()
    ]
    users = Counter((position, path) for position, path, _ in named)
    nbytes = Counter[torch.dtype]()
    for _, _, parameter in named:
        nbytes[parameter.dtype] += parameter.nbytes
    whole = {
        path: parameter
        for position, path, parameter in named
        if users[position, path] > 1
        or not parameter.dim()
        or not parameter.is_contiguous()
        or nbytes[parameter.dtype] < max(nbytes.values())
    }
    for position, column in enumerate(zip(*grid)):
        # Every process makes all groups, as torch asks.
        group = dist.new_group([*column])
        if dist.get_rank() in column:
            mesh = DeviceMesh.from_group(group, device.type)
            for number, stage in stages.items():
                if plan.position(number) == position and isinstance(stage, ShardedStage):
                    stage.shard(model, mesh, {*whole.values()})
    return {*whole}


def rows_as(given: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return this process's rows of a whole tensor if `like` is sharded, else the tensor."""
    if isinstance(like, DTensor) and not isinstance(given, DTensor):
        return distribute_tensor(given, like.device_mesh, like.placements, src_data_rank=None)
    return given
