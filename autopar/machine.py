"""What a graph can run on: `Device`, `Link` and `Machine`. Pure data; `detect` finds the real one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Literal

from . import jsonfile
from .errors import DeviceError
from .saving import decode, encode
from .tables import size, table

FORMAT = "autopar machine 1"


@dataclass(frozen=True, slots=True)
class Device:
    """A device with `lanes` in-order compute queues and, unless it is the CPU, one queue for copies each way.

    `kind` is a torch device type or `emulated`. `threads` are the intra-op threads of each CPU lane.
    `memory_bytes` None means not limited. `flops` holds (dtype, FLOP/s that real kernels reach) pairs,
    `bytes_per_s` the memory bandwidth they reach. A task costs at least `launch_s` on the device and
    `dispatch_s` of the host's Python.
    """

    name: str
    kind: str
    lanes: int = 1
    threads: int = 1
    memory_bytes: int | None = None
    chip: str = ""
    flops: tuple[tuple[str, float], ...] = ()
    bytes_per_s: float = 1e10
    launch_s: float = 1e-6
    dispatch_s: float = 3e-6

    def flops_per_s(self, dtype: str) -> float:
        """FLOP/s reached in `dtype`; a dtype the chip's table lacks runs at its float32 rate."""
        rates = dict(self.flops)
        return rates.get(dtype) or rates.get("float32") or 1e9

    @property
    def torch_type(self) -> str:
        """The torch device type of its tensors: those of stand-ins are the CPU's."""
        return "cpu" if self.kind == "emulated" else self.kind

    @property
    def torch_device(self) -> str:
        """The torch device that its tensors are on."""
        return "cpu" if self.torch_type == "cpu" else self.name

    @property
    def compute_lanes(self) -> tuple[str, ...]:
        """Names of its compute queues: `cpu/0`, `cpu/1`."""
        return tuple(f"{self.name}/{index}" for index in range(self.lanes))


MOST_LANES = 1_000_000
"""Compute queues of one device: more than any has, and few enough to be written down."""
HANDOFF_S = 1e-5
"""What it takes to wake the thread of another lane (`bench --suite overhead`: 8 to 12 µs). A copy's queue waits for who
made the value, and who reads it for the queue, so that the latency of a link holds two of these."""


@dataclass(frozen=True, slots=True)
class Link:
    """One direction between two devices: a copy takes `latency_s + bytes / bytes_per_s` seconds, hand-offs included.

    Links with the same `wire` carry one transfer at a time between them; `wire` None carries any number at
    once.
    """

    src: str
    dst: str
    latency_s: float
    bytes_per_s: float
    wire: str | None

    def seconds(self, nbytes: int) -> float:
        """Seconds a copy of `nbytes` takes on an idle wire."""
        return self.latency_s + nbytes / self.bytes_per_s


