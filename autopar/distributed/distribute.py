"""`distribute`: a model over the processes of a job, planned from measurements of each of them."""

from __future__ import annotations

import functools
import logging
import os
import socket
import weakref
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree

from ..api import compile, prepared
from ..costs.calibrate import best
from ..errors import DeviceError, PlanError
from ..ir.device import Device, Link
from ..ir.distribution import SCHEDULES, Distribution
from ..ir.hosts import Host, Hosts, compute_devices
from ..ir.machine import Machine
from ..planner.pipelines import Chain, RowCost, Unit, distribution, processes
from ..training.messages import agree, from_first, gather, on_every_rank, share_weights
from .agreement import agreed, described
from .pipeline.job import Distributed
from .pipeline.profile import BACKWARD, FORWARD, Times, added_bytes_per_s, profile, share
from .pipeline.units import Units, bound, rows_of, units

log = logging.getLogger("autopar")

FEW, MANY = 32, 2
"""Each unit is timed on batch / `FEW` rows (at least 2) and on batch / `MANY` rows, for a linear fit. Most
micro-batches have a size in between."""
_LANES = (
    "sharded replicas need one lane to each process, as FSDP2 frees and fills weights that autopar.compile has copied "
    'to other lanes; give each process one device, such as devices=["cpu"], or shard_replicas=False'
)


_trained_state: weakref.WeakKeyDictionary[nn.Module, dict[str, tuple[int, torch.Tensor, int]]] = (
    weakref.WeakKeyDictionary()
)
"""Of each model that a job has, by path: the rank that updates the tensor, the tensor here, and its version then."""


def distribute(  # noqa: PLR0913 - what users may fix
    model: nn.Module,
    hosts: Hosts | str = "auto",
    *,
    example_inputs: Sequence[Any],
    example_kwargs: Mapping[str, Any] | None = None,
    loss: Callable[..., torch.Tensor] | None = None,
    devices: str | Sequence[str | Device] | Machine = "auto",
    group: dist.ProcessGroup | None = None,
    schedule: str = "auto",
    stages: int | None = None,
    replicas: int | None = None,
    micro_batches: int | None = None,
    optimizer_bytes: float = 2.0,
    shard_replicas: bool | Literal["auto"] = "auto",
    plan: Distribution | str | PathLike[str] | None = None,
) -> Distributed:
    """Place a model on all processes of a job as pipeline stages and replicas, run by `torch.distributed.pipelining`.

    Example::

        torch.distributed.init_process_group()                      # under torchrun
        job = autopar.distribute(model, example_inputs=(x,), loss=criterion)
        optimizer = torch.optim.SGD(job.parameters(), lr=0.1)
        for x, y in batches:                                        # the whole batch, in every process
            optimizer.zero_grad()
            loss = job.step(x, target=y)
            optimizer.step()

    model: an `nn.Module` that `torch.export` captures; every process gets the parameters and buffers of rank 0. If an
    earlier job had the model, each is that of the process that has trained it, unless rank 0 has written it since.
    hosts: "auto": the hosts as found, with measured links. `Hosts`, or a text such as "2 x cpu over
    ethernet-10", with one host for each process: the hosts to plan for instead.
    example_inputs, example_kwargs: one whole batch, of the size of every step.
    loss: `loss(outputs, *targets)`, a mean over rows; None: forward only, planned for the highest throughput.
    devices: of this process, as in `compile`. "auto": `cuda:LOCAL_RANK`, or the CPU. Several lanes: autopar
    places the stage on all of them. Several devices: stages are planned with the speed-up that autopar
    predicts for the whole model over the first device, which holds the weights; memory caps are added up.
    group: the processes of the job; None: all.
    schedule: "auto", "gpipe", "1f1b", "interleaved" or "zero-bubble".
    stages, replicas, micro_batches: fixed numbers; those left open are chosen by simulation.
    optimizer_bytes: bytes of optimizer state for each byte of weights.
    shard_replicas: shard parameters, gradients and optimizer state over replicas, by FSDP2; "auto": if they do not fit.
    plan: an existing `Distribution` or its file, used as it is.

    Raises in every process: DeviceError if no process group is initialized, CaptureError, PlanError or MemoryCapError.
    """
    device, machine = _device_and_machine(devices)
    schedules = _schedules(schedule)
    several = max(gather(sum(len(each.compute_lanes) for each in machine.devices), group)) > 1
    if shard_replicas is True and several:
        raise PlanError(_LANES)
    batch = bound(model, example_inputs, example_kwargs or {})
    agree(lambda: _facts(model, rows_of(batch), loss is not None, plan is not None), group)
    share_weights(_state(model).items(), group, device, from_first(lambda: _sources(model, group), group))
    known = _hosts(hosts, machine, group, device)
    capture = functools.cache(lambda rows: units(model, *_sliced(batch, rows)))
    chain = _chain(capture, batch, known, group, machine, loss is not None) if plan is None else None

    def make() -> Distribution:
        if chain is None:
            return _loaded(plan)
        whole = shard_replicas == "auto" and (several or loss is None)
        return distribution(
            chain,
            known,
            rows_of(batch),
            objective="training" if loss is not None else "throughput",
            schedules=schedules,
            stages=stages,
            replicas=replicas,
            micro_batches=micro_batches,
            optimizer_bytes=optimizer_bytes,
            shard_replicas=False if whole else shard_replicas,
        )

    chosen = agreed(make, None, group)
    if chosen.sharded and several:
        raise PlanError(_LANES)
    return _job(capture, chosen, loss, group, device, machine)


