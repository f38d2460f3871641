"""Tensor parallelism: linears, attention heads and embeddings split over the ranks of a group by
`torch.distributed.tensor.parallel`. `transform.features` chooses the layers, as for a split on one machine; the split
model is compared with the plain one on the examples."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)
from torch.utils._pytree import tree_leaves, tree_map

from ..capture import Captured
from ..capture.ahead import ahead
from ..errors import PlanError, RunError
from ..ir.graph import Task
from ..session.compare import detached_copy, difference, error, limit, restore, untouched
from ..system.text import brief
from ..training.messages import agree, gather, share_weights
from ..transform.features import EMBEDDING, Stretch, stretches
from .agreement import described

log = logging.getLogger("autopar")

_HOOKS = (
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
)
_DROPOUTS = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)


@dataclass(frozen=True)
class TensorGroup:
    """Modules by path that are split together, or the reason why not.

    columns: linears split by their outputs; without `rows`, heads tied to an embedding, whose outputs are gathered.
    rows: linears split by their inputs.
    embeddings: split by their vocabulary.
    why: the reason why the group stays whole; empty if it is split.
    whole_sizes: code between columns and rows sees the sizes of whole tensors (DTensors), not those of a part.
    """

    columns: tuple[str, ...]
    rows: tuple[str, ...] = ()
    embeddings: tuple[str, ...] = ()
    why: str = ""
    whole_sizes: bool = False

    @property
    def modules(self) -> tuple[str, ...]:
        """Paths of all modules whose weights are split."""
        return (*self.embeddings, *self.columns, *self.rows)

    @property
    def title(self) -> str:
        """The modules as text: `mlp.up, mlp.gate → mlp.down`."""
        first = ", ".join((*self.embeddings, *self.columns))
        return f"{first} → {', '.join(self.rows)}" if self.rows else first


@dataclass(frozen=True)
class TensorPlan:
    """A tensor-parallel split of a model over `ranks` processes: its groups, including those that stay whole.

    draws: True if the model draws random numbers in training, by modules or functions.
    """

    model: str
    ranks: int
    groups: tuple[TensorGroup, ...]
    draws: bool = False

    @property
    def split(self) -> tuple[TensorGroup, ...]:
        """The groups that are split."""
        return tuple(group for group in self.groups if not group.why)

    def explain(self) -> str:
        """Return the decision for each group of layers, with the reason for those that stay whole."""
        count = sum(len(group.modules) for group in self.split)
        said = [f"{each.title}: {f'whole: {each.why}' if each.why else 'split'}" for each in self.groups]
        return "\n".join([f"{self.model} over {self.ranks} ranks: {count} layers split", *said])

    def __str__(self) -> str:
        return self.explain()


def tensor_plan(
    model: nn.Module,
    ranks: int,
    *,
    example_inputs: Sequence[Any] = (),
    example_kwargs: Mapping[str, Any] | None = None,
) -> TensorPlan:
    """Return the groups of layers that can be split over `ranks` equal devices, and why others cannot. The model is
    neither run nor changed; tensors may be on the meta device.

    Raises CaptureError if the model is not one graph, PlanError for fewer than two ranks.
    """
    if ranks < 2:
        raise PlanError(
            f"ranks={ranks}: a tensor split needs two processes or more; start them with torchrun"
        )
    # Captured in training mode even for a forward, so that dropouts are seen.
    with torch.no_grad(), _in_mode(model, True):
        captured, _ = ahead(model, tuple(example_inputs), dict(example_kwargs or {}))
    graph = captured.graph
    learned = [name for name, (owner, key) in captured.state.items() if owner[key].requires_grad]
    groups = []
    for stretch in stretches(graph, ranks, learned):
        # A column alone would have to be gathered at once.
        if stretch.refusal or stretch.rows or stretch.embeddings:
            columns, rows, embeddings = (
                tuple(graph.task[name].module for name in names)
                for names in (stretch.columns, stretch.rows, stretch.embeddings)
            )
            groups.append(TensorGroup(columns, rows, embeddings, _wrong(model, captured, stretch)))
    draws = any(_draws(model, task) for task in graph.tasks)
    return TensorPlan(type(model).__name__, ranks, tuple(groups), draws)


def tensor_parallel(
    model: nn.Module,
    group: DeviceMesh | dist.ProcessGroup | None = None,
    *,
    example_inputs: Sequence[Any] = (),
    example_kwargs: Mapping[str, Any] | None = None,
) -> TensorPlan:
    """Split layers of a model over the ranks of a group, in place.

    Call it on all ranks, with models of the same shape and the same examples, before the optimizer is built. The
    weights and buffers of rank 0 are broadcast. Pairs of linears, attention heads and vocabularies (`tensor_plan`)
    are passed to `parallelize_module` as `ColwiseParallel` and `RowwiseParallel`. Split weights become DTensors. Each
    group is first tried on the examples in evaluation mode: outputs and gradients must equal those of the plain model
    within rounding; a group that differs or raises stays whole, as the plan notes.

    model: the model, whose weights are replaced in place.
    group: a `DeviceMesh` of one dimension or a process group; None: all ranks.

    Each step gives all ranks the same batch. Dropout draws the same masks on all ranks; a training forward raises if
    generators differ. Print the result for the decisions. Raises PlanError or CaptureError, on all ranks.
    """
    mesh = _mesh(model, group)
    kwargs = dict(example_kwargs or {})
    if any(isinstance(tensor, DTensor) for tensor in (*model.parameters(), *model.buffers())):
        raise PlanError("the model has DTensors already; split it before fully_shard, and once")
    sizes = [
        [*leaf.shape] for leaf in tree_leaves((example_inputs, kwargs)) if isinstance(leaf, torch.Tensor)
    ]
    agree(lambda: described(model) | {"examples of": str(sizes)}, mesh.get_group())
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    share_weights([*model.named_parameters(), *model.named_buffers()], mesh.get_group(), device)
    plan = tensor_plan(model, mesh.size(), example_inputs=example_inputs, example_kwargs=kwargs)
    if plan.split:
        answers = _Answers(model, tuple(example_inputs), kwargs, mesh.get_group())
        plan = replace(plan, groups=_applied(model, mesh, plan, answers))
    if plan.draws:
        _agree_on_random(model, mesh.get_group(), device)
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
    whole = [_whole(norm) for norm in norms]
    total = torch.linalg.vector_norm(torch.stack(whole), norm_type) if whole else torch.tensor(0.0)
    scale = torch.clamp(max_norm / (total + 1e-6), max=1.0)
    for gradient in gradients:
        local(gradient).mul_(scale)
    return total


def local(tensor: Any) -> Any:
    """Return this rank's part of a tensor, in the same memory; other values, and whole tensors, unchanged."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


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
        return group
    kinds = {parameter.device.type for parameter in model.parameters()} or {"cpu"}
    if len(kinds) > 1:
        raise PlanError(
            f"the model is on {' and '.join(sorted(kinds))}; move it to the device of its rank first"
        )
    chosen = group or dist.group.WORLD
    assert chosen is not None
    return DeviceMesh.from_group(chosen, kinds.pop())


