"""Devices, what depends on their kind alone, and the links between them. Pure data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """A kind of device. A name that `KINDS` lacks is the torch accelerator of that type.

    Functions and classes are named as `"module:name"`, so that the record loads no torch.
    """

    name: str
    torch_type: str
    """The torch device type of its tensors as this process sees them; `cpu`: in host memory."""
    host: bool = False
    """The caller's tensors are there, and transfers wait in the copy queues of their other end: it has none."""
    hides_dispatch: bool = True
    """It computes while the host's Python dispatches what comes next."""
    stand_in: bool = False
    """It stands in for an accelerator, so that whatever is printed, drawn or saved must say so."""
    blocking: str = ""
    """The environment variable that makes launches wait, to advise after an error that is reported late."""
    figures: str = "autopar.costs.detect:accelerator"
    """`(device, alike, measured) -> Device`: the device with its rates, its memory in bytes and its chip; `alike` is
    how many of its kind share it, `measured` the figures of this machine (`costs.detect.Measurements`)."""
    link: str = ""
    """`(src, dst, measured) -> Link`: a link with an end of this kind; empty: as fast as torch copies."""
    lane: str = "autopar.runtime.lanes.accelerator:AcceleratorLane"
    """The `HostLane` that says how steps of its lanes are written, and how its tasks are called."""


KINDS: dict[str, DeviceKind] = {
    kind.name: kind
    for kind in (
        DeviceKind(
            "cpu", "cpu", host=True, hides_dispatch=False,
            figures="autopar.costs.detect:host", lane="autopar.runtime.lanes.host:HostLane",
        ),
        DeviceKind(
            "emulated", "cpu", hides_dispatch=False, stand_in=True,
            figures="autopar.costs.detect:stand_in", lane="autopar.runtime.lanes.host:HostLane",
        ),
        DeviceKind("cuda", "cuda", blocking="CUDA_LAUNCH_BLOCKING=1"),
        DeviceKind("npu", "npu", blocking="ASCEND_LAUNCH_BLOCKING=1"),
    )
}  # fmt: skip


def kind_of(name: str) -> DeviceKind:
    """The record of a kind, `cuda`, or of the kind of a device, `cuda:0`, by its name."""
    name = name.partition(":")[0]
    return KINDS.get(name) or DeviceKind(name, name)


@dataclass(frozen=True, slots=True)
class Device:
    """A device with `lanes` in-order compute queues and, unless it is the CPU, one queue for copies each way.

    `kind` is a torch device type, `emulated`, or another name of `KINDS`. `threads` are the intra-op
    threads of each CPU lane.
    `memory_bytes` None means not limited. `flops` holds (dtype, FLOP/s that real kernels reach) pairs,
    `bytes_per_s` the memory bandwidth they reach. A task costs at least `launch_s` on the device and
    `dispatch_s` of the host's Python. `scales` holds, of operators that were timed on it, (family, launch in seconds
    with dispatch, factor on the seconds that the rates above give).
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
    scales: tuple[tuple[str, float, float], ...] = ()

    def flops_per_s(self, dtype: str) -> float:
        """FLOP/s reached in `dtype`; a dtype the chip's table lacks runs at its float32 rate."""
        rates = dict(self.flops)
        return rates.get(dtype) or rates.get("float32") or 1e9

    @property
    def traits(self) -> DeviceKind:
        """The traits of its kind."""
        return kind_of(self.kind)

    @property
    def torch_type(self) -> str:
        """The torch device type of its tensors: those of stand-ins are the CPU's."""
        return self.traits.torch_type

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
"""Seconds to wake the thread of another lane (8 to 12 µs by `tests/benchmarks/timed/overhead.py`). A copy's queue waits
for who made the value, and who reads it for the queue, so that the latency of a link holds two of these."""


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
