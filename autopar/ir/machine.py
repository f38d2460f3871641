"""Machine model: devices and links as one `Machine`. Pure data; `detect` finds the real one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from os import PathLike
from pkgutil import resolve_name
from typing import Literal

from ..errors import DeviceError
from ..system.process import cores
from ..system.text import parse_bytes, size, table
from . import serialize
from .device import MOST_LANES, Device, Link
from .hardware import declared

FORMAT = "autopar machine 1"


@dataclass(frozen=True)
class Machine:
    """Devices and the links between them. The first device whose kind is a host is the host.

    clock: `real`, or `declared` (only if all accelerators are emulated): devices and links take as long as
    the declared chips would, times `slow_down`.
    slow_down: factor of a declared clock; 0 until chosen from the costs. Rates, latencies and costs exclude it.
    absent: declared for planning only; nothing can run on it.
    queued: transfers wait in the copy queues of their devices, then for their bus; if False, only for it.
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
        """Name of the device of the caller's tensors: the CPU, else the first device."""
        return next((device.name for device in self.devices if device.traits.host), self.devices[0].name)

    @property
    def stretch(self) -> float:
        """Factor by which a measured call is longer than on the declared devices; 1 on the real clock."""
        return self.slow_down if self.clock == "declared" else 1.0

    @property
    def emulated(self) -> bool:
        """True if any device is emulated; all output must then say so."""
        return any(device.traits.stand_in for device in self.devices)

    @property
    def separate_generators(self) -> bool:
        """True if each device has its own random generator; emulated devices use that of the CPU."""
        return not self.emulated and len({device.torch_device for device in self.devices}) > 1

    @property
    def label(self) -> str:
        """Label of the figures of this machine; empty for a real one."""
        if self.absent:
            return "declared machine, not run"
        if not self.emulated:
            return ""
        if self.clock == "declared":
            return "EMULATED, declared clock" + (f" × {self.slow_down:g}" if self.slow_down else "")
        return "EMULATED, real clock"

    def copy_lane(self, src: str, dst: str) -> str:
        """Return the queue of a transfer: copy-in of `dst`, or copy-out of `src` if `dst` is the host;
        without copy queues, one for each pair."""
        if not self.queued:
            return f"{dst}/from {src.replace('/', ':')}"
        return f"{src}/out" if self.device[dst].traits.host else f"{dst}/in"

    def queue(self, link: Link) -> str | None:
        """Return the queue for transfers over a link: a copy queue; without copy queues, its bus, or None."""
        return self.copy_lane(link.src, link.dst) if self.queued else link.wire

    @cached_property
    def lanes(self) -> tuple[str, ...]:
        """Names of all queues by device: compute queues, then copy-in and copy-out, or one for each incoming link."""
        names: list[str] = []
        for device in self.devices:
            names += device.compute_lanes
            if not self.queued:
                names += [
                    self.copy_lane(link.src, link.dst) for link in self.links if link.dst == device.name
                ]
            elif not device.traits.host:
                names += [f"{device.name}/in", f"{device.name}/out"]
        return tuple(names)

    def route(self, src: str, dst: str, nbytes: int = 1 << 20) -> tuple[Link, ...]:
        """Return the links from `src` to `dst`: the direct one, else the fastest pair via another device for
        `nbytes`.

        Raises DeviceError if there is no route.
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

    @property
    def serial(self) -> bool:
        """True if there is only one compute lane: every order of tasks then takes equally long."""
        return sum(device.lanes for device in self.devices) == 1

    @cached_property
    def uncapped(self) -> Machine:
        """The machine without memory limits."""
        return self.with_memory(dict.fromkeys(self.device))

    @property
    def unlinked(self) -> tuple[str, ...]:
        """Devices, of several, that no link leads to or from."""
        linked = {end for pair in self.link for end in pair}
        return tuple(name for name in self.device if name not in linked and len(self.devices) > 1)

    def with_memory(self, caps: Mapping[str, int | None]) -> Machine:
        """Return the machine with caps, in bytes, on some devices; None: not limited."""
        for name in caps:
            self.require(name)
        devices = tuple(replace(d, memory_bytes=caps.get(d.name, d.memory_bytes)) for d in self.devices)
        return replace(self, devices=devices)

    def limited(self, memory: Mapping[str, int | str] | None) -> Machine:
        """Return the machine with caps on some devices, in bytes or as `"6GiB"`."""
        if not isinstance(memory or {}, Mapping):
            raise DeviceError(f'memory={memory!r} names no device; write memory={{"cuda:0": {memory!r}}}')
        return self.with_memory({name: parse_bytes(cap) for name, cap in (memory or {}).items()})

    def require(self, name: str, what: str = "") -> Device:
        """Return the device called `name`, or raise DeviceError that says `what` is wrong and lists the devices."""
        if not isinstance(name, str) or name not in self.device:
            raise DeviceError(f"{what}no device {name!r} in this machine; it has {', '.join(self.device)}")
        return self.device[name]

    def check(self) -> Machine:
        """Return self, or raise DeviceError with the first error."""
        for text in self._wrong():
            raise DeviceError(text)
        return self

    def _wrong(self) -> Iterator[str]:
        if not isinstance(self.devices, tuple) or not all(isinstance(one, Device) for one in self.devices):
            yield (
                f"devices={self.devices!r} is not a tuple of Device; for names write "
                'Machine.declare("cpu", "h100-sxm"), or give compile the list ["cpu", "cuda:0"]'
            )
        if not self.devices:
            yield 'the device list is empty; give at least one, for example ["cpu"]'
        names = Counter(device.name for device in self.devices)
        for device in self.devices:
            if names[device.name] > 1:
                yield (
                    f"device {device.name!r} is listed twice; for two queues on one CPU write 'cpu*2', "
                    "for a second accelerator give its own index"
                )
            if not 1 <= device.lanes <= MOST_LANES or device.lanes != int(device.lanes):
                yield f"device {device.name!r} has {device.lanes} lanes; it needs from one to {MOST_LANES:,}"
            rates = (device.bytes_per_s, *(rate for _, rate in device.flops))
            waits = (device.launch_s, device.dispatch_s, device.memory_bytes or 0)
            if not all(rate > 0 for rate in rates) or not all(wait >= 0 for wait in waits):
                figures = "bytes_per_s and flops > 0, and launch_s, dispatch_s and memory_bytes ≥ 0"
                yield f"device {device.name!r} needs {figures}"
        for link in self.links:
            what = f"link {link.src} → {link.dst}"
            for end in (link.src, link.dst):
                if end not in names:
                    yield f"{what} names {end!r}, which is not a device of this machine"
            if not (link.bytes_per_s > 0 and link.latency_s >= 0):
                yield f"{what} needs bytes_per_s > 0 and latency_s ≥ 0"

    @staticmethod
    def declare(
        *chips: str | Device,
        bus: str | Sequence[str] | None = None,
        memory: Mapping[str, int | str] | None = None,
    ) -> Machine:
        """Declare a machine for planning: `Machine.declare("cpu", "h100-sxm", "h100-sxm")`.

        CPUs are named `cpu`, accelerators `cuda:0`, `cuda:1`, … `bus` replaces the chips' own buses: PCIe
        those to the host, NVLink or Infinity Fabric those between accelerators. `memory` caps devices by
        name, in bytes or as `"6GiB"`. Raises DeviceError for unknown chips, buses and devices.
        """
        return Machine(*declared(chips, "cuda", bus), absent=True).check().limited(memory)

    @staticmethod
    def emulate(
        *chips: str | Device,
        slow_down: float | Literal["auto"] = "auto",
        bus: str | Sequence[str] | None = None,
        memory: Mapping[str, int | str] | None = None,
    ) -> Machine:
        """Emulate a machine on this one, on a declared clock: `Machine.emulate("cpu", "t4", "t4")`.

        Accelerators are `emulated:0`, `emulated:1`, …: worker threads that compute the real values and then
        sleep until the declared chip, `slow_down` times slower, would have finished. `"auto"` leaves
        `slow_down` 0 until the costs are known (`costs.detect.slow_down_for`). Each lane has its share of
        this machine's cores. `bus` and `memory` as in `declare`.
        """
        number = isinstance(slow_down, (int, float)) and not isinstance(slow_down, bool)
        if slow_down != "auto" and not (number and 0 < slow_down < float("inf")):
            raise DeviceError(f'slow_down is a number above 0 or "auto", not {slow_down!r}')
        factor = 0.0 if slow_down == "auto" else float(slow_down)
        devices, links = declared(chips, "emulated", bus)
        threads = max(1, cores() // sum(device.lanes for device in devices))
        devices = tuple(replace(device, threads=threads) for device in devices)
        machine = Machine(devices, links, clock="declared", slow_down=factor)
        return machine.check().limited(memory)

    def save(self, path: str | PathLike[str]) -> None:
        """Write to a JSON file."""
        serialize.save(self, FORMAT, path)

    @staticmethod
    def load(path: str | PathLike[str]) -> Machine:
        """Read a file written by `save`; DeviceError or PlanError says what is wrong with it."""
        return serialize.load(Machine, FORMAT, path, DeviceError).check()

    def _repr_html_(self) -> str:
        return str(resolve_name("autopar.view.pages:text_html")(str(self)))

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
        parts = [f"{self.label}\n" if self.label else "", table(rows, right=(2, 3, 4, 5))]
        return "".join([*parts, "\n\n" + table(links, right=(2, 3)) if self.links else ""])