def _wrong(model: nn.Module, captured: Captured, stretch: Stretch) -> str:
    """Return the reason why a stretch of tasks is not a group of modules that can be split; "" if it is."""
    if stretch.refusal:
        return stretch.refusal
    for name in (*stretch.columns, *stretch.rows, *stretch.embeddings):
        task = captured.graph.task[name]
        kind: type[nn.Module] = nn.Embedding if task.target == EMBEDDING else nn.Linear
        module = model.get_submodule(task.module)
        owner, key = captured.state[task.inputs[0 if kind is nn.Embedding else 1]]
        if type(module).forward is not kind.forward or "forward" in vars(module):
            return f"{task.where} is not called by an nn.{kind.__name__} of its own"
        if dict(module.named_parameters(recurse=False)).get("weight") is not owner[key]:
            return f"the weight of {task.module} is not a parameter of its own (parametrized?)"
        if isinstance(module, nn.Embedding) and (
            module.padding_idx is not None
            or module.max_norm is not None
            or module.sparse
            or module.scale_grad_by_freq
        ):
            return f"{task.module} has padding_idx, max_norm, sparse or scale_grad_by_freq, which need the whole table"
    for task in (captured.graph.task[name] for name in stretch.inner):
        if _draws(model, task):
            return f"{task.where} would draw the same random numbers for the parts of all ranks; set its dropout to 0"
    return ""


