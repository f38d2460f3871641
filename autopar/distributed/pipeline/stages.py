"""The stages of a model as modules, one or more for each process of a pipeline; and stages whose parameters are sharded
over their replicas, by FSDP2 (`torch.distributed.fsdp.fully_shard`)."""

from __future__ import annotations

import operator
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import fx, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.fx.node import map_aggregate
from torch.utils import _pytree as pytree

from ...ir.distribution import Distribution, Stage
from ...training.messages import Group, subgroup
from .units import Units, writes


class StageModule(fx.GraphModule):
    """Consecutive units of a model: `stage(*received, **inputs)`.

    received: the tensors from the previous stage; none for the first.
    inputs: the model's inputs by name; the stage uses those in `needs`.

    Returns a tuple of the tensors to send on, values for later stages included; for the last stage, the tensors in the
    model's output (`answer`). Parameters and buffers are the model's own objects under the model's own paths (`paths`
    has their other paths): the state dicts of all stages together are that of the model.
    """

    needs: tuple[str, ...]
    paths: dict[str, list[str]]

    def __init__(self, units: Units, first: int, stop: int, device: torch.device) -> None:
        root, graph, state = nn.Module(), fx.Graph(), dict[str, fx.Node]()
        is_last = stop == len(units.nodes)
        nodes = [node for unit in units.nodes[first:stop] for node in unit]
        received = units.crossing[first]
        returned: Any = pytree.tree_leaves(units.output.args[0]) if is_last else units.crossing[stop]
        needed = units.needed([*nodes, *([units.output] if is_last else [])], [*nodes, *received])
        needs = tuple(node.name for node in needed if node.op == "placeholder")
        nodes_of = _placeholders(graph, received, needs, units, any(map(_in_place, nodes)))
        computed = {*needed, *nodes}
        for node in units.graph.graph.nodes:
            if node.op == "placeholder" or node not in computed:
                continue
            if node.op == "get_attr":
                state[str(node.target)] = node
                _register(root, str(node.target), units.tensor(node))
            nodes_of[node] = graph.node_copy(node, nodes_of.__getitem__)
            nodes_of[node].args, nodes_of[node].kwargs = located(
                (nodes_of[node].args, nodes_of[node].kwargs), device
            )
            if node.target is torch.ops.aten.view.default:
                # Received tensors are contiguous, perhaps unlike those captured; a view may have to copy.
                nodes_of[node].target = torch.ops.aten.reshape.default
        tensors = [nodes_of[leaf] for leaf in returned if isinstance(leaf, fx.Node)]
        # Messages must be contiguous.
        graph.output(
            tuple(tensors if is_last else [graph.call_method("contiguous", (end,)) for end in tensors])
        )
        super().__init__(root, graph, class_name=f"{type(units.model).__name__}Stage")
        self.needs = needs
        self.paths = {path: units.paths.get(id(units.tensor(node)), []) for path, node in state.items()}
        self._leaves = [None if isinstance(leaf, fx.Node) else leaf for leaf in returned] if is_last else []
        self._tensors = [at for at, leaf in enumerate(returned) if isinstance(leaf, fx.Node)]
        self._spec = units.out_spec
        self.train(units.model.training)

    def answer(self, output: Any) -> Any:
        """Return the model's output, made from the output of the last stage."""
        leaves = list(self._leaves)
        for at, leaf in zip(
            self._tensors, output if isinstance(output, (tuple, list)) else (output,), strict=True
        ):
            leaves[at] = leaf
        return pytree.tree_unflatten(leaves, self._spec)


def _placeholders(
    graph: fx.Graph, received: Sequence[fx.Node], needs: Sequence[str], units: Units, copied: bool
) -> dict[fx.Node, fx.Node]:
    """Return the nodes for the tensors and inputs of a stage, by the nodes they replace.

    `copied`: copy received tensors first, as they may be written in place, which autograd refuses for views.
    """
    nodes_of: dict[fx.Node, fx.Node] = {}
    tensors, inputs = graph.placeholder("*received"), graph.placeholder("**inputs")
    for at, node in enumerate(received):
        nodes_of[node] = graph.call_function(operator.getitem, (tensors, at))
        if copied:
            nodes_of[node] = graph.call_function(torch.ops.aten.clone.default, (nodes_of[node],))
    for node in units.inputs:
        if node.name in needs:
            nodes_of[node] = graph.call_function(operator.getitem, (inputs, node.name))
    return nodes_of


