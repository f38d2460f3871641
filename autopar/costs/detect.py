"""Detection of this machine: its devices and links with their rates, the names of a list of devices; and how slow a
declared clock must run for this machine to keep up with the chips that it stands in for."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import torch

from ..errors import DeviceError
from ..ir.device import HANDOFF_S, Device, Link, kind_of
from ..ir.machine import Machine
from ..ir.plan import Plan
from ..system import cache
from ..system.process import cores
from . import calibrate as probe
from . import scales
from .measure import chip
from .probes import scaled
from .work import main_dtype, touched

log = logging.getLogger("autopar")

EMULATED_BYTES = 16 << 30
"""Memory account of an emulated device: that of a small real one."""
SHORTEST_S = 5e-3
"""The median run should last this long: sleeping to the millisecond is then well within 1 %."""
MARGIN = 2.0
"""Safety factor: real computations may take so many times their estimate. This machine is seldom ours alone."""
NOTICEABLE = 0.001
"""Clusters and copies below this share of the makespan decide nothing about the clock."""


def detect(devices: Sequence[str | Device]) -> Machine:
    """The machine made of these devices.

    `"cpu"` is one queue with all intra-op threads of this process, `"cpu*2"` two with half of them each;
    `"cuda:1"` (or any type of `torch.accelerator`) a real accelerator, `"cuda"` the current one as in torch, `"auto"`
    the CPU and every accelerator that is here, of which processes that torchrun has started each have a share;
    `"emulated:0"` one stood in for by a
    worker thread on the real clock. Emulated devices share the cores out among themselves; a CPU beside them
    keeps all threads, for a plan on the CPU alone to be what it would be without them: predictions for a plan
    that has the CPU and its stand-ins at work at once therefore promise more than the cores can give, and
    only a declared clock (`Machine.emulate`) gives figures that mean something. A `Device` stands for itself,
    at its own figures. Rates and links are measured the first time and kept (`cache`). Raises DeviceError for
    what does not exist, is listed twice, or is no device name.
    """
    if isinstance(devices, (str, Device)):
        raise DeviceError(f"devices is a list of names, not {devices!r}; write [{str(devices)!r}]")
    if not isinstance(devices, Iterable):
        raise DeviceError(f"devices={devices!r} names no device; write a list of those here: {_here()}")
    given = [one for name in devices for one in (_auto() if name == "auto" else (name,))]
    wanted = [_present(name if isinstance(name, Device) else _parse(str(name))) for name in given]
    Machine(tuple(wanted)).check()
    for device in wanted:
        if device.traits.host and device.lanes > cores():
            log.warning("%s*%d is more lanes than the %d cores here, which they take turns on: slower than one lane",
                        device.name, device.lanes, cores())  # fmt: skip
    measured = Measurements([device.name for device in wanted if device.torch_type != "cpu"])
    found = []
    for asked, device in zip(given, wanted):
        if isinstance(asked, Device):
            found.append(device)
        else:
            alike = sum(other.kind == device.kind for other in wanted)
            found.append(resolve_name(device.traits.figures)(device, alike, measured))
    machine = Machine(tuple(found), _links(found, measured)).check()
    measured.keep()
    return machine


def _auto() -> tuple[str, ...]:
    """The CPU, and the accelerators that are this process's: of two that torchrun has started each has half of them, of
    more processes than accelerators several have the same one."""
    names = accelerators()
    count, rank = (int(os.environ.get(name, 0)) for name in ("LOCAL_WORLD_SIZE", "LOCAL_RANK"))
    if count > 1 and names:
        each = max(1, len(names) // count)
        first = rank * each % len(names)
        names = names[first : first + each]
    return "cpu", *names


def accelerators() -> tuple[str, ...]:
    """Names of the real accelerators: `cuda:0`, `cuda:1`, and so on."""
    if not torch.accelerator.is_available():
        return ()
    kind = torch.accelerator.current_accelerator()
    return tuple(
        f"{kind.type if kind else 'cuda'}:{index}" for index in range(torch.accelerator.device_count())
    )


def present(machine: Machine) -> bool:
    """True if every device of a machine is here and its figures are those that it was found to have."""
    real = accelerators() if any(device.torch_type != "cpu" for device in machine.devices) else ()
    found = all(
        device.scales if device.torch_type == "cpu" else device.name in real for device in machine.devices
    )
    return found and not (machine.absent or machine.emulated)


def _here() -> str:
    """The names that a list of devices may have here."""
    return ", ".join(f'"{name}"' for name in ("cpu", *accelerators(), "emulated:0", "auto"))


def _parse(name: str) -> Device:
    match = re.fullmatch(r"cpu(?::0)?(?:\*(\d+))?", name)
    if match:
        return Device("cpu", "cpu", lanes=int(match[1] or 1))
    match = re.fullmatch(r"([a-z]+)(?::(\d+))?", name)
    if not match:
        raise DeviceError(f'{name!r} is no device name; write "cpu", "cpu*2", "cuda:0" or "emulated:0"')
    kind, index = match[1], match[2]
    if index is None and kind in ("gpu", "accelerator"):
        raise DeviceError(f"{name!r} is no device name; those here are {_here()}")
    if index is None and kind_of(kind).torch_type == "cpu":
        raise DeviceError(f"device {name!r} has no index; write {kind + ':0'!r}")
    if index is None:
        index = current(kind)
    return Device(f"{kind}:{int(index)}", kind)


def current(kind: str) -> int:
    """The index of the accelerator that torch means by a type alone; 0 where there is none of the type."""
    here = torch.accelerator.current_accelerator(check_available=True)
    return torch.accelerator.current_device_index() if here is not None and here.type == kind else 0


def _present(device: Device) -> Device:
    """The device itself, or DeviceError when it is an accelerator that this machine has not."""
    if device.torch_type == "cpu" or device.name in accelerators():
        return device
    there = ", ".join(["cpu", *accelerators()])
    index = device.name.partition(":")[2] or "0"
    raise DeviceError(
        f"there is no device {device.name!r} here; there are {there}. To plan for hardware you do not have, "
        'give autopar.plan a Machine.declare("cpu", "h100-sxm"); '
        f'to run without it, put "emulated:{index}" in the list'
    )


class Measurements:
    """Figures of this machine by name, from the cache or measured when first asked for."""

    def __init__(self, names: Sequence[str]) -> None:
        titles = [torch.accelerator.current_accelerator(), *(_title(name) for name in names)] if names else []
        self.path = cache.file_for("machine", [torch.__version__, *names, *titles])
        self.entries = cache.load(self.path)
        self.new = False

    def get(self, name: str, measure: Callable[..., dict[str, float]], *args: Any) -> dict[str, float]:
        """The figures called `name`, in seconds, bytes and FLOP/s, else those of `measure(*args)`."""
        kept = self.entries.get(name)
        if isinstance(kept, dict) and kept and all(map(cache.figure, kept.values())):
            return kept
        start = time.perf_counter()
        figures = measure(*args)
        log.info("measured %s in %.0f ms", name, (time.perf_counter() - start) * 1e3)
        self.entries[name] = figures
        self.new = True
        return figures

    def keep(self) -> None:
        """Write what is new to the cache."""
        if self.new:
            cache.store(self.path, self.entries)


def _rated(device: Device, figures: dict[str, float]) -> Device:
    flops = tuple((name, rate) for name, rate in figures.items() if name not in ("bytes_per_s", "launch_s"))
    return replace(device, flops=flops, bytes_per_s=figures["bytes_per_s"], launch_s=figures["launch_s"])


def host(device: Device, _: int, measured: Measurements) -> Device:
    """The CPU of this machine, its cores shared out among its lanes."""
    return replace(_on_cores(device, device.lanes, measured), memory_bytes=_host_memory())


def stand_in(device: Device, alike: int, measured: Measurements) -> Device:
    """A worker thread that is one of `alike` on the cores of this machine."""
    found = _on_cores(device, alike, measured)
    return replace(found, chip="a worker thread of the CPU", memory_bytes=EMULATED_BYTES)


def accelerator(device: Device, _: int, measured: Measurements) -> Device:
    """An accelerator of this machine."""
    figures = measured.get(device.name, probe.rates, device.name, torch.get_num_threads())
    rated = replace(_rated(device, figures), chip=_title(device.name), memory_bytes=_memory(device.name))
    return replace(rated, scales=scales.kept(chip(rated)))


def _on_cores(device: Device, lanes: int, measured: Measurements) -> Device:
    """One of `lanes` on the cores: none is given more than its share of what all cores together do."""
    total = torch.get_num_threads()
    count = max(1, total // lanes)
    figures = measured.get(f"cpu, {count} threads", probe.rates, "cpu", count)
    if lanes > 1:
        whole = measured.get(f"cpu, {total} threads", probe.rates, "cpu", total)
        shared = {name: min(rate, whole.get(name, rate) / lanes) for name, rate in figures.items()}
        figures = {**shared, "launch_s": figures["launch_s"]}
    rated = replace(_rated(device, figures), threads=count, chip=cache.processor())
    return replace(rated, scales=scaled(rated))


def _title(name: str) -> str:
    """The chip of an accelerator, its type where its module does not tell."""
    kind = torch.device(name).type
    told = getattr(torch.get_device_module(kind), "get_device_name", None)
    return str(told(name)) if told else kind


def _memory(name: str) -> int | None:
    """Bytes of an accelerator; None, which is no limit, where its module does not tell."""
    module = torch.get_device_module(torch.device(name).type)
    if hasattr(module, "get_device_properties"):
        found = getattr(module.get_device_properties(name), "total_memory", None)
        if found:
            return int(found)
    if hasattr(module, "mem_get_info"):
        return int(module.mem_get_info(name)[1])
    if hasattr(module, "recommended_max_memory"):  # mps, which has one device
        return int(module.recommended_max_memory())
    return None


def _host_memory() -> int | None:
    """Bytes of host memory this process may use: what is fitted, or the limit of its container."""
    try:
        fitted = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
    try:
        return min(fitted, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):
        return fitted


def _links(devices: Sequence[Device], measured: Measurements) -> tuple[Link, ...]:
    """A link each way between any two devices."""
    links = []
    for src, dst in permutations(devices, 2):
        own = src.traits.link or dst.traits.link
        links.append((resolve_name(own) if own else _link)(src, dst, measured))
    return tuple(links)


def _link(src: Device, dst: Device, measured: Measurements) -> Link:
    """A link as fast as torch copies. Copies within host memory share one wire, the memory itself; each accelerator's
    way in and way out are wires of their own."""
    real = [device.name for device in (src, dst) if device.torch_type != "cpu"]
    if not real:
        figures, wire = measured.get("memcpy", probe.memcpy), "host memory"
    else:
        ends = [end.name if end.name in real else "cpu" for end in (src, dst)]
        figures = measured.get(f"{ends[0]} to {ends[1]}", probe.link, *ends)
        wire = f"{src.name} out" if src.name in real else f"{dst.name} in"
    return Link(src.name, dst.name, figures["latency_s"] + 2 * HANDOFF_S, figures["bytes_per_s"], wire)


def slow_down_for(plan: Plan, stand_in: Machine) -> float:
    """The smallest slow-down S, at least 1, at which no step of the plan is expected to be late.

    `stand_in` is the real machine, whose host computes for all lanes the plan uses at once. S is the largest
    of real seconds × `MARGIN` ÷ modelled seconds over runs and copies of a noticeable share of the makespan,
    and what makes the median noticeable run last `SHORTEST_S`. Linear in tasks.
    """
    graph, costed, machine = plan.costed.graph, plan.costed, plan.costed.machine
    real = stand_in.device[stand_in.host]
    lanes = len({placed.lane for placed in plan.placed})
    floor = NOTICEABLE * plan.makespan
    factors, lasting = [1.0], []
    for placed in plan.placed:
        modelled = costed.seconds(placed.cluster, placed.device) or 0.0
        if modelled <= 0 or modelled < floor:
            continue
        share = _share_of(machine.device[placed.device], real, lanes)
        tasks = (graph.task[name] for name in costed.cluster[placed.cluster].tasks)
        spent = sum(
            share
            * max(t.flops / real.flops_per_s(main_dtype(graph, t)), touched(graph, t) / real.bytes_per_s)
            + real.launch_s
            + lanes * real.dispatch_s
            for t in tasks
        )
        factors.append(MARGIN * spent / modelled)
        lasting.append(modelled)
    for transfer in plan.transfers:
        modelled = machine.link[transfer.src, transfer.dst].seconds(transfer.bytes)
        if modelled >= floor and modelled > 0:
            # A copy in memory reads and writes each byte, beside every lane that computes.
            factors.append(MARGIN * 2 * transfer.bytes * (lanes + 1) / real.bytes_per_s / modelled)
    if lasting:
        factors.append(SHORTEST_S / sorted(lasting)[len(lasting) // 2])
    return max(factors)


def with_slow_down(plan: Plan) -> Plan:
    """The plan with its machine's slow-down chosen, unless the user gave one or its clock is real."""
    machine = plan.costed.machine
    if machine.clock != "declared" or machine.slow_down > 0:
        return plan
    return slowed(plan, slow_down_for(plan, detect(["cpu"])))


def slowed(plan: Plan, slow_down: float) -> Plan:
    """The plan on a declared clock that runs `slow_down` times slower than the chips, rounded up to two digits."""
    machine, chosen = plan.costed.machine, _round_up(slow_down)
    if machine.clock != "declared" or machine.slow_down == chosen:
        return plan
    return replace(plan, costed=replace(plan.costed, machine=replace(machine, slow_down=chosen)))


def _share_of(device: Device, real: Device, lanes: int) -> float:
    """The time of a lane of `device` ÷ that of the whole real device, while `lanes` compute at once."""
    return max(lanes, real.threads * real.lanes / device.threads)


def _round_up(value: float) -> float:
    digits = 10.0 ** (len(str(int(value))) - 2)
    scaled = value / digits
    return (int(scaled) + (scaled > int(scaled))) * digits
