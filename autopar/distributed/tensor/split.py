"""Tensor parallelism by `torch.distributed.tensor.parallel`, where it is predicted to be faster. The split
model is compared with the plain one on the examples. The link between the ranks, declared or measured."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils._pytree import tree_leaves, tree_map

from ...costs.calibrate import durations
from ...costs.detect import detect
from ...errors import DeviceError, PlanError
from ...ir.device import Link
from ...ir.hosts import Host, Hosts, compute_devices
from ...ir.machine import Machine
from ...ir.serialize import decode, encode
from ...pipeline.compare import apart, difference, error, limit
from ...planner.pipelines.grid import all_reduce_s
from ...system.text import brief
from ...training.messages import agree, gather, made_by_first, share_weights
from ..agreement import described
from .plan import CONVOLUTIONS, TensorGroup, TensorPlan, in_mode, tensor_plan
from .shards import agree_on_random, local, restored, split

log = logging.getLogger("autopar")


def tensor_parallel(
    model: nn.Module,
    group: DeviceMesh | dist.ProcessGroup | None = None,
    *,
    example_inputs: Sequence[Any] = (),
    example_kwargs: Mapping[str, Any] | None = None,
    network: Hosts | Link | str | None = None,
    machine: Machine | None = None,
    training: bool | None = None,
) -> TensorPlan:
    """Split layers of a model over the ranks of a group, in place, where that is predicted to be faster.

    Call it on all ranks, with models of the same shape and the same examples, before the optimizer is built. Rank 0
    plans (`tensor_plan`), its weights and buffers are broadcast, and pairs of linears, attention heads and
    vocabularies are passed to `parallelize_module` as `ColwiseParallel` and `RowwiseParallel`. Split weights become
    DTensors. Each kind of group is first tried on the examples in evaluation mode: outputs and gradients must equal
    those of the plain model within rounding; a group that differs or raises stays whole, as the plan notes.

    model: the model, whose weights are replaced in place.
    group: a `DeviceMesh` of one dimension or a process group; None: all ranks.
    network: `Hosts`, text for `Hosts.declare`, or a `Link` (seconds, bytes per second) to price communication; None:
    measured over the group.
    machine: a machine to price the compute of a rank; None: the device of rank 0's model, measured.
    training: price a training step, not a forward; None: as in `model.training`.

    Each step gives all ranks the same batch. Dropout draws the same masks on all ranks for whole values, and different
    masks for parts; a training forward raises if generators differ. Print the result for the decisions. Raises
    PlanError, DeviceError or CaptureError, on all ranks.
    """
    mesh = _mesh(model, group)
    kwargs = dict(example_kwargs or {})
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    if any(isinstance(tensor, DTensor) for tensor in (*model.parameters(), *model.buffers())):
        raise PlanError("the model has DTensors already; split it before fully_shard, and once")
    sizes = [
        [*leaf.shape] for leaf in tree_leaves((example_inputs, kwargs)) if isinstance(leaf, torch.Tensor)
    ]
    agree(lambda: described(model) | {"examples of": str(sizes)}, mesh.get_group())
    share_weights(model, mesh.get_group(), device)
    link = measured_link(mesh) if network is None else slowest_link(network, mesh.size())
    dispatch_s = measured_dispatch(mesh) if machine is None else 0.0

    def planned() -> Any:
        found = tensor_plan(
            model,
            mesh.size(),
            machine or detect([str(device)]),
            link,
            dispatch_s=dispatch_s,
            example_inputs=example_inputs,
            example_kwargs=kwargs,
            training=training,
        )
        return encode(found)

    plan = decode(TensorPlan, made_by_first(planned, mesh.get_group()), "the plan of rank 0")
    if plan.split:
        plan = _applied(model, mesh, plan, tuple(example_inputs), kwargs)
    if plan.draws:
        agree_on_random(model, mesh.get_group(), device)
    log.info("%s", plan)
    return plan


def clip_grad_norm_(
    parameters: Iterable[torch.Tensor] | torch.Tensor, max_norm: float, norm_type: float = 2.0
) -> torch.Tensor:
    """Scale gradients so that their global norm is at most `max_norm`; return the original norm, equal on all ranks.

    Like `torch.nn.utils.clip_grad_norm_`, which does not accept a mix of DTensors and tensors.
    """
    clipped = [parameters] if isinstance(parameters, torch.Tensor) else parameters
    gradients = [parameter.grad for parameter in clipped if parameter.grad is not None]
    norms = [torch.linalg.vector_norm(gradient, norm_type) for gradient in gradients]
    whole = [norm.full_tensor() if isinstance(norm, DTensor) else norm for norm in norms]
    total = torch.linalg.vector_norm(torch.stack(whole), norm_type) if whole else torch.tensor(0.0)
    scale = torch.clamp(max_norm / (total + 1e-6), max=1.0)
    for gradient in gradients:
        local(gradient).mul_(scale)
    return total


def _mesh(model: nn.Module, group: DeviceMesh | dist.ProcessGroup | None) -> DeviceMesh:
    if not isinstance(model, nn.Module):
        raise PlanError(f"{model!r} is not a model; give an nn.Module")
    if not dist.is_initialized():
        raise PlanError(
            'no process group is there: start the script with "torchrun --nproc-per-node 2 train.py", and call '
            "torch.distributed.init_process_group() first"
        )
    if isinstance(group, DeviceMesh):
        if group.ndim != 1:
            names = group.mesh_dim_names or ("…",)
            raise PlanError(f'the mesh has {group.ndim} dimensions; give one of them, mesh["{names[-1]}"]')
        mesh = group
    else:
        kinds = {parameter.device.type for parameter in model.parameters()} or {"cpu"}
        if len(kinds) > 1:
            raise PlanError(
                f"the model is on {' and '.join(sorted(kinds))}; move it to the device of its rank first"
            )
        chosen = group or dist.group.WORLD
        assert chosen is not None
        mesh = DeviceMesh.from_group(chosen, kinds.pop())
    if mesh.size() < 2:
        raise PlanError(
            "the group has one rank; a tensor split needs two or more (torchrun --nproc-per-node 2)"
        )
    return mesh


def _applied(
    model: nn.Module, mesh: DeviceMesh, plan: TensorPlan, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> TensorPlan:
    """Split the model by a plan; return the plan with the groups that failed their trial as whole."""
    answers = _Answers(model, args, kwargs, mesh.get_group())
    forms: dict[str, tuple[str, str]] = {}
    decided = []
    for group in plan.groups:
        if group.split:
            kind = _kind(model, group)
            if kind not in forms:
                forms[kind] = _tried(model, mesh, group, answers)
            form, why = forms[kind]
            group = replace(group, form=form) if form else replace(group, split=False, why=why)
        decided.append(group)
    plan = replace(plan, groups=tuple(decided))
    undo = split(model, mesh, plan.split)
    why = answers.differ()
    if not why:
        return plan
    undo()
    whole = (replace(group, split=False, why=why) if group.split else group for group in plan.groups)
    return replace(plan, groups=tuple(whole))


def _tried(model: nn.Module, mesh: DeviceMesh, group: TensorGroup, answers: _Answers) -> tuple[str, str]:
    """Return the form in which a group reproduces the plain model's outputs, or "" and the reason if none does."""
    reasons = []
    linear = not group.channels and not any(
        isinstance(model.get_submodule(path), CONVOLUTIONS) for path in group.modules
    )
    for form in ("local", "dtensor") if group.rows and linear else ("local",):
        undo = split(model, mesh, [replace(group, form=form)])
        why = answers.differ()
        undo()
        if not why:
            return form, ""
        reasons.append(why)
    return "", f"tried, and not the answers of the plain model: {reasons[-1]}"