def _in_place(node: fx.Node) -> bool:
    """Return True if an operator writes to a value made by another one."""
    return writes(node) and any(source.op == "call_function" for source in node.all_input_nodes)


def _register(root: nn.Module, path: str, tensor: torch.Tensor) -> None:
    owner, (*parents, name) = root, path.split(".")
    for parent in parents:
        if parent not in owner._modules:
            owner.add_module(parent, nn.Module())
        owner = owner.get_submodule(parent)
    if isinstance(tensor, nn.Parameter):
        owner.register_parameter(name, tensor)
    else:
        owner.register_buffer(name, tensor)


def located(arguments: Any, device: torch.device) -> Any:
    """Return the arguments with `device` in place of the device of capture."""
    return map_aggregate(arguments, lambda leaf: device if isinstance(leaf, torch.device) else leaf)


class _ShardedStage(nn.Module):
    """A stage with one `StageModule` for each group of units, whose parameters are gathered while it runs.

    It is called like a `StageModule`. A parameter that several groups use belongs to the stage itself, which
    gathers it for its whole forward and its whole backward.
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
            self.paths |= {f"groups.{at}.{name}": paths for name, paths in group.paths.items()}
        self.answer = groups[-1].answer
        self.train(units.model.training)

    def forward(self, *received: torch.Tensor, **inputs: Any) -> Any:
        """Run the groups in order. Copy outputs that are views: a write to them would drop FSDP2's hooks."""
        for group in self._order:
            received = group(*received, **{name: inputs[name] for name in group.needs})
        return tuple(out.clone() if out._base is not None else out for out in received)

    def shard(self, model: nn.Module, mesh: DeviceMesh, whole: set[nn.Parameter]) -> None:
        """Keep only this process's rows of each parameter that is not in `whole`, as a DTensor, here and in the model.

        Gradients are summed over the mesh, not averaged.
        """
        several = {*self.several}
        for module, others in (*((group, several) for group in self.groups), (self, set[nn.Parameter]())):
            sharded = fully_shard(
                module, mesh=mesh, reshard_after_forward=True, ignored_params=whole | others
            )
            sharded.set_gradient_divide_factor(1.0)
            # gloo neither averages nor scales.
            sharded.set_force_sum_reduction_for_comms(True)
        for name, parameter in self.named_parameters():
            for path in self.paths[name]:
                owner, _, last = path.rpartition(".")
                model.get_submodule(owner).register_parameter(last, parameter)
        # Groups do not write to views that they receive, and `forward` copies those that the loss may write.
        warnings.filterwarnings("ignore", r"FSDP2-wrapped module \(FSDP\w*Stage\) returned a view")


Staged: TypeAlias = StageModule | _ShardedStage


def staged(
    units: Units,
    plan: Distribution,
    grid: Sequence[Sequence[int]],
    position: int,
    device: torch.device,
    group: Group,
) -> tuple[dict[int, Staged], set[str] | None]:
    """Return all stages of a plan, those at this process's `position` on its device, and None. If the plan is
    sharded, shard them over the replicas in `grid`; instead of None, return the paths of whole parameters."""
    modules: dict[int, Staged] = {
        number: _ShardedStage(units, stage, device)
        if plan.sharded
        else StageModule(units, stage.first, stage.stop, device)
        for number, stage in enumerate(plan.stages)
    }
    for number, module in modules.items():
        if plan.position(number) == position:
            module.to(device)
    return modules, _sharded(modules, plan, grid, device, units.model, group) if plan.sharded else None


def _sharded(
    stages: Mapping[int, Staged],
    plan: Distribution,
    grid: Sequence[Sequence[int]],
    device: torch.device,
    model: nn.Module,
    group: Group,
) -> set[str]:
    """Shard the stages of this process; return the paths of the parameters that each replica keeps whole.

    These are parameters that several stages of one process share, which `fully_shard` cannot gather for each;
    parameters that it does not support; and those of a rarer dtype, which messages of others cannot include.
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
        replicas = subgroup(column, group)
        if dist.get_rank() in column:
            mesh = DeviceMesh.from_group(replicas, device.type)
            for number, stage in stages.items():
                if plan.position(number) == position and isinstance(stage, _ShardedStage):
                    stage.shard(model, mesh, {*whole.values()})
    return {*whole}


def rows_as(whole: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return this process's rows of a whole tensor if `like` is sharded, else the tensor."""
    if isinstance(like, DTensor) and not isinstance(whole, DTensor):
        return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)
    return whole