@dataclass(frozen=True)
class Machine:
    """Devices and the links between them. The first device of kind `cpu` is the host.

    `clock` `real`: everything lasts as long as it lasts. `declared`: every device and link is made to last
    what the declared chip would take, times `slow_down`; 0 until it is chosen from the costs. Only a machine
    whose accelerators are emulated can be so run. Rates, latencies and costs are the chip's own, without
    `slow_down`. `absent`: declared to be planned for, not to be run on. `queued`: copies wait in the copy
    queues of their devices; not, for nothing but their wires.
    """

    devices: tuple[Device, ...]
    links: tuple[Link, ...] = ()
    clock: Literal["real", "declared"] = "real"
    slow_down: float = 1.0
    absent: bool = False
    queued: bool = True

    @cached_property
    def device(self) -> dict[str, Device]:
        """Devices by name."""
        return {device.name: device for device in self.devices}

    @cached_property
    def link(self) -> dict[tuple[str, str], Link]:
        """Links by (source, destination)."""
        return {(link.src, link.dst): link for link in self.links}

    @cached_property
    def host(self) -> str:
        """Name of the device the caller's own tensors are taken to be on: the CPU, else the first device."""
        return next((device.name for device in self.devices if device.kind == "cpu"), self.devices[0].name)

    @property
    def emulated(self) -> bool:
        """Whether any device is a stand-in, so that whatever is printed, drawn or saved must say so."""
        return any(device.kind == "emulated" for device in self.devices)

    @property
    def draws_apart(self) -> bool:
        """Whether each device draws random numbers from a generator of its own: stand-ins all have that of the CPU."""
        return not self.emulated and len({device.torch_device for device in self.devices}) > 1

    @property
    def label(self) -> str:
        """How figures of this machine must be called: empty for real ones."""
        if self.absent:
            return "declared machine, not run"
        if not self.emulated:
            return ""
        if self.clock == "declared":
            return "EMULATED, declared clock" + (f" × {self.slow_down:g}" if self.slow_down else "")
        return "EMULATED, as long as it lasts"

    def copy_lane(self, src: str, dst: str) -> str:
        """Name of the queue a copy runs in: the copy-in queue of `dst`, or out of `src` when `dst` is the
        CPU; without queues what comes to `dst` from `src`."""
        if not self.queued:
            return f"{dst}/from {src.replace('/', ':')}"
        return f"{src}/out" if self.device[dst].kind == "cpu" else f"{dst}/in"

    def queue(self, link: Link) -> str | None:
        """Name of what copies over a link wait in: a copy queue, without queues its wire; None: in nothing."""
        return self.copy_lane(link.src, link.dst) if self.queued else link.wire

    @cached_property
    def torch_types(self) -> tuple[str, ...]:
        """The torch device types of all tensors, each once."""
        return tuple(dict.fromkeys(device.torch_type for device in self.devices))

    @cached_property
    def lanes(self) -> tuple[str, ...]:
        """Names of all queues, device by device: compute queues, then copy in, copy out, or one for each link
        that ends there."""
        names: list[str] = []
        for device in self.devices:
            names += device.compute_lanes
            if not self.queued:
                names += [
                    self.copy_lane(link.src, link.dst) for link in self.links if link.dst == device.name
                ]
            elif device.kind != "cpu":
                names += [f"{device.name}/in", f"{device.name}/out"]
        return tuple(names)

    def route(self, src: str, dst: str, nbytes: int = 1 << 20) -> tuple[Link, ...]:
        """The links a value takes from `src` to `dst`: the direct one, else the pair through a third device that is
        fastest for `nbytes`.

        Raises DeviceError when there is no way.
        """
        if src == dst:
            return ()
        direct = self.link.get((src, dst))
        if direct:
            return (direct,)
        ways = [
            (self.link[src, via.name], self.link[via.name, dst])
            for via in self.devices
            if (src, via.name) in self.link and (via.name, dst) in self.link
        ]
        if not ways:
            raise DeviceError(
                f"no link leads from {src} to {dst}; add Link({src!r}, {dst!r}, …) to the machine"
            )
        return min(ways, key=lambda way: sum(link.seconds(nbytes) for link in way))

    @cached_property
    def uncapped(self) -> Machine:
        """This machine with no limit to the memory of any device."""
        return self.with_memory(dict.fromkeys(self.device))

    def with_memory(self, caps: Mapping[str, int | None]) -> Machine:
        """This machine with the memory of some devices limited to `caps` bytes, None: not limited."""
        for name in caps:
            self.require(name)
        devices = tuple(replace(d, memory_bytes=caps.get(d.name, d.memory_bytes)) for d in self.devices)
        return replace(self, devices=devices)

    def require(self, name: str) -> Device:
        """The device called `name`, or DeviceError listing those there are."""
        if name not in self.device:
            raise DeviceError(f"no device {name!r} in this machine; it has {', '.join(self.device)}")
        return self.device[name]

    def check(self) -> Machine:
        """Return self, or raise DeviceError naming what makes this no machine."""
        if not self.devices:
            raise DeviceError('the device list is empty; give at least one, for example ["cpu"]')
        seen: set[str] = set()
        for device in self.devices:
            if device.name in seen:
                raise DeviceError(
                    f"device {device.name!r} is listed twice; for two queues on one CPU write 'cpu*2', "
                    "for a second accelerator give its own index"
                )
            seen.add(device.name)
            if not 1 <= device.lanes <= MOST_LANES or device.lanes != int(device.lanes):
                raise DeviceError(
                    f"device {device.name!r} has {device.lanes} lanes; it needs from one to {MOST_LANES:,}"
                )
        for link in self.links:
            for end in (link.src, link.dst):
                if end not in seen:
                    raise DeviceError(
                        f"link {link.src} → {link.dst} names {end!r}, which is no device of this machine"
                    )
            if link.bytes_per_s <= 0 or link.latency_s < 0:
                raise DeviceError(f"link {link.src} → {link.dst} needs bytes_per_s > 0 and latency_s ≥ 0")
        return self

    @staticmethod
    def declare(
        *chips: str | Device,
        bus: str | Sequence[str] | None = None,
        memory: Mapping[str, int | str] | None = None,
    ) -> Machine:
        """A machine to plan for without having it: `Machine.declare("cpu", "h100-sxm", "h100-sxm")`. See
        `declared`."""
        from .hardware.declared import declare

        return declare(chips, bus=bus, memory=memory)

    @staticmethod
    def emulate(
        *chips: str | Device,
        slow_down: float | Literal["auto"] = "auto",
        bus: str | Sequence[str] | None = None,
        memory: Mapping[str, int | str] | None = None,
    ) -> Machine:
        """A machine stood in for by this one: `Machine.emulate("cpu", "t4", "t4")`. See `declared`."""
        from .hardware.declared import emulate

        return emulate(chips, slow_down=slow_down, bus=bus, memory=memory)

    def save(self, path: str | PathLike[str]) -> None:
        """Write it as JSON."""
        Path(path).write_text(json.dumps({"format": FORMAT, "machine": encode(self)}, indent=1) + "\n")

    @staticmethod
    def load(path: str | PathLike[str]) -> Machine:
        """Read what `save` wrote; DeviceError or PlanError says what is not as it should be."""
        data = jsonfile.load(path, f"write one with machine.save({str(path)!r})", DeviceError)
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise DeviceError(f"{path} is not an {FORMAT!r} file; write one with machine.save({str(path)!r})")
        return decode(Machine, data.get("machine"), str(path)).check()

    def _repr_html_(self) -> str:
        from .view.notebook import text_html

        return text_html(str(self))

    def __str__(self) -> str:
        rows = [("device", "chip", "lanes", "memory", "float32", "bandwidth")]
        for d in self.devices:
            memory = "no cap" if d.memory_bytes is None else size(d.memory_bytes)
            rate = f"{d.flops_per_s('float32') / 1e12:.3g} TFLOP/s"
            rows.append((d.name, d.chip, str(d.lanes), memory, rate, size(d.bytes_per_s) + "/s"))
        links = [("from", "to", "latency", "bandwidth", "wire")]
        links += [
            (k.src, k.dst, f"{k.latency_s * 1e6:.1f} µs", size(k.bytes_per_s) + "/s", k.wire or "-")
            for k in self.links
        ]
        label = f"{self.label}\n" if self.label else ""
        return (
            label
            + table(rows, right=(2, 3, 4, 5))
            + ("\n\n" + table(links, right=(2, 3)) if self.links else "")
        )