def _loaded(plan: Any) -> Distribution:
    return plan if isinstance(plan, Distribution) else Distribution.load(plan)


def _job(
    capture: Callable[[int], Units],
    plan: Distribution,
    loss: Callable[..., torch.Tensor] | None,
    group: dist.ProcessGroup | None,
    device: torch.device,
    machine: Machine,
) -> Distributed:
    """Return the job of a plan: the stages of this process, each on all its lanes."""
    rows = plan.batch // plan.replicas // plan.micro_batches
    captured = capture(rows)
    if captured.rows != rows:
        raise PlanError(
            f"the plan has micro-batches of {rows} rows, and example_inputs only {captured.rows}; give a batch of "
            f"{plan.batch} rows, for which the plan was made"
        )
    if captured.names != plan.units:
        raise PlanError(f"the plan is of {plan.model} with {len(plan.units)} units, not of this model")
    log.info("%s", plan)
    lanes = sum(len(each.compute_lanes) for each in machine.devices)

    def place(stage: nn.Module) -> nn.Module:
        return compile(stage, machine) if lanes > 1 else stage  # type: ignore[return-value]

    job = Distributed(captured, plan, loss, group, device, place)
    _trained_state[captured.model] = {
        path: (job.holders[path], tensor, _version(tensor))
        for path, tensor in _state(captured.model).items()
        if path in job.holders
    }
    return job


