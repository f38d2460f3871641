"""One change of hardware or of a cap: costed graph → costed graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ...ir.costed import CostedGraph, Run
from ...ir.device import Device, Link
from ...ir.machine import Machine

FASTER = 2.0
"""Times as fast as it is that a device or a wire is tried."""


@dataclass(frozen=True, slots=True)
class Option:
    """A change, what it is called, and what it is a change of: a device (`compute`, `lanes`, `device`, `memory`)
    or a wire (`bytes`, `latency`) by name."""

    what: str
    kind: str
    of: str
    apply: Callable[[CostedGraph], CostedGraph]


def options(costed: CostedGraph) -> list[Option]:
    """Every change of one thing: a device or a wire twice as fast, a wire without latency, a lane or a device more, a
    cap lifted.

    More lanes go to devices that have several, to CPUs, and to all of a graph file; more CPUs to a graph file alone.
    """
    machine = costed.machine
    found = []
    for d, device in enumerate(machine.devices):
        name = device.name
        found.append(Option(f"{name} twice as fast", "compute", name, _quicker(d)))
        if device.lanes > 1 or device.traits.host or not machine.queued:
            found.append(
                Option(f"one more lane of {name}", "lanes", name, _device(d, lanes=device.lanes + 1))
            )
        if not device.traits.host or not machine.queued:
            found.append(Option(f"one more device like {name}", "device", name, _another(d)))
        if device.memory_bytes is not None:
            found.append(Option(f"no memory cap on {name}", "memory", name, _device(d, memory_bytes=None)))
    for name, links in wires(machine).items():
        called = name if " → " in name else f"wire {name}"
        found.append(Option(f"{called} twice as fast", "bytes", name, _links(links, rate=FASTER)))
        if any(link.latency_s for link in links):
            found.append(Option(f"{called} without latency", "latency", name, _links(links, latency=0.0)))
    return found


def wires(machine: Machine) -> dict[str, list[Link]]:
    """Links by wire; a link that shares with none by its ends."""
    found: dict[str, list[Link]] = {}
    for link in machine.links:
        found.setdefault(link.wire or f"{link.src} → {link.dst}", []).append(link)
    return found


def _quicker(d: int) -> Callable[[CostedGraph], CostedGraph]:
    def apply(costed: CostedGraph) -> CostedGraph:
        return replace(costed, runs=tuple(_quick(run, d) for run in costed.runs))

    return apply


def _quick(run: Run, d: int) -> Run:
    """The host's own part of a run does not get quicker."""

    def less(seconds: float) -> float:
        return run.dispatch_s + (seconds - run.dispatch_s) / FASTER if seconds > run.dispatch_s else seconds

    seconds = tuple(less(s) if s is not None and e == d else s for e, s in enumerate(run.seconds))
    modes = tuple((e, lanes, less(s) if e == d else s) for e, lanes, s in run.modes)
    return replace(run, seconds=seconds, modes=modes)


def _device(d: int, **changed: int | None) -> Callable[[CostedGraph], CostedGraph]:
    def apply(costed: CostedGraph) -> CostedGraph:
        devices = list(costed.machine.devices)
        devices[d] = replace(devices[d], **changed)  # type: ignore[arg-type]
        return replace(costed, machine=replace(costed.machine, devices=tuple(devices)))

    return apply


def _links(
    changed: list[Link], rate: float = 1.0, latency: float | None = None
) -> Callable[[CostedGraph], CostedGraph]:
    def apply(costed: CostedGraph) -> CostedGraph:
        links = [
            replace(link, bytes_per_s=link.bytes_per_s * rate,
                    latency_s=link.latency_s if latency is None else latency)
            if link in changed else link
            for link in costed.machine.links
        ]  # fmt: skip
        return replace(costed, machine=replace(costed.machine, links=tuple(links)))

    return apply


def _another(d: int) -> Callable[[CostedGraph], CostedGraph]:
    def apply(costed: CostedGraph) -> CostedGraph:
        model = costed.machine.devices[d]
        taken = {device.name for device in costed.machine.devices}
        number = 1
        while f"{model.kind}:{number}" in taken:
            number += 1
        new = replace(model, name=f"{model.kind}:{number}")
        last = len(costed.machine.devices)
        runs = tuple(
            replace(run, seconds=(*run.seconds, run.seconds[d]),
                    modes=(*run.modes, *((last, lanes, s) for e, lanes, s in run.modes if e == d)))
            for run in costed.runs
        )  # fmt: skip
        links = (*costed.machine.links, *_joined(costed.machine, model, new))
        machine = replace(costed.machine, devices=(*costed.machine.devices, new), links=links)
        costs = tuple(replace(cost, seconds=(*cost.seconds, cost.seconds[d])) for cost in costed.costs)
        return replace(costed, machine=machine, runs=runs, costs=costs)

    return apply


def _joined(machine: Machine, model: Device, new: Device) -> list[Link]:
    """Links of a device like another: the same, on the wires that the other shares, or else on wires of its own; and
    those between the two, as between the other and a third of their kind."""
    shared = {
        wire
        for wire, links in wires(machine).items()
        if any(model.name not in (link.src, link.dst) for link in links)
    }

    def wire_of(link: Link) -> str | None:
        return link.wire if link.wire is None or link.wire in shared else f"{link.wire} of {new.name}"

    kin = {device.name for device in machine.devices if device.kind == model.kind} - {model.name}
    found: list[Link] = []
    between: dict[bool, Link] = {}
    for link in machine.links:
        if link.src == model.name:
            found.append(replace(link, src=new.name, wire=wire_of(link)))
            if link.dst in kin:
                between.setdefault(True, replace(link, dst=new.name, wire=wire_of(link)))
        elif link.dst == model.name:
            found.append(replace(link, dst=new.name, wire=wire_of(link)))
            if link.src in kin:
                between.setdefault(False, replace(link, src=new.name, wire=wire_of(link)))
    return [*found, *between.values()]
