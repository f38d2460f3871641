"""A forecast for a model on declared hosts, captured without memory and priced from datasheets."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import nn

from ..capture.ahead import ahead_for_rows, shortened
from ..costs.roofline import device_seconds, main_dtype
from ..errors import AutoparError, CaptureError, DeviceError, PlanError
from ..ir.device import Device
from ..ir.distribution import SCHEDULES, Distribution
from ..ir.graph import Graph, Task
from ..ir.hardware import COMPUTE_REACHED
from ..ir.hosts import Hosts, compute_devices
from ..planner.pipelines import Chain, Process, RowCost, distribution, processes
from ..planner.pipelines.chain import recomputed, tensor_parallel
from ..planner.pipelines.from_graph import chain_of
from ..planner.pipelines.grid import inside
from ..system.text import seconds

OPTIMIZERS = {"none": 0.0, "sgd": 0.0, "momentum": 1.0, "adam": 2.0}
"""Tensors of optimizer state for each parameter, by the optimizer's name."""
SHORT = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64"}
"""Dtypes by their short names."""
MASTER = ("bfloat16", "float16")
"""Dtypes of weights for which an optimizer keeps its state, and a copy of the weights, in float32."""


@dataclass(frozen=True, slots=True)
class _Model:
    """A captured model, ready to be planned for any hosts.

    graph: from a number of rows, the graph of a micro-batch, with lists of equal layers cut to three; `repeats`: their
    real lengths.
    row_flops: FLOPs of one row, on average over the rows of the example.
    tokens: tokens in one row if the first input is a matrix of ids, else 0.
    """

    graph: Callable[[int], Graph]
    repeats: dict[str, int]
    row_flops: float
    tokens: int
    parameters: int
    dtype: str

    def flops(self, rows: int) -> Counter[str]:
        """Return the FLOPs of a micro-batch by the dtype that they are computed in."""
        return _flops(self.graph(rows), self.repeats)


def captured(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    train: bool = True,
    dtype: torch.dtype | None = None,
) -> _Model:
    """Capture a model on the meta device and the arguments of one call, with any number of rows.

    The first axis of the first tensor is the batch. `dtype`: that of floating-point arguments, if not their own.
    Raises CaptureError if the model is not one graph.
    """
    kwargs = kwargs or {}
    tensors = (arg for arg in (*args, *kwargs.values()) if isinstance(arg, torch.Tensor))
    batch = next((tensor for tensor in tensors if tensor.dim()), None)
    if batch is None:
        raise CaptureError("no argument is a tensor with a batch as its first axis; give one, such as (x,)")
    rows = int(batch.shape[0])
    if not rows:
        raise CaptureError("the example has no rows; give inputs with one row or more")
    parameters = [*model.parameters()]
    repeats: dict[str, int] = {}
    with torch.set_grad_enabled(train):
        try:
            with shortened(model) as repeats:
                graph = ahead_for_rows(model, args, kwargs, rows, dtype)
        except (CaptureError, IndexError):
            if not repeats:
                raise
            # The model indexes its layers, and fails with shortened lists.
            graph, repeats = ahead_for_rows(model, args, kwargs, rows, dtype), {}
    graph_of = cache(graph)
    name = str(parameters[0].dtype if parameters else torch.float32).removeprefix("torch.")
    tokens = batch.shape[1] if not batch.is_floating_point() and batch.dim() == 2 else 0
    row_flops = _flops(graph_of(rows), repeats).total() / rows
    return _Model(graph_of, repeats, row_flops, int(tokens), sum(p.numel() for p in parameters), name)


def _flops(graph: Graph, repeats: Mapping[str, int]) -> Counter[str]:
    flops_of = Counter[str]()
    for task in graph.tasks:
        path = next((path for path in repeats if f"{task.module}.".startswith(f"{path}.1.")), "")
        flops_of[main_dtype(graph, task)] += task.flops * (repeats[path] - 2 if path else 1)
    return flops_of


@dataclass(frozen=True, slots=True)
class _Forecast:
    """The best plan found for a model on hosts.

    step_s: seconds for `batch` rows.
    tensor: number of accelerators that share each layer.
    recompute: number of layers whose activations are recomputed in the backward.
    mfu: the model's FLOPs as a share of the chips' datasheet FLOPs.
    efficiency: the pace relative to as many accelerators that each run the whole model alone, memory aside.
    """

    plan: Distribution
    tensor: int
    recompute: bool
    accelerators: int
    used: int
    mfu: float
    efficiency: float
    tflops: float
    tokens_per_s: float
    planning_s: float

    @property
    def step_s(self) -> float:
        """Predicted seconds of a step."""
        return self.plan.step_s

    @property
    def rows_per_s(self) -> float:
        """Samples per second."""
        return self.plan.batch / self.plan.step_s


