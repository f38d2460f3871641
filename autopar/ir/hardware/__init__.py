"""Declared chips, with memory, bandwidth and dense FLOP/s by dtype; declared buses and networks; and machines made of
them. All figures are from datasheets.

`float32` is plain float32 arithmetic, since torch does not use TF32 for matrix products by default. Datasheet
figures with sparsity are halved. Memory counts 1 GB as 10⁹ bytes, which errs on the safe side. `float64`
rates of consumer chips follow from the 1:32 (Turing) and 1:64 (Ampere GA10x, Ada) ratios of their white
papers. A dtype that a chip's table lacks runs at its float32 rate. Bandwidths of buses are for one direction
(of one port); copies reach a share of them (`REACHED`).
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files
from itertools import permutations
from typing import TypeVar

from ...errors import DeviceError
from ..device import HANDOFF_S, Device, Link, kind_of

T = TypeVar("T")

REACHED = 0.8
"""Achieved share of a bus for large pinned copies, after protocol headers and credits (PCIe 3 to 5 cards commonly
measure 0.78 to 0.87 of the encoded rate, NVLink about 0.8); and of a port for large messages."""


@dataclass(frozen=True, slots=True)
class _Bus:
    """A bus between two devices, or a network port.

    `bytes_per_s` is the datasheet's, in one direction. No datasheet gives a latency: `latency_s` is a common
    value for an asynchronous copy of a few bytes, call included, or for a message from send to receipt.
    `peer`: between accelerators.
    """

    name: str
    title: str
    bytes_per_s: float
    latency_s: float
    source: str
    peer: bool = False

    @property
    def reached(self) -> float:
        """Achievable bytes per second of copies."""
        return self.bytes_per_s * REACHED


def rows(table: str) -> Iterator[dict[str, str]]:
    """Yield the rows of a datasheet table beside this file, as dicts by column."""
    return csv.DictReader((files(__package__) / table).read_text(encoding="utf-8").splitlines())


def _of(*kinds: str) -> dict[str, _Bus]:
    buses = {}
    for row in rows("buses.csv"):
        if row["kind"] in kinds:
            rate, latency = float(row["gb_per_s"]) * 1e9, float(row["latency_us"]) / 1e6
            figures = row["bus"], row["title"], rate, latency, row["source"]
            buses[row["bus"]] = _Bus(*figures, peer=row["kind"] == "peer")
    return buses


BUSES = _of("host", "peer")
NETWORKS = _of("network")


def find(what: str, name: object, known: Mapping[str, T], more: Iterable[str] = (), else_: str = "") -> T:
    """Return the entry `name` of a table; DeviceError lists the `known` names and the nearest, including
    `more`, and adds the advice `else_`."""
    if name in known:
        return known[str(name)]
    close = get_close_matches(str(name).lower(), [*known, *more], n=1, cutoff=0.5)
    near = f" (did you mean {close[0]!r}?)" if close else ""
    raise DeviceError(f"no {what} {name!r} is known{near}; known are {', '.join(known)}{else_}")


COMPUTE_REACHED = 0.7
"""Achieved share of the datasheet's FLOP/s, as in meta-pytorch's autoparallel."""
MEMORY_REACHED = 0.8
"""Achieved share of the datasheet's memory bandwidth, for streaming kernels."""
LAUNCH_S = 7e-6
"""Least seconds of an accelerator kernel, launch included, as in autoparallel."""
CPU_LAUNCH_S = 1e-6


@dataclass(frozen=True, slots=True)
class Chip:
    """A datasheet: memory in bytes (None: as fitted), peak bytes per second, peak dense TFLOP/s by dtype, bus to the
    host, bus to its peers (empty: over the host bus), and the source of the figures."""

    name: str
    title: str
    kind: str
    memory_bytes: int | None
    bytes_per_s: float
    tflops: tuple[tuple[str, float], ...]
    bus: str
    peer_bus: str
    source: str
    threads: int = 1

    def device(self, name: str, kind: str | None = None) -> Device:
        """Return the chip as a device called `name`, at achievable rates."""
        return Device(
            name=name,
            kind=kind or self.kind,
            threads=self.threads,
            memory_bytes=self.memory_bytes,
            chip=self.title,
            flops=tuple((dtype, rate * 1e12 * COMPUTE_REACHED) for dtype, rate in self.tflops),
            bytes_per_s=self.bytes_per_s * MEMORY_REACHED,
            launch_s=CPU_LAUNCH_S if kind_of(self.kind).host else LAUNCH_S,
        )


