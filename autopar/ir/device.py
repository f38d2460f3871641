"""Devices, the traits of their kinds, and the links between them. Pure data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """Traits of a kind of device. A name that `KINDS` lacks is a torch accelerator of that type.

    Functions and classes are named as `"module:name"`, so that the record does not load torch.
    """

    name: str
    torch_type: str
    """The torch device type of its tensors in this process; `cpu`: in host memory."""
    host: bool = False
    """True if it holds the caller's tensors. It has no copy queues: transfers wait in the other end's."""
    hides_dispatch: bool = True
    """True if it computes while the host's Python dispatches the next task."""
    stand_in: bool = False
    """True if it emulates an accelerator; all output must then say so."""
    blocking: str = ""
    """Environment variable that makes launches synchronous; suggested if an error is reported late."""
    figures: str = "autopar.costs.detect:accelerator"
    """`(device, alike, measured) -> Device`: adds rates, memory in bytes and chip; `alike` is how many of its kind
    share it, `measured` the measurements of this machine (`costs.detect.Measured`)."""
    link: str = ""
    """`(src, dst, measured) -> Link`: the link at an end of this kind; empty: as measured for torch."""
    lane: str = "autopar.runtime.lanes.accelerator:AcceleratorLane"
    """The `HostLane` class that encodes the steps of its lanes and calls its tasks."""


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
    """Return the record of a kind, `cuda`, or of the kind of a device, `cuda:0`."""
    name = name.partition(":")[0]
    return KINDS.get(name) or DeviceKind(name, name)


@dataclass(frozen=True, slots=True)
class Device:
    """A device with `lanes` in-order compute queues and, unless it is the host, a copy queue in each direction.

    kind: a torch device type, `emulated`, or another name in `KINDS`.
    threads: intra-op threads of each CPU lane.
    memory_bytes: capacity; None: no limit.
    flops: (dtype, achieved FLOP/s).
    bytes_per_s: achieved memory bandwidth.
    launch_s: least seconds that a task takes on the device.
    dispatch_s: seconds that the host's Python spends on each task.
    scales: for timed operators, (family, launch in seconds with dispatch, factor on the roofline's seconds).
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
        """Return the achieved FLOP/s in `dtype`; a dtype that the table lacks runs at the float32 rate."""
        rates = dict(self.flops)
        return rates.get(dtype) or rates.get("float32") or 1e9

    @property
    def traits(self) -> DeviceKind:
        """The traits of its kind."""
        return kind_of(self.kind)

    @property
    def torch_type(self) -> str:
        """The torch device type of its tensors; for emulated devices that of the CPU."""
        return self.traits.torch_type

    @property
    def torch_device(self) -> str:
        """The torch device of its tensors."""
        return "cpu" if self.torch_type == "cpu" else self.name

    @property
    def compute_lanes(self) -> tuple[str, ...]:
        """Names of its compute queues: `cpu/0`, `cpu/1`."""
        return tuple(f"{self.name}/{index}" for index in range(self.lanes))


MOST_LANES = 1_000_000
"""Limit on the compute queues of one device, against input that would exhaust memory."""
HANDOFF_S = 1e-5
"""Seconds to wake the thread of another lane (8 to 12 µs on two cores). A link's
latency includes two: the copy queue waits for the producer, the reader for the copy queue."""


@dataclass(frozen=True, slots=True)
class Link:
    """One direction between devices. A transfer takes `latency_s + bytes / bytes_per_s`, hand-offs included.

    Links with the same `wire` share a bus, which carries one transfer at a time; None: any number at once.
    """

    src: str
    dst: str
    latency_s: float
    bytes_per_s: float
    wire: str | None

    def seconds(self, nbytes: int) -> float:
        """Return the seconds of a transfer of `nbytes` on an idle bus."""
        return self.latency_s + nbytes / self.bytes_per_s