def _kind(model: nn.Module, group: TensorGroup) -> str:
    """Return a text that is equal for groups with the same code: classes and shapes of all their modules."""
    found = []
    for path in group.modules:
        module, owner = model.get_submodule(path), model.get_submodule(path.rpartition(".")[0])
        shapes = [tuple(parameter.shape) for parameter in module.parameters(recurse=False)]
        found.append(f"{type(owner).__qualname__}.{path.rpartition('.')[2]}{shapes}")
    return " ".join(found)


_ROUNDINGS = 10.0
"""Factor on the tolerance of one operator that sums in another order, for errors accumulated over all layers."""
_MOST = 0.05
_SMALL = 1e-2
_GRADIENT = "gradient of "


class _Answers:
    """The outputs and gradients of a model at construction; `differ` compares later ones. All ranks of a
    group must call `differ`."""

    def __init__(
        self, model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], group: dist.ProcessGroup
    ) -> None:
        self.model, self.args, self.kwargs, self.group = model, args, kwargs, group
        self.device = next(model.parameters()).device
        self.plain = self._ask()

    def differ(self) -> str:
        """Return the first difference or error, the same on all ranks; "" if there is none."""
        try:
            why = self._first(self._ask())
        except Exception as error:
            why = brief(error)
        return next(filter(None, gather(why, self.group)), "")

    def _first(self, found: dict[str, Any]) -> str:
        gradients = [t for name, t in self.plain.items() if name.startswith(_GRADIENT) and t is not None]
        largest = max(
            (float(gradient.abs().max()) for gradient in gradients if gradient.numel()), default=0.0
        )
        for name, reference in self.plain.items():
            allowed = min(_MOST, _ROUNDINGS * limit(reference))
            # A gradient of pure rounding (of a shift that softmax ignores) is measured by the largest one.
            floor = _SMALL * largest if name.startswith(_GRADIENT) else 0.0
            if error(found.get(name), reference, floor) > allowed:
                return f"{name}: {difference(found.get(name), reference, allowed)}"
        return ""

    def _ask(self) -> dict[str, Any]:
        with in_mode(self.model, False), restored(self.device):
            with torch.no_grad():
                served = self._called()
            with torch.enable_grad():
                made = self._called()
                gradients = self._gradients(made)
        answers = {f"output {place} without gradients": leaf for place, leaf in enumerate(served)}
        answers.update((f"output {place}", _whole(leaf)) for place, leaf in enumerate(made))
        return {**answers, **gradients}

    def _called(self) -> list[Any]:
        return tree_leaves(self.model(*tree_map(apart, self.args), **tree_map(apart, self.kwargs)))

    def _gradients(self, made: Sequence[Any]) -> dict[str, Any]:
        """Return the gradients of all parameters, for output weights that are all different."""
        outputs = [leaf for leaf in made if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        named = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        if not outputs or not named:
            return {}
        first, *others = [(leaf * _ramp(leaf)).real.sum() for leaf in outputs]
        loss = sum(others, start=first)
        found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
        return {f"{_GRADIENT}{name}": _whole(grad) for name, grad in zip(named, found)}


def _whole(leaf: Any) -> Any:
    leaf = leaf.full_tensor() if isinstance(leaf, DTensor) else leaf
    return leaf.detach() if isinstance(leaf, torch.Tensor) else leaf


def _ramp(leaf: torch.Tensor) -> torch.Tensor:
    return torch.linspace(-1, 1, leaf.numel(), dtype=leaf.dtype, device=leaf.device).view(leaf.shape)


_FEATURES, _MESSAGE = 16, 1 << 20
"""Features per rank of the layers whose dispatch is timed, and elements of the message whose bandwidth is measured."""
_ROUNDS = 9


def slowest_link(network: Hosts | Link | str, ranks: int) -> Link:
    """Return the slowest link of a ring over ranks that are assigned to the hosts in order, evenly.

    A `Link` is returned as it is; text is read by `Hosts.declare`. Raises DeviceError for anything else.
    """
    if isinstance(network, Link):
        return network
    hosts = Hosts.declare(network) if isinstance(network, str) else network
    if not isinstance(hosts, Hosts):
        raise DeviceError(
            f'network={network!r} is none; give a Link, Hosts or a text such as "1 x (cpu + 8 h100) over ib-400"'
        )
    each = -(-ranks // len(hosts.hosts))
    at = [hosts.hosts[rank // each] for rank in range(ranks)]
    ways = [
        _within(a) if a.name == b.name else hosts.link(a.name, b.name) for a, b in zip(at, [*at[1:], at[0]])
    ]
    return max(ways, key=lambda link: link.seconds(_MESSAGE))


def _within(host: Host) -> Link:
    """Return the link between two devices of a host, through its memory if they are its CPU."""
    names = compute_devices(host.machine)
    if len(names) > 1:
        way = host.machine.route(names[0], names[1])
        rate = min(link.bytes_per_s for link in way)
        return Link(names[0], names[1], sum(link.latency_s for link in way), rate, None)
    device = host.machine.device[names[0]]
    return Link(names[0], names[0], device.dispatch_s, device.bytes_per_s / 2, None)


def measured_link(mesh: DeviceMesh) -> Link:
    """Return a link for which `all_reduce_s` fits measured all-reduces of one element and of 4 MiB; all ranks must
    call it.

    Collectives are measured, unlike the pairwise messages of `distribute`, because all ranks of a host send at once.
    """
    ranks, group = mesh.size(), mesh.get_group()
    message = torch.zeros(_MESSAGE, device=mesh.device_type)
    short = _median(lambda: dist.all_reduce(message[:1], group=group), mesh)
    long = _median(lambda: dist.all_reduce(message, group=group), mesh)
    latency_s = short / all_reduce_s(ranks, 1.0, 1.0, float("inf"))
    once = all_reduce_s(ranks, message.nbytes, 0.0, 1.0)
    return Link("rank", "rank", latency_s, once / max(1e-9, long - short), None)


def measured_dispatch(mesh: DeviceMesh) -> float:
    """Return the host's seconds for DTensor's dispatch of a split layer, spent in the forward and again in
    the backward, in addition to the plain layer and its collective. All ranks must call it."""
    device, group, features = mesh.device_type, mesh.get_group(), mesh.size() * _FEATURES
    with torch.random.fork_rng(devices=[]):
        plain, pair = (
            nn.Sequential(nn.Linear(features, features), nn.ReLU(), nn.Linear(features, features)).to(device)
            for _ in range(2)
        )
    parallelize_module(pair, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    given = torch.ones(_FEATURES, features, device=device, requires_grad=True)
    message = torch.zeros(_FEATURES, features, device=device)

    def step(model: nn.Module) -> None:
        with torch.enable_grad():
            model(given).sum().backward()

    alone, split = _median(lambda: step(plain), mesh), _median(lambda: step(pair), mesh)
    sums = 2 * _median(lambda: dist.all_reduce(message, group=group), mesh)
    return max(0.0, split - alone - sums) / 4


def _median(call: Callable[[], object], mesh: DeviceMesh) -> float:
    return statistics.median(durations(call, mesh.device_type, _ROUNDS + 1)[1:])