def _state(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the parameters and buffers of a model by each of their paths."""
    named = (model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False))
    return {path: tensor for each in named for path, tensor in each}


def _version(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


def _sources(model: nn.Module, group: dist.ProcessGroup | None) -> dict[str, int]:
    """Return the rank in the group of what another process than this one has updated in an earlier job of the model."""
    ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
    state, sources = _state(model), {}
    for path, (rank, tensor, version) in _trained_state.get(model, {}).items():
        if rank == dist.get_rank() or state.get(path) is not tensor or _version(tensor) != version:
            continue
        if rank not in ranks:
            raise PlanError(
                f"rank {rank} has {path} from an earlier job of this model, and is not in the group; give a group with "
                "this rank, or a new model, and load a checkpoint of the earlier job into it"
            )
        sources[path] = ranks.index(rank)
    return sources


def _schedules(named: str) -> tuple[str, ...]:
    """Return the schedules to choose from. Raises PlanError for an unknown one."""
    if named != "auto" and named not in SCHEDULES:
        raise PlanError(f"schedule={named!r} is not known; give auto or one of {', '.join(SCHEDULES)}")
    return tuple(SCHEDULES) if named == "auto" else (named,)


def _facts(model: nn.Module, rows: int, trained: bool, planned: bool) -> dict[str, Any]:
    """Return what all processes must give alike, by its name in errors. Raises PlanError if a parameter is already
    split over ranks."""
    split = next((path for path, tensor in model.named_parameters() if isinstance(tensor, DTensor)), None)
    if split:
        raise PlanError(
            f"{split} is a DTensor, split over ranks already, as by tensor_parallel, fully_shard or an earlier job; "
            "give the plain model, which distribute splits by itself (shard_replicas=True shards the replicas)"
        )
    return described(model) | {
        "the batch": f"{rows} rows",
        "a job for": "training" if trained else "serving",
        "a plan": "saved" if planned else "to be made",
    }


def _device_and_machine(devices: Any) -> tuple[torch.device, Machine]:
    """Return the torch device of this process's tensors, and its machine."""
    if not dist.is_available() or not dist.is_initialized():
        raise DeviceError(
            "no process group is initialized; call torch.distributed.init_process_group() first, and start the script "
            "with torchrun --nproc-per-node N"
        )
    if devices == "auto":
        local = int(os.environ.get("LOCAL_RANK", "0"))
        devices = [f"cuda:{local % torch.cuda.device_count()}"] if torch.cuda.is_available() else ["cpu"]
    machine = prepared(None, devices)[0]
    return _first(machine), machine


def _first(machine: Machine) -> torch.device:
    """Return the device that holds the tensors of a process."""
    return torch.device(machine.device[compute_devices(machine)[0]].torch_device)


def _hosts(
    hosts: Hosts | str, machine: Machine, group: dist.ProcessGroup | None, device: torch.device
) -> Hosts:
    count = dist.get_world_size(group)
    if isinstance(hosts, str) and hosts == "auto":
        return measured_hosts(machine, group, device)
    declared = Hosts.declare(hosts) if isinstance(hosts, str) else hosts.check()
    if len(declared.hosts) != count:
        raise PlanError(
            f"{len(declared.hosts)} hosts are declared, and the job has {count} processes; give one host to each, or "
            'hosts="auto"'
        )
    return declared


def _chain(
    capture: Callable[[int], Units],
    batch: tuple[tuple[Any, ...], dict[str, Any]],
    hosts: Hosts,
    group: dist.ProcessGroup | None,
    machine: Machine,
    trained: bool,
) -> Chain:
    """Return the units of a model, timed by all processes at the same time.

    capture: returns the units for a number of rows. Units are timed on the first device. Their seconds are
    then scaled to those that the planner predicts for the whole model on all devices.
    """
    rows, device = rows_of(batch), _first(machine)
    sizes = sorted({min(rows, max(2, rows // FEW)), max(1, rows // MANY)})
    captures: list[tuple[Units, list[Any]]] = []

    def names() -> dict[str, str]:
        for size in sizes:
            leaves = pytree.tree_leaves(_sliced(batch, size))
            there = [leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
            captures.append((capture(size), there))
        return {"units": " ".join(captures[-1][0].names)}

    agree(names, group)
    captured, inputs = captures[-1]
    # A capture of few rows may have other operators.
    captures = [(each, inputs_of) for each, inputs_of in captures if each.names == captured.names]
    sizes = [each.rows for each, _ in captures]
    times: list[list[Times]] = []

    def figures() -> Any:
        times.extend(profile(each, inputs_of, device, trained) for each, inputs_of in captures)
        part = share(captured, inputs, machine, trained)
        costs = [
            [_line(sizes, [each[at][way] * part for each in times]) for way in (FORWARD, BACKWARD)]
            for at in range(len(times[0]))
        ]
        return costs, added_bytes_per_s(device)

    figures_of = gather(on_every_rank(figures, group, PlanError, " could not measure the model"), group)
    by_name = {host.name: figures_of[at] for at, host in enumerate(hosts.hosts)}
    kinds = tuple(dict.fromkeys(process.kind for process in processes(hosts)))
    model = captured.model
    keys = {id(tensor): path for path, tensor in reversed([*model.named_parameters(remove_duplicate=False)])}
    chain_units = []
    for at, (name, (_, _, saved)) in enumerate(zip(captured.names, times[-1])):
        state = captured.state(captured.nodes[at])
        forward, backward = (
            tuple(RowCost(*by_name[kind][0][at][way]) for kind in kinds) for way in (FORWARD, BACKWARD)
        )
        weights = tuple((keys[id(tensor)], tensor.nbytes) for tensor in state if id(tensor) in keys)
        rest = sum(tensor.nbytes for tensor in state if id(tensor) not in keys)
        crossing = sum(node.meta["val"].nbytes for node in captured.crossing[at + 1])
        rows = captured.rows
        chain_units.append(Unit(name, forward, backward, weights, rest, saved / rows, crossing / rows))
    added = tuple(by_name[kind][1] for kind in kinds)
    return Chain(type(model).__name__, kinds, tuple(chain_units), added_bytes_per_s=added)


def _line(sizes: Sequence[int], seconds: Sequence[float]) -> tuple[float, float]:
    """Fit a line to seconds by number of rows; return (fixed seconds, seconds per row), neither negative."""
    slope = (seconds[-1] - seconds[0]) / (sizes[-1] - sizes[0]) if len(sizes) > 1 else seconds[0] / sizes[0]
    slope = min(max(0.0, slope), seconds[-1] / sizes[-1])
    return seconds[-1] - slope * sizes[-1], slope


def _sliced(batch: tuple[tuple[Any, ...], dict[str, Any]], rows: int) -> Any:
    """Return the first `rows` rows of a batch."""
    return pytree.tree_map_only(torch.Tensor, lambda leaf: leaf[:rows] if leaf.dim() else leaf, batch)


SMALL, LARGE = 8, 4 << 20
"""Bytes of the messages that measure latency and bandwidth."""
ROUNDS = {SMALL: 50, LARGE: 5}
"""Round trips for each message size; the fastest counts."""


def measured_hosts(machine: Machine, group: dist.ProcessGroup | None, device: torch.device) -> Hosts:
    """Return the processes of a group as hosts `rank 0`, `rank 1`, …, each with its own machine.

    The link from each process to the next is measured by messages of 8 bytes and 4 MiB, a few milliseconds for each
    pair. Other links are assumed to be as fast as those of their ends. All processes must call it.
    """
    count, rank = dist.get_world_size(group), dist.get_rank(group)
    # A single process sends nothing.
    seconds = [0.0, 1.0]
    for src in range(count if count > 1 else 0):
        dst = (src + 1) % count
        dist.barrier(group)
        if rank in (src, dst):
            trips = [_message_s(src, dst, nbytes, group, device) for nbytes in ROUNDS]
            seconds = trips if rank == src else seconds
    hosts_of = gather({"node": socket.gethostname(), "machine": machine, "seconds": seconds}, group)
    hosts, links = [], []
    for at, one in enumerate(hosts_of):
        small, large = one["seconds"]
        # If others disturbed the small messages, the large ones bound the latency and the rate.
        latency, rate = min(small, large), LARGE / max(large - small, large / 2)
        name, other = f"rank {at}", f"rank {(at + 1) % count}"
        hosts.append(Host(name, one["machine"], rate, latency, network=one["node"]))
        if count > 1:
            links.append(Link(name, other, latency, rate, f"{name} out"))
    return Hosts(tuple(hosts), tuple(links)).check()


def _message_s(
    src: int, dst: int, nbytes: int, group: dist.ProcessGroup | None, device: torch.device
) -> float:
    """Return the seconds of a message between two processes, half of a round trip. Both must call it."""
    rank, message = dist.get_rank(group), torch.zeros(nbytes, dtype=torch.uint8, device=device)

    def trip() -> None:
        for sender, other in ((src, dst), (dst, src)):
            if rank == sender:
                dist.send(message, group=group, group_dst=other)
            else:
                dist.recv(message, group=group, group_src=sender)

    return best(trip, str(device), ROUNDS[nbytes]) / 2