def _draws(model: nn.Module, task: Task) -> bool:
    """Return True if a task draws random numbers, and is not a dropout of nothing."""
    if task.random is None:
        return False
    module = dict(model.named_modules()).get(task.module)
    return not (isinstance(module, _DROPOUTS) and module.p == 0)


def _applied(
    model: nn.Module, mesh: DeviceMesh, plan: TensorPlan, answers: _Answers
) -> tuple[TensorGroup, ...]:
    """Split the model by a plan: all groups at once if its answers stay the same, else one by one; return the groups
    as they are split, or with the reason why they stay whole."""
    undo = [_split(model, mesh, group) for group in plan.split]
    if not answers.differ():
        return plan.groups
    for undo_one in reversed(undo):
        undo_one()
    return tuple(
        group if group.why else _split_if_equal(model, mesh, group, answers) for group in plan.groups
    )


def _split_if_equal(model: nn.Module, mesh: DeviceMesh, group: TensorGroup, answers: _Answers) -> TensorGroup:
    """Split a group if the model's answers stay the same; return the group as it is split, or with the reason why it
    stays whole."""
    why = ""
    for whole_sizes in (False, True) if group.rows else (False,):
        form = replace(group, whole_sizes=whole_sizes)
        undo = _split(model, mesh, form)
        why = answers.differ()
        if not why:
            return form
        undo()
    return replace(group, why=f"tried, and not the answers of the plain model: {why}")


def _split(model: nn.Module, mesh: DeviceMesh, group: TensorGroup) -> Callable[[], None]:
    """Split the modules of a group, in place; return a function that restores them. Weights that several modules
    share stay shared."""
    if group.whole_sizes:
        _attend_by_heads()
    inner = ColwiseParallel(use_local_output=not group.whole_sizes)
    styles: dict[str, ParallelStyle] = {
        **dict.fromkeys(group.columns, inner if group.rows else ColwiseParallel(output_layouts=Replicate())),
        **dict.fromkeys(group.rows, RowwiseParallel()),
        **dict.fromkeys(group.embeddings, RowwiseParallel(input_layouts=Replicate())),
    }
    before: dict[nn.Module, dict[str, Any]] = {}
    parts: dict[nn.Parameter, nn.Parameter] = {}
    for path, style in styles.items():
        module = model.get_submodule(path)
        before[module] = {name: dict(getattr(module, name)) for name in ("_parameters", *_HOOKS)}
        whole = dict(module._parameters)
        parallelize_module(module, mesh, style)
        for name, parameter in whole.items():
            if parameter is not None:
                module.register_parameter(name, parts.setdefault(parameter, getattr(module, name)))

    def undo() -> None:
        for module, state in before.items():
            for name, value in state.items():
                getattr(module, name).clear()
                getattr(module, name).update(value)
            # `distribute_module` sets this mark, and refuses a module that has it.
            module.__dict__.pop("_distribute_module_applied", None)

    return undo


