"""Device kinds: one record for each, of what does not depend on a device's figures."""

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