def forecast(  # noqa: PLR0913 - what users may fix
    model: _Model,
    hosts: Hosts,
    batch: int,
    *,
    optimizer: str = "adam",
    tensor: int | None = None,
    recompute: bool | None = None,
    objective: str = "training",
    schedules: Sequence[str] = SCHEDULES,
    rows: int | None = None,
    replicas: int | None = None,
    stages: int | None = None,
    shard_replicas: bool | str = False,
) -> _Forecast:
    """Return the best plan found for a captured model on declared hosts, with one pipeline process for each
    accelerator.

    Besides what `distribution` chooses, this chooses how many accelerators of a host share each layer
    (`tensor`) and whether layers are recomputed in the backward (`recompute`). `optimizer` is one of
    `OPTIMIZERS`; for 16-bit weights its state is in float32. `rows` is the size of a micro-batch.
    `shard_replicas` is as in `autopar.distribute`. Raises PlanError, MemoryCapError or DeviceError.
    """
    if optimizer not in OPTIMIZERS:
        raise PlanError(f"optimizer={optimizer!r} is not known; give one of {', '.join(OPTIMIZERS)}")
    begin = time.perf_counter()
    trained = objective == "training"
    state_tensors = OPTIMIZERS[optimizer]
    state_tensors = (
        2.0 * (state_tensors + 1) if model.dtype in MASTER and optimizer != "none" else state_tensors
    )
    best: tuple[Distribution, int, bool] | None = None
    refused: list[AutoparError] = []
    most = max(len(compute_devices(host.machine)) for host in hosts.hosts)
    for group in [tensor] if tensor else [1 << power for power in range(most.bit_length())]:
        try:
            priced, members = _priced(model, hosts, group)
        except DeviceError as error:
            refused.append(error)
            continue
        for again in (recompute,) if recompute is not None else ((False, True) if trained else (False,)):
            if again and not model.repeats:
                continue
            chain = (lambda rows, priced=priced: recomputed(priced(rows))) if again else priced
            try:
                plan = distribution(
                    chain, hosts, batch, members=members, objective=objective,
                    schedules=schedules, rows=rows, replicas=replicas, stages=stages, optimizer_bytes=state_tensors,
                    shard_replicas=shard_replicas, below=best[0].step_s if best else None,
                )  # fmt: skip
            except PlanError as error:
                refused.append(error)
                continue
            if plan and (best is None or plan.step_s < best[0].step_s):
                best = plan, group, again
    if best is None:
        raise refused[-1]
    return _figures(model, hosts, best, time.perf_counter() - begin)


def _priced(model: _Model, hosts: Hosts, group: int) -> tuple[Callable[[int], Chain], tuple[Process, ...]]:
    """Return a function from the rows of a micro-batch to the chain that they are priced for, by groups of `group`
    accelerators, and the groups."""
    members = processes(hosts, "accelerator", group)
    first = {process.kind: process for process in reversed(members)}
    devices = [_device(hosts, process) for process in first.values()]

    @cache
    def chain(rows: int) -> Chain:
        graph = model.graph(rows)

        def price(task: Task) -> tuple[RowCost, ...]:
            each = (device_seconds(graph, task, device) for device in devices)
            return tuple(RowCost(launch_s, busy_s / rows) for launch_s, busy_s in each)

        whole = chain_of(graph, [*first], price, rows, model.repeats)
        if group == 1:
            return whole
        return tensor_parallel(whole, group, inside(hosts.host[members[0].host], *members[0].devices[:2]))

    return chain, members


def _device(hosts: Hosts, process: Process) -> Device:
    return hosts.host[process.host].machine.device[process.devices[0]]


def _figures(
    model: _Model, hosts: Hosts, best: tuple[Distribution, int, bool], planning_s: float
) -> _Forecast:
    plan, group, again = best
    used = plan.replicas * plan.positions * group
    rows = plan.batch // plan.replicas // plan.micro_batches
    priced, members = _priced(model, hosts, 1)
    chain, devices = priced(rows), [_device(hosts, process) for process in members]
    flops = {dtype: count * plan.batch / rows for dtype, count in model.flops(rows).items()}

    def share(of: int) -> float:
        """Return the FLOPs as a share of the datasheet FLOPs of the fastest accelerators, `of` in number."""
        least_s = 0.0
        for dtype, count in flops.items():
            rates = sorted((device.flops_per_s(dtype) for device in devices), reverse=True)
            least_s += count / (sum(rates[:of]) / COMPUTE_REACHED)
        return least_s / plan.step_s

    if share(used) > 1:
        raise PlanError(
            f"a step of {seconds(plan.step_s)} is {share(used):.0%} of the peak of {used} accelerators, which cannot "
            "be: this is a bug of autopar; please report the model, the hosts and the batch"
        )
    words = ("forward", "backward") if plan.trained else ("forward",)
    pace = 0.0
    for kind, count in Counter(process.kind for process in members).items():
        alone_s = sum(float(chain.upto(word, chain.kind(kind), rows)[-1]) for word in words)
        pace += count / (plan.batch / rows * alone_s)
    return _Forecast(
        plan, group, again, len(members), used, share(len(members)), 1 / (plan.step_s * pace),
        sum(flops.values()) / plan.step_s / used / 1e12, model.tokens * plan.batch / plan.step_s, planning_s,
    )  # fmt: skip


def on_meta(model: nn.Module, dtype: str | None) -> nn.Module:
    """Return the model on the meta device, its floating-point parameters and buffers cast to `dtype` if given."""
    there = model.to("meta")
    if dtype is None:
        return there
    kind = getattr(torch, SHORT.get(dtype, dtype), None)
    if not isinstance(kind, torch.dtype) or not kind.is_floating_point:
        raise PlanError(
            f"dtype={dtype!r} is not a floating dtype of torch; give bfloat16, float16 or float32"
        )
    return there.to(kind)
