"""A model over several processes, as returned by `autopar.distribute`, run by `torch.distributed.pipelining`; and the
report of its plan."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree

from ...errors import PlanError, RunError
from ...ir.distribution import Distribution
from ...ir.timeline import Span, Timeline
from ...planner.pipelines.simulation import grid_of, predicted, waits
from ...system.text import seconds, size, table
from ...training.messages import subgroup
from ..tensor_split import local
from .entry import INPUT, TimedStage
from .reduction import sums
from .stages import rows_as, staged
from .units import Units

_SCHEDULES = {
    "gpipe": pipelining.ScheduleGPipe,
    "1f1b": pipelining.Schedule1F1B,
    "interleaved": pipelining.ScheduleInterleaved1F1B,
    "zero-bubble": pipelining.ScheduleInterleavedZeroBubble,
}
GATHERS = 3
"""Transfers of a sharded stage for each micro-batch: its parameters are gathered for the forward and for the
backward, and its gradients are scattered."""


class Distributed:
    """The stages of a model in this process, and the steps that all processes of the job take together.

    `job.step(*inputs, target=…)` runs forward, backward and the sum of gradients; `job(*inputs)` only the forward.
    Every process gets the whole batch, and each replica takes its rows. Parameters are the model's own objects:
    `torch.optim.SGD(job.parameters())` updates those of this process. If the plan shards them over replicas, they are
    replaced in the model by DTensors, as by `fully_shard`. `holders` has a rank of the whole job for each parameter and
    buffer that the stages use: the first that updates it.
    """

    def __init__(
        self,
        units: Units,
        plan: Distribution,
        loss: Callable[..., torch.Tensor] | None,
        group: dist.ProcessGroup | None,
        device: torch.device,
        place: Callable[[nn.Module], nn.Module],
    ) -> None:
        self.plan, self.loss, self._device, self._group = plan, loss, device, group
        ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
        rank = {host.name: rank for host, rank in zip(plan.hosts.hosts, ranks)}
        grid = [[rank[name] for name in row] for row in plan.ranks]
        me = dist.get_rank()
        places = [(r, p) for r, row in enumerate(grid) for p, rank in enumerate(row) if rank == me]
        # A process that the plan leaves idle only waits for the loss.
        self.replica, self.position = places[0] if places else (-1, -1)
        chains = [subgroup(row, group) for row in grid]
        self._chain = chains[self.replica] if places else None
        modules, whole = staged(units, plan, grid, self.position, device, group)
        self.stages = {n: module for n, module in modules.items() if plan.position(n) == self.position}
        self._sums = sums(modules, plan, grid, self.position, whole, group)
        self._empty = nn.Parameter(torch.empty(0, device=device))
        self._last = modules[len(modules) - 1]
        self._arguments = units.arguments
        model = units.model
        self._fixed = [(path, each, each.requires_grad) for path, each in model.named_parameters()]
        self._unlike_serving = units.trains if model.training else ""
        self.holders: dict[str, int] = {}
        for number, module in modules.items():
            for name in module.state_dict(keep_vars=True):
                for path in module.paths[name]:
                    self.holders.setdefault(path, grid[0][plan.position(number)])
        # Copies of a tied parameter count once in a norm.
        self._first: dict[str, int] = {}
        for number, module in modules.items():
            for name, _ in module.named_parameters():
                path, position = module.paths[name][0], plan.position(number)
                self._first[path] = min(position, self._first.get(path, position))
        used = {path for module in modules.values() for paths in module.paths.values() for path in paths}
        self._unused = {
            path: each
            for path, each in model.state_dict(keep_vars=True).items()
            if self.position == 0 and path not in used
        }
        self._targets: tuple[Any, ...] = ()
        self._placed = {n: place(module) for n, module in self.stages.items()}
        self._spans: list[Span] = []
        self._answers: list[tuple[int, Sequence[torch.Tensor]]] = []
        self._step_times = (0.0, 0.0)
        self._training = self._scheduled(self._scaled) if loss is not None and self.stages else None
        self._serving: Any = None

    def _scheduled(self, loss: Callable[..., torch.Tensor] | None) -> Any:
        shared = self.plan, self._device, self._chain, self._sums.backward, self._spans, self._answers
        built = [TimedStage(n, placed, self.stages[n], *shared) for n, placed in self._placed.items()]
        kind: Any = _SCHEDULES[self.plan.schedule]
        single = issubclass(kind, pipelining.schedules.PipelineScheduleSingle)
        arguments = built[0] if single else built
        return kind(arguments, self.plan.micro_batches, loss_fn=loss, scale_grads=False)

    def step(self, *args: Any, target: Any = (), **kwargs: Any) -> torch.Tensor:
        """Add the gradients of a batch to `.grad`; return its mean loss, a scalar that is equal in all processes.

        `target` is passed to `loss(outputs, target)`, a tuple as several arguments; the first axis of its tensors is
        the batch. The loss must be a mean over rows, so that the losses of micro-batches average to it. Raises
        PlanError for a batch of another size, and if no `loss` was given.
        """
        if self.loss is None:
            raise PlanError(
                "there is no loss to train with; give one: autopar.distribute(model, loss=criterion)"
            )
        switched = next((path for path, each, was in self._fixed if each.requires_grad is not was), None)
        if switched:
            raise PlanError(
                f"requires_grad of {switched} has changed since the stages were made, which sum the gradients of what "
                "was trained then; save a checkpoint, distribute again, and load it"
            )
        inputs = self._inputs(args, kwargs)
        targets = target if isinstance(target, tuple) else (target,)
        self._check(targets)
        self._targets = self._rows(targets) if self._has_last else ()
        losses: list[torch.Tensor] = []
        marks = torch.arange(self.plan.micro_batches)
        self._spans.clear()
        began = time.perf_counter()
        with self._sums.step():
            if self._training is not None:
                self._training.step(
                    **inputs, target=marks if self._has_last else None, losses=losses, return_outputs=False
                )
        total = torch.stack(losses).sum().detach() if self._has_last else torch.zeros((), device=self._device)
        total = total.to(torch.float64)
        dist.all_reduce(total, group=self._group)
        self._step_times = began, time.perf_counter()
        return total

    @torch.no_grad()
    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """Scale all gradients so that their norm over all processes is at most `max_norm`; return the norm before,
        equal in all processes, each of which must call it.

        Like `torch.nn.utils.clip_grad_norm_` of the whole model. That function knows only this process's part.
        """
        total = torch.zeros((), dtype=torch.float64, device=self._device)
        gradients = []
        for path, parameter in self.named_parameters():
            if parameter.grad is None:
                continue
            gradients.append(local(parameter.grad))
            counts = isinstance(parameter, DTensor) or self.replica == 0
            if counts and self._first[path] == self.position:
                kind = torch.complex128 if parameter.is_complex() else torch.float64
                total += torch.linalg.vector_norm(gradients[-1], dtype=kind).square()
        dist.all_reduce(total, group=self._group)
        norm = total.sqrt()
        scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(scale)
        return norm

    @torch.no_grad()
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the model's output for the rows of this replica in the process of its last stage; None in the
        others. Raises PlanError if the stages are those of a model in training mode, and would not answer as in
        evaluation."""
        if self._unlike_serving:
            raise PlanError(
                f"the stages are those of the model in training mode, in which {self._unlike_serving} drops values or "
                "moves statistics, also after model.eval(); evaluate it in one process: save a checkpoint of this job, "
                "and load it there into the model"
            )
        inputs = self._inputs(args, kwargs)
        if not self.stages:
            return None
        if self._serving is None:
            self._serving = self._scheduled(None)
        # In its first call, torch infers shapes and thereby clears the gradients of sharded parameters.
        waiting = [(parameter, parameter.grad) for parameter in self.parameters()]
        # The timeline is that of the last step.
        known = len(self._spans)
        self._answers.clear()
        try:
            self._serving.eval(**inputs, return_outputs=False)
        finally:
            del self._spans[known:]
        for parameter, gradient in waiting:
            parameter.grad = gradient
        return self._last.answer(self._joined()) if self._has_last else None

    def _joined(self) -> list[torch.Tensor]:
        """Return the outputs of all micro-batches of a call, joined by rows."""
        outputs = [*zip(*(output for _, output in sorted(self._answers, key=itemgetter(0))), strict=True)]
        self._answers.clear()
        count = self.plan.micro_batches
        if count == 1:
            return [one for (one,) in outputs]
        rows = self.plan.batch // self.plan.replicas // count
        for parts in outputs:
            if parts[0].dim() == 0 or parts[0].shape[0] != rows:
                raise PlanError(
                    f"an output of {list(parts[0].shape)} has not the rows of its micro-batch along its first axis, so "
                    f"that those of {count} micro-batches cannot be joined; give distribute micro_batches=1, or a "
                    "model without this output"
                )
        return [torch.cat(parts) for parts in outputs]

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters of this process's stages, each once, and in the first process of a replica those that
        the model does not use; an empty one if there are none, because optimizers need at least one."""
        parameters = [parameter for _, parameter in self.named_parameters()]
        return iter(parameters or [self._empty])

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield (path in the model, parameter) of what `parameters` yields."""
        named = {
            id(parameter): (module.paths[name][0], parameter)
            for module in self.stages.values()
            for name, parameter in module.named_parameters()
        }
        unused = {
            id(each): (path, each) for path, each in self._unused.items() if isinstance(each, nn.Parameter)
        }
        return iter({**named, **unused}.values())

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return parameters and buffers of this process's stages under all their paths in the model, and in the first
        process of a replica those that the model does not use."""
        unused = {
            path: each.detach() for path, each in self._unused.items() if isinstance(each, torch.Tensor)
        }
        return unused | {
            path: tensor
            for module in self.stages.values()
            for name, tensor in module.state_dict().items()
            for path in module.paths[name]
        }

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Load a state dict of the whole model or of these stages. Raises RunError if a path is missing."""
        for path, tensor in self.state_dict().items():
            if path not in state:
                raise RunError(
                    f"the state dict has no {path!r}, which stages {', '.join(map(str, self.stages))} need"
                )
            tensor.copy_(rows_as(state[path], tensor))

    @property
    def timeline(self) -> Timeline:
        """The last step in this process. `0F2` is the forward of stage 0 for micro-batch 2, B its backward, W
        its weight gradients if computed separately. On an accelerator, spans last as long as the launches."""
        began, ended = self._step_times
        spans = tuple(span.later(-began) for span in self._spans)
        return Timeline(self.plan.model, (f"{self._device}/0",), spans, ended - began, began=began)

    def explain(self) -> str:
        """Return the report of the plan: stages, waits, links, and the other plans that were considered."""
        return _explained(self.plan)

    @property
    def predicted(self) -> Timeline:
        """The predicted step of the first replica, to save as a picture or for Perfetto."""
        return predicted(self.plan)

    @property
    def _has_last(self) -> bool:
        return len(self.plan.stages) - 1 in self.stages

    def _scaled(self, output: Any, mark: torch.Tensor) -> torch.Tensor:
        """Return the loss of one micro-batch scaled to its share of the mean."""
        assert self.loss is not None
        number, count = int(mark), self.plan.micro_batches
        targets = pytree.tree_map_only(torch.Tensor, lambda leaf: leaf.chunk(count)[number], self._targets)
        return self.loss(self._last.answer(output), *targets) / (count * self.plan.replicas)

    def _inputs(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return this replica's rows of the inputs that its stages need, by `INPUT` and name.

        Every process checks all of them: if one refused a batch alone, the others would wait for it.
        """
        inputs = self._arguments(args, kwargs)
        self._check(inputs)
        needed = {name for module in self.stages.values() for name in module.needs}
        return {f"{INPUT}{name}": self._rows(leaf) for name, leaf in inputs.items() if name in needed}

    def _check(self, batch_tensors: Any) -> None:
        """Raise PlanError for a tensor of another number of rows than that of the plan."""
        batch = self.plan.batch
        for leaf in pytree.tree_leaves(batch_tensors):
            if isinstance(leaf, torch.Tensor) and (leaf.dim() == 0 or leaf.shape[0] != batch):
                raise PlanError(
                    f"a tensor of {list(leaf.shape)} where a batch of {batch} rows was planned; give batches of that "
                    "size (drop_last=True in the loader), or distribute again with example_inputs of this size"
                )

    def _rows(self, batch: Any) -> Any:
        """Return this replica's rows of all tensors, on its device."""
        share = self.plan.batch // self.plan.replicas
        rows = slice(self.replica * share, (self.replica + 1) * share)
        return pytree.tree_map_only(torch.Tensor, lambda leaf: leaf[rows].to(self._device), batch)


def _explained(plan: Distribution) -> str:
    """Return tables of the plan: stages, work and waits of each process of a replica, links, and the other plans."""
    parts = [str(plan)]
    timeline = predicted(plan)
    waiting = waits(plan, timeline.spans)
    rows = [("process", "busy", "of the step" if plan.trained else "of one batch", "waits for")]
    for name in plan.ranks[0]:
        busy = sum(
            span.seconds
            for span in timeline.spans
            if span.device == name and span.kind == "compute" and span.phase != "update"
        )
        longest = sorted(
            ((s, other) for (device, other), s in waiting.items() if device == name), reverse=True
        )
        said = (
            ", ".join(f"{other if other != name else 'its turn'} {seconds(s)}" for s, other in longest)
            or "nobody"
        )
        rows.append(
            (name, seconds(busy), f"{busy / timeline.makespan:.0%}" if timeline.makespan else "-", said)
        )
    parts.append(table(rows, right=(1, 2)))
    if plan.positions > 1:
        links = [("from", "to", "latency", "bandwidth", "a micro-batch's message")]
        for number, stage in enumerate(plan.stages[:-1]):
            src, dst = (plan.ranks[0][plan.position(n)] for n in (number, number + 1))
            link = plan.hosts.link(src, dst)
            row = (src, dst, f"{link.latency_s * 1e6:.1f} µs", f"{size(link.bytes_per_s)}/s",
                   f"{size(stage.bytes_out)} in {seconds(link.seconds(stage.bytes_out))}")  # fmt: skip
            if row not in links:
                links.append(row)
        parts.append(table(links, right=(2, 3)))
    if plan.sharded:
        grid = grid_of(plan)
        shards = [("stage", "groups", "state of a replica", "of a process", "gathers and scatters of a step")]
        for number, stage in enumerate(plan.stages):
            each = grid.gather_s(plan.position(number), stage.state_bytes, len(stage.groups))
            shards.append((
                str(number), str(len(stage.groups)), size(stage.state_bytes), size(stage.state_bytes / plan.replicas),
                seconds(GATHERS * plan.micro_batches * each),
            ))  # fmt: skip
        parts.append(table(shards, right=(1, 2, 3, 4)))
    if plan.tried:
        others = [("also tried", "predicted", "÷ chosen")]
        for what, step_s in plan.tried:
            shown = (
                ("does not fit", "") if step_s is None else (seconds(step_s), f"{step_s / plan.step_s:.2f}")
            )
            others.append((what, *shown))
        parts.append(table(others, right=(1, 2)))
    return "\n\n".join(parts)
