"""Cost of collectives over the ranks of one tensor-parallel group, and its link, declared or measured."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from ...costs.calibrate import durations
from ...errors import DeviceError
from ...ir.device import Link
from ...ir.hosts import Host, Hosts, compute_devices
from ...planner.pipelines.grid import all_reduce_s

_SMALL, _LARGE = 16, 1 << 20
"""Features per rank of the layers whose dispatch is timed, and elements of the message whose bandwidth is measured."""
_TIMES = 9


def all_gather_s(link: Link, ranks: int, nbytes: float) -> float:
    """Return the seconds of a ring all-gather after which each rank has all `nbytes`, an equal share of them from
    each."""
    return (ranks - 1) * (link.latency_s + nbytes / ranks / link.bytes_per_s)


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
    return max(ways, key=lambda link: link.seconds(_LARGE))


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
    message = torch.zeros(_LARGE, device=mesh.device_type)
    short = _median(lambda: dist.all_reduce(message[:1], group=group), mesh)
    long = _median(lambda: dist.all_reduce(message, group=group), mesh)
    latency_s = short / all_reduce_s(ranks, 1.0, 1.0, float("inf"))
    once = all_reduce_s(ranks, message.nbytes, 0.0, 1.0)
    return Link("rank", "rank", latency_s, once / max(1e-9, long - short), None)


def measured_dispatch(mesh: DeviceMesh) -> float:
    """Return the host's seconds for DTensor's dispatch of a split layer, spent in the forward and again in
    the backward, in addition to the plain layer and its collective. All ranks must call it."""
    device, group, features = mesh.device_type, mesh.get_group(), mesh.size() * _SMALL
    with torch.random.fork_rng(devices=[]):
        plain, pair = (
            nn.Sequential(nn.Linear(features, features), nn.ReLU(), nn.Linear(features, features)).to(device)
            for _ in range(2)
        )
    parallelize_module(pair, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    given = torch.ones(_SMALL, features, device=device, requires_grad=True)
    message = torch.zeros(_SMALL, features, device=device)

    def step(model: nn.Module) -> None:
        with torch.enable_grad():
            model(given).sum().backward()

    alone, split = _median(lambda: step(plain), mesh), _median(lambda: step(pair), mesh)
    sums = 2 * _median(lambda: dist.all_reduce(message, group=group), mesh)
    return max(0.0, split - alone - sums) / 4


def _median(call: Callable[[], object], mesh: DeviceMesh) -> float:
    return statistics.median(durations(call, mesh.device_type, _TIMES + 1)[1:])
