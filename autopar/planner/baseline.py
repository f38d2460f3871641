"""Single-device baseline: seconds if the model were moved to one device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..ir.costed import CostedGraph
from ..ir.device import Device, Link
from ..ir.graph import Graph
from ..ir.machine import Machine
from . import alone

Price = Callable[[Graph, str], CostedGraph]
"""Costs a graph whose tasks and state are all on one device."""


def seconds_moved(graph: Graph, machine: Machine, price: Price) -> tuple[tuple[str, float | None], ...]:
    """Of each device the seconds of a call after `model.to(device)`: state is there and stays there, what the call is
    given comes from where it is and results go where they are wanted, each once. None where that does not fit, or
    cannot run. Devices that are alike are asked once."""
    free = replace(
        graph, tasks=tuple(replace(task, home=False) if task.home else task for task in graph.tasks)
    )
    known: dict[tuple[Device, tuple[Link, ...], bool], float | None] = {}
    found = []
    for device in machine.devices:
        links = (link for link in machine.links if machine.host in (link.src, link.dst))
        own = (_blank(link, device.name) for link in links if device.name in (link.src, link.dst))
        key = replace(device, name=""), tuple(own), device.name == machine.host
        if key not in known:
            known[key] = alone(price(free, device.name), device.name)
        found.append((device.name, known[key]))
    return tuple(found)


def _blank(link: Link, device: str) -> Link:
    """A link without the name of one of its ends."""
    src, dst = (("" if end == device else end) for end in (link.src, link.dst))
    return replace(link, src=src, dst=dst, wire=None)
