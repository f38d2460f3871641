"""Detection of this machine's devices, links and rates; and the slow-down at which it can emulate declared chips."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from itertools import permutations
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, TypeAlias

import torch

from ..errors import DeviceError
from ..ir.device import HANDOFF_S, Device, Link, kind_of
from ..ir.machine import Machine
from ..ir.plan import Plan
from ..system import cache
from ..system.process import cores
from . import calibrate, scales
from .measure import chip, measure
from .roofline import CALL, main_dtype, touched

log = logging.getLogger("autopar")

Measured: TypeAlias = Callable[..., dict[str, float]]
"""`(name, measure, *args)`: the stored figures of that name, in seconds, bytes and FLOP/s; else those of
`measure(*args)`, which are then stored."""

EMULATED_BYTES = 16 << 30
"""Memory of an emulated device in bytes: that of a small real one."""
SHORTEST_S = 5e-3
"""Target duration of the median cluster in seconds: sleeping, precise to a millisecond, is then well within 1 %."""
MARGIN = 2.0
"""Safety factor: real computations may take this many times their estimate, since this machine is rarely idle."""
MOST_TIMES, QUICK_S = 3, 0.3
"""Processes that measure an accelerator, which others may keep busy; one if that takes over `QUICK_S`."""
_TIMES = "times"
"""Key, among stored figures, of the number of processes that have measured them."""
_fresh: set[tuple[Path, str]] = set()
"""Measurements made by this process: cache file and name of each."""
BUDGET_S = 0.3
"""Seconds in which the operations of `scales` are measured on a new CPU."""
CALL_SCALE = (2e-5, 1.3)
"""Launch in seconds and factor of calls if none was recorded: the median of thirty ordinary models."""
NOTICEABLE = 0.001
"""Share of the makespan below which clusters and copies do not affect the slow-down."""


def detect(devices: Sequence[str | Device]) -> Machine:
    """Return the machine with these devices.

    `"cpu"` is one queue with all intra-op threads of this process, `"cpu*2"` two with half of them each; `"cuda:1"`
    (or any type of `torch.accelerator`) a real accelerator, `"cuda"` the current one as in torch; `"auto"` the CPU and
    all accelerators, which processes started by torchrun share; `"emulated:0"` a stand-in worker thread on the real
    clock. Emulated devices share the cores. A CPU beside them keeps all threads, as without them. Predictions
    with the CPU and its stand-ins busy at once are therefore too optimistic; only a declared clock
    (`Machine.emulate`) gives meaningful figures. A `Device` is used as it is, with its own figures.
    Rates and links are measured once and stored (`cache`). Raises DeviceError for a device that does not exist or is
    listed twice, or an invalid name.
    """
    names, wanted = parse_devices(devices)
    for device in wanted:
        if device.traits.host and device.lanes > cores():
            log.warning("%s*%d is more lanes than the %d cores here, which they take turns on: slower than one lane",
                        device.name, device.lanes, cores())  # fmt: skip
    measured = _measured([device.name for device in wanted if device.torch_type != "cpu"])
    rated = []
    for one, device in zip(names, wanted):
        if isinstance(one, Device):
            rated.append(device)
        else:
            alike = sum(other.kind == device.kind for other in wanted)
            rated.append(resolve_name(device.traits.figures)(device, alike, measured))
    return Machine(tuple(rated), _links(rated, measured)).check()


def one_lane(machine: Machine) -> Machine | None:
    """Return a machine that is present with the CPU as one lane of all threads instead of several lanes of fewer; None
    if it has no such CPU, or is not here."""
    cpu = machine.device.get(machine.host)
    if cpu is None or cpu.lanes == 1 or cpu.torch_type != "cpu" or not present(machine):
        return None
    (whole,) = detect([cpu.kind]).devices
    if whole.threads <= cpu.threads:
        return None
    whole = replace(whole, memory_bytes=cpu.memory_bytes)
    return replace(machine, devices=tuple(whole if device is cpu else device for device in machine.devices))


def parse_devices(devices: Sequence[str | Device]) -> tuple[list[str | Device], list[Device]]:
    """Return the names of the devices, "auto" resolved, and the same as devices without figures. Measures nothing.

    Raises DeviceError as `detect` does.
    """
    if isinstance(devices, (str, Device)):
        raise DeviceError(f"devices is a list of names, not {devices!r}; write [{str(devices)!r}]")
    if not isinstance(devices, Iterable):
        raise DeviceError(f"devices={devices!r} names no device; write a list of those here: {_here()}")
    names = [one for name in devices for one in (_auto() if name == "auto" else (name,))]
    wanted = [_present(name if isinstance(name, Device) else _parse(str(name))) for name in names]
    Machine(tuple(wanted)).check()
    return names, wanted


def _auto() -> tuple[str, ...]:
    """Return the CPU and this process's accelerators: two processes started by torchrun have half each; with more
    processes than accelerators, several share one."""
    names = accelerators()
    count, rank = (int(os.environ.get(name, 0)) for name in ("LOCAL_WORLD_SIZE", "LOCAL_RANK"))
    if count > 1 and names:
        each = max(1, len(names) // count)
        first = rank * each % len(names)
        names = names[first : first + each]
    return "cpu", *names


def accelerators() -> tuple[str, ...]:
    """Return names of the real accelerators: `cuda:0`, `cuda:1`, and so on."""
    if not torch.accelerator.is_available():
        return ()
    kind = torch.accelerator.current_accelerator()
    return tuple(
        f"{kind.type if kind else 'cuda'}:{index}" for index in range(torch.accelerator.device_count())
    )


def present(machine: Machine) -> bool:
    """Return True if every device of a machine is present with its detected figures."""
    real = accelerators() if any(device.torch_type != "cpu" for device in machine.devices) else ()
    here = all(
        device.scales if device.torch_type == "cpu" else device.name in real for device in machine.devices
    )
    return here and not (machine.absent or machine.emulated)


def _here() -> str:
    """Return the valid device names of this machine."""
    return ", ".join(f'"{name}"' for name in ("cpu", *accelerators(), "emulated:0", "auto"))


def _parse(name: str) -> Device:
    match = re.fullmatch(r"cpu(?::0)?(?:\*(\d+))?", name)
    if match:
        return Device("cpu", "cpu", lanes=int(match[1] or 1))
    match = re.fullmatch(r"([a-z]+)(?::(\d+))?", name)
    if not match:
        raise DeviceError(f'{name!r} is not a device name; write "cpu", "cpu*2", "cuda:0" or "emulated:0"')
    kind, index = match[1], match[2]
    if index is None and kind in ("gpu", "accelerator"):
        raise DeviceError(f"{name!r} is not a device name; those here are {_here()}")
    if index is None and kind_of(kind).torch_type == "cpu":
        raise DeviceError(f"device {name!r} has no index; write {kind + ':0'!r}")
    if index is None:
        index = current(kind)
    return Device(f"{kind}:{int(index)}", kind)


def current(kind: str) -> int:
    """Return the index of the accelerator that torch means by a type alone; 0 if there is none of that type."""
    here = torch.accelerator.current_accelerator(check_available=True)
    return torch.accelerator.current_device_index() if here is not None and here.type == kind else 0


def _present(device: Device) -> Device:
    """Return the device. Raises DeviceError if it is an accelerator that this machine lacks."""
    if device.torch_type == "cpu" or device.name in accelerators():
        return device
    there = ["cpu", *accelerators()]
    near = get_close_matches(device.kind, [name.partition(":")[0] for name in there], n=1, cutoff=0.8)
    hint = f" (did you mean {near[0]!r}?)" if near and near[0] != device.kind else ""
    index = device.name.partition(":")[2] or "0"
    raise DeviceError(
        f"there is no device {device.name!r} here{hint}; this machine has {', '.join(there)}. "
        'To plan for hardware you do not have, name chips: Machine.declare("cpu-16", "h100-sxm") for autopar.plan, '
        f'--machine cpu-16,h100-sxm on the command line; to run without it, put "emulated:{index}" in the list'
    )


def _measured(names: Sequence[str]) -> Measured:
    """Return the measurements of this machine with these accelerators."""
    titles = [torch.accelerator.current_accelerator(), *(_title(name) for name in names)] if names else []
    path = cache.file_for("machine", [torch.__version__, *names, *titles])
    entries = cache.load(path)

    def measured(name: str, measure: Callable[..., dict[str, float]], *args: Any) -> dict[str, float]:
        stored = entries.get(name)
        valid = isinstance(stored, dict) and all(map(cache.is_figure, stored.values()))
        known: dict[str, float] = {**stored} if valid and stored else {}
        times = known.pop(_TIMES, 1)
        ends = [end for end in args if end in names]
        if known and (times >= MOST_TIMES or (path, name) in _fresh or not ends):
            return known
        try:
            for end in ends:
                calibrate.warm(end)
            start = time.perf_counter()
            figures = _better(known, measure(*args))
        except RuntimeError:
            # The accelerator's memory may be full by now.
            if known:
                return known
            raise
        took = time.perf_counter() - start
        log.info("measured %s in %.0f ms", name, took * 1e3)
        _fresh.add((path, name))
        times = MOST_TIMES if took > QUICK_S else times + 1 if known else 1
        entries[name] = {**figures, _TIMES: times}
        cache.store(path, entries)
        return figures

    return measured


def _better(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    """Return the shorter times and the higher rates of two measurements."""
    best = {name: min if name in ("latency_s", "launch_s") else max for name in other}
    return {name: best[name](one.get(name, figure), figure) for name, figure in other.items()}


def _rated(device: Device, figures: dict[str, float]) -> Device:
    flops = tuple((name, rate) for name, rate in figures.items() if name not in ("bytes_per_s", "launch_s"))
    return replace(device, flops=flops, bytes_per_s=figures["bytes_per_s"], launch_s=figures["launch_s"])


def host(device: Device, _: int, measured: Measured) -> Device:
    """Return the CPU of this machine, its cores divided among its lanes."""
    return replace(_on_cores(device, device.lanes, measured), memory_bytes=_host_memory())


def stand_in(device: Device, alike: int, measured: Measured) -> Device:
    """Return a worker thread that is one of `alike` on the cores of this machine."""
    shared = _on_cores(device, alike, measured)
    return replace(shared, chip="a worker thread of the CPU", memory_bytes=EMULATED_BYTES)


def accelerator(device: Device, _: int, measured: Measured) -> Device:
    """Return an accelerator of this machine."""
    figures = measured(device.name, calibrate.rates, device.name, torch.get_num_threads())
    rated = replace(_rated(device, figures), chip=_title(device.name), memory_bytes=_memory(device.name))
    return replace(rated, scales=scales.stored(chip(rated)))


def _on_cores(device: Device, lanes: int, measured: Measured) -> Device:
    """Return a device as one of `lanes` on the cores: limited to its share of their joint rates."""
    total = torch.get_num_threads()
    count = max(1, total // lanes)
    figures = measured(f"cpu, {count} threads", calibrate.rates, "cpu", count)
    if lanes > 1:
        whole = measured(f"cpu, {total} threads", calibrate.rates, "cpu", total)
        shared = {name: min(rate, whole.get(name, rate) / lanes) for name, rate in figures.items()}
        figures = {**shared, "launch_s": figures["launch_s"]}
    rated = replace(_rated(device, figures), threads=count, chip=cache.processor())
    return replace(rated, scales=_scaled(rated))


def _scaled(device: Device) -> scales.Scales:
    """Return the scales of a CPU: the stored ones, else those of some operations, measured in a few tenths of
    a second."""
    fitted = scales.stored(chip(device))
    if not fitted:
        measure(scales.operations(), Machine((device,)), {}, budget_s=BUDGET_S)
        fitted = scales.stored(chip(device))
    if all(name != CALL for name, _, _ in fitted):
        fitted += ((CALL, *CALL_SCALE),)
    return fitted


def _title(name: str) -> str:
    """Return the chip of an accelerator; its type if its module does not tell."""
    kind = torch.device(name).type
    name_of = getattr(torch.get_device_module(kind), "get_device_name", None)
    return str(name_of(name)) if name_of else kind


def _memory(name: str) -> int | None:
    """Return the bytes of an accelerator; None (no limit) if its module does not tell."""
    module = torch.get_device_module(torch.device(name).type)
    if hasattr(module, "get_device_properties"):
        total = getattr(module.get_device_properties(name), "total_memory", None)
        if total:
            return int(total)
    if hasattr(module, "mem_get_info"):
        return int(module.mem_get_info(name)[1])
    if hasattr(module, "recommended_max_memory"):  # mps, which has one device
        return int(module.recommended_max_memory())
    return None


def _host_memory() -> int | None:
    """Return the bytes of host memory for this process: the physical memory, or the limit of its container."""
    try:
        fitted = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
    try:
        return min(fitted, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):
        return fitted


def _links(devices: Sequence[Device], measured: Measured) -> tuple[Link, ...]:
    """Return a link in each direction between any two devices."""
    links = []
    for src, dst in permutations(devices, 2):
        special = src.traits.link or dst.traits.link
        links.append((resolve_name(special) if special else _link)(src, dst, measured))
    return tuple(links)


def _link(src: Device, dst: Device, measured: Measured) -> Link:
    """Return a link as measured for torch's copies. Copies within host memory share one bus; each accelerator
    has an incoming and an outgoing bus."""
    real = [device.name for device in (src, dst) if device.torch_type != "cpu"]
    if not real:
        figures, wire = measured("memcpy", calibrate.memcpy), "host memory"
    else:
        ends = [end.name if end.name in real else "cpu" for end in (src, dst)]
        figures = measured(f"{ends[0]} to {ends[1]}", calibrate.link, *ends)
        wire = f"{src.name} out" if src.name in real else f"{dst.name} in"
    return Link(src.name, dst.name, figures["latency_s"] + 2 * HANDOFF_S, figures["bytes_per_s"], wire)


def slow_down_for(plan: Plan, stand_in: Machine) -> float:
    """Return the least slow-down S ≥ 1 at which no step of the plan is expected to be late.

    `stand_in`: the real machine, whose host computes for all lanes of the plan at once. S is the larger of
    two values: the most real seconds × `MARGIN` ÷ modelled seconds of noticeable clusters and copies, and the
    value at which the median noticeable cluster lasts `SHORTEST_S`. Linear in tasks.
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
        # How many times longer a lane takes than the whole real device, while all lanes compute at once.
        share = max(lanes, real.threads * real.lanes / machine.device[placed.device].threads)
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
            # A copy in memory reads and writes each byte, while every lane computes.
            factors.append(MARGIN * 2 * transfer.bytes * (lanes + 1) / real.bytes_per_s / modelled)
    if lasting:
        factors.append(SHORTEST_S / sorted(lasting)[len(lasting) // 2])
    return max(factors)


def with_slow_down(plan: Plan) -> Plan:
    """Choose the slow-down of the plan's machine, unless the user gave one or its clock is real."""
    machine = plan.costed.machine
    if machine.clock != "declared" or machine.slow_down > 0:
        return plan
    return slowed(plan, slow_down_for(plan, detect(["cpu"])))


def slowed(plan: Plan, slow_down: float) -> Plan:
    """Return the plan on a declared clock `slow_down` times slower than the chips, rounded up to two digits."""
    machine, chosen = plan.costed.machine, _round_up(slow_down)
    if machine.clock != "declared" or machine.slow_down == chosen:
        return plan
    return replace(plan, costed=replace(plan.costed, machine=replace(machine, slow_down=chosen)))


def _round_up(value: float) -> float:
    digits = 10.0 ** (len(str(int(value))) - 2)
    scaled = value / digits
    return (int(scaled) + (scaled > int(scaled))) * digits