def _attend_by_heads() -> None:
    """Register attention on the CPU as splittable by heads in DTensor, which knows only CUDA's kernels."""
    aten = torch.ops.aten
    forward = aten._scaled_dot_product_flash_attention_for_cpu.default
    backward = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    for op, tensors, outputs in ((forward, 3, 2), (backward, 6, 3)):

        def ways(*args: Any, tensors: int = tensors, outputs: int = outputs, **kwargs: Any) -> Any:
            mask = [Replicate()] if kwargs.get("attn_mask") is not None else []
            others = [None] * (len(args) - tensors)
            return [([way] * outputs, [way] * tensors + others + mask) for way in (Replicate(), Shard(1))]

        register_sharding(op)(ways)


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
        self.plain = self._ask()

    def differ(self) -> str:
        """Return the first difference or error, the same on all ranks; "" if there is none."""
        try:
            why = self._first(self._ask())
        except Exception as error:
            why = brief(error)
        return next(filter(None, gather(why, self.group)), "")

    def _first(self, answers: dict[str, Any]) -> str:
        gradients = [t for name, t in self.plain.items() if name.startswith(_GRADIENT) and t is not None]
        largest = max(
            (float(gradient.abs().max()) for gradient in gradients if gradient.numel()), default=0.0
        )
        for name, reference in self.plain.items():
            allowed = min(_MOST, _ROUNDINGS * limit(reference))
            # A gradient of pure rounding (of a shift that softmax ignores) is measured by the largest one.
            floor = _SMALL * largest if name.startswith(_GRADIENT) else 0.0
            if error(answers.get(name), reference, floor) > allowed:
                return f"{name}: {difference(answers.get(name), reference, allowed)}"
        return ""

    def _ask(self) -> dict[str, Any]:
        with _in_mode(self.model, False), untouched(self.model):
            with torch.no_grad():
                served = self._called()
            with torch.enable_grad():
                outputs = self._called()
                gradients = self._gradients(outputs)
        answers = {f"output {place} without gradients": leaf for place, leaf in enumerate(served)}
        answers.update((f"output {place}", _whole(leaf)) for place, leaf in enumerate(outputs))
        return {**answers, **gradients}

    def _called(self) -> list[Any]:
        return tree_leaves(
            self.model(*tree_map(detached_copy, self.args), **tree_map(detached_copy, self.kwargs))
        )

    def _gradients(self, results: Sequence[Any]) -> dict[str, Any]:
        """Return the gradients of all parameters, for output weights that are all different."""
        outputs = [leaf for leaf in results if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        named = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        if not outputs or not named:
            return {}
        first, *others = [(leaf * _ramp(leaf)).real.sum() for leaf in outputs]
        loss = sum(others, start=first)
        gradients = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
        return {f"{_GRADIENT}{name}": _whole(grad) for name, grad in zip(named, gradients)}


def _whole(leaf: Any) -> Any:
    leaf = leaf.full_tensor() if isinstance(leaf, DTensor) else leaf
    return leaf.detach() if isinstance(leaf, torch.Tensor) else leaf


def _ramp(leaf: torch.Tensor) -> torch.Tensor:
    return torch.linspace(-1, 1, leaf.numel(), dtype=leaf.dtype, device=leaf.device).view(leaf.shape)


@contextmanager
def _in_mode(model: nn.Module, training: bool) -> Iterator[None]:
    """Within the block, put the model in training or evaluation mode; then restore the mode of each module."""
    before = [(module, module.training) for module in model.modules()]
    model.train(training)
    try:
        yield
    finally:
        for module, was in before:
            module.training = was


def _agree_on_random(model: nn.Module, group: dist.ProcessGroup, device: torch.device) -> None:
    """Broadcast the generators of rank 0, and check before each forward in training that they still agree."""
    states = _states(device)
    for state in states.values():
        shared = state.to(device)
        dist.broadcast(shared, group=group, group_src=0)
        state.copy_(shared)
    restore(states)

    def compare(module: nn.Module, _: Any) -> None:
        if not module.training:
            return
        states = _states(device).values()
        digest = hashlib.sha256(b"".join(state.numpy().tobytes() for state in states)).digest()
        mine = int.from_bytes(digest[:7], "big")
        extremes = torch.tensor([mine, -mine], device=device)
        dist.all_reduce(extremes, dist.ReduceOp.MAX, group=group)
        if int(extremes[0]) != -int(extremes[1]):
            raise RunError(
                "the ranks of a tensor split have different random generators, so that dropout would drop other "
                "elements on each; call torch.manual_seed with one number on all ranks, and draw nothing on some alone"
            )

    model.register_forward_pre_hook(compare)


def _states(device: torch.device) -> dict[str, torch.Tensor]:
    """Return the generator states of the CPU and of an accelerator, by device."""
    states = {"cpu": torch.get_rng_state()}
    if device.type != "cpu":
        states[str(device)] = torch.get_device_module(device).get_rng_state(device)
    return states