def _accelerators() -> Iterator[Chip]:
    """Yield the rows of `chips.csv`: gigabytes, gigabytes per second and TFLOP/s by dtype."""
    for row in rows("chips.csv"):
        # Turing and Volta have no bfloat16 units: torch computes it at the float32 rate.
        rates = {name: row[name] for name in ("float32", "float64", "float16", "bfloat16", "tf32")}
        rates["bfloat16"] = rates["bfloat16"] or rates["float16"]
        memory, bandwidth = int(float(row["memory_gb"]) * 1e9), float(row["gb_per_s"]) * 1e9
        tflops = tuple((name, float(rate)) for name, rate in rates.items() if rate)
        texts = row["bus"], row["peer_bus"], row["source"]
        yield Chip(row["chip"], row["title"], "cuda", memory, bandwidth, tflops, *texts)


def _cpu(name: str, cores: int, clock: float, bandwidth: float, source: str) -> Chip:
    # AVX2: two fused multiply-adds of 8 float32 per core and cycle.
    single = cores * 32 * clock / 1e3
    rates = (("float32", single), ("float64", single / 2), ("float16", single / 2), ("bfloat16", single / 2))
    return Chip(name, f"{cores}-core CPU", "cpu", None, bandwidth * 1e9, rates, "", "", source, cores)


CHIPS: dict[str, Chip] = {
    chip.name: chip
    for chip in (
        _cpu("cpu-16", 16, 3.0, 204.8, "AMD EPYC 7313 product page: 3.0 GHz base, 204.8 GB/s"),
        _cpu("cpu-64", 64, 2.45, 204.8, "AMD EPYC 7763 product page: 2.45 GHz base, 204.8 GB/s"),
        *_accelerators(),
    )
}
ALIASES = {"cpu": "cpu-16", "a100": "a100-80", "h100": "h100-sxm"}


def find_chip(name: str) -> Chip:
    """Return the chip called `name` (`cpu`, `a100` and `h100` are abbreviations); DeviceError lists the known ones."""
    if not isinstance(name, str):
        raise DeviceError(
            f'{name!r} is not a chip; write the names one by one: "cpu", "h100-sxm", "h100-sxm"'
        )
    lowered = name.lower().replace("_", "-").replace(" ", "-")
    lowered = ALIASES.get(lowered, lowered)
    more = ". For another chip, give a Device with its own figures instead of a name"
    return find("chip", lowered if lowered in CHIPS else name, CHIPS, ALIASES, more)


def declared(
    chips: Sequence[str | Device], kind: str, bus: str | Sequence[str] | None
) -> tuple[tuple[Device, ...], tuple[Link, ...]]:
    """Return devices of these chips and the links between any two; accelerators are of `kind`, numbered from 0.

    `bus` replaces the chips' own buses. Raises DeviceError for unknown chips and buses.
    """
    sheets = [chip if isinstance(chip, Device) else find_chip(chip) for chip in chips]
    if not sheets:
        raise DeviceError('the chip list is empty; give at least one, for example "cpu", "h100-sxm"')
    named = bus if isinstance(bus, (list, tuple)) else () if bus is None else (bus,)
    replacing = [find("bus", str(name), BUSES) for name in named]
    devices: list[Device] = []
    buses: dict[str, tuple[_Bus, _Bus | None]] = {}
    accelerators = 0
    for chip in sheets:
        if kind_of(chip.kind).host:
            if any(device.traits.host for device in devices):
                raise DeviceError("a machine has one CPU device; model a second socket as more cores of it")
            devices.append(chip.device("cpu") if isinstance(chip, Chip) else chip)
            continue
        host = next((b for b in replacing if not b.peer), None)
        peer = next((b for b in replacing if b.peer), None)
        if isinstance(chip, Chip):
            devices.append(chip.device(f"{kind}:{accelerators}", kind))
            accelerators += 1
            host = host or find("bus", chip.bus, BUSES)
            peer = peer or (find("bus", chip.peer_bus, BUSES) if chip.peer_bus else None)
        else:
            devices.append(chip)
        buses[devices[-1].name] = (host or BUSES["pcie4"], peer)
    return tuple(devices), _links(devices, buses)


def _links(devices: Sequence[Device], buses: Mapping[str, tuple[_Bus, _Bus | None]]) -> tuple[Link, ...]:
    """Return a link in each direction between any two devices.

    Each accelerator has its own full-duplex bus, and `Link.wire` is one direction of it. A transfer between
    accelerators occupies the outgoing bus of its source; the copy-in queue serialises the incoming side. Two
    accelerators with the same peer bus are joined by it, others by their host buses.
    """
    links = []
    for src, dst in permutations([device.name for device in devices], 2):
        if src not in buses:
            way = buses[dst][0]
            wire = f"{dst} {way.title} in"
        elif dst not in buses:
            way = buses[src][0]
            wire = f"{src} {way.title} out"
        else:
            (host, peer), (other, its) = buses[src], buses[dst]
            first, last = (peer, peer) if peer is not None and peer == its else (host, other)
            way = min(first, last, key=lambda bus: bus.reached)
            wire = f"{src} {first.title} out"
        links.append(Link(src, dst, way.latency_s + 2 * HANDOFF_S, way.reached, wire))
    return tuple(links)
