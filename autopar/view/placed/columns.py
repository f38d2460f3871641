"""Columns of devices and lanes: an order in which transfers join neighbours, widths by what is
used."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise, permutations

from ...ir.plan import Plan
from ..drawing.palette import Shade, shades
from .fold import Card

_MOST_TRIED = 6


@dataclass(frozen=True, slots=True)
class Column:
    """A device from `x` on, `w` wide; `lanes` are (lane, x, w) for those that compute."""

    device: str
    x: float
    w: float
    lanes: tuple[tuple[str, float, float], ...]
    shade: Shade

    @property
    def right(self) -> float:
        """Its right edge."""
        return self.x + self.w


def columns(plan: Plan, cards: dict[str, tuple[Card, ...]], left: float, room: float) -> dict[str, Column]:
    """The columns of all devices from `left` on, in the order they are drawn, stretched towards `room`
    in all."""
    machine = plan.costed.machine
    look = shades((device.name, device.traits.host) for device in machine.devices)
    touched = {device for t in plan.transfers for device in (t.src, t.dst)} | {
        lane.rsplit("/", 1)[0] for lane in cards
    }
    order = _order(plan, touched)
    many = len(touched) > 4
    wide, gap = (176.0, 156.0) if many else (206.0, 176.0)
    found: dict[str, Column] = {}
    lanes = {name: [lane for lane in machine.device[name].compute_lanes if lane in cards] for name in order}
    each = {name: (140.0, wide)[len(lanes[name])] if len(lanes[name]) < 2 else 142.0 for name in order}
    widths = {name: each[name] * max(1, len(lanes[name])) if name in touched else 128.0 for name in order}
    gaps = [gap if one in touched and other in touched else 40.0 for one, other in pairwise(order)]
    stretch = min(1.35, max(1.0, room / (sum(widths.values()) + sum(gaps))))
    x = left
    for name, after in zip(order, (*gaps, 0.0)):
        w = each[name] * stretch
        places = tuple((lane, x + index * w, w) for index, lane in enumerate(lanes[name]))
        found[name] = Column(name, x, widths[name] * stretch, places, look[name])
        x += (widths[name] + after) * stretch
    return found


def _order(plan: Plan, touched: set[str]) -> list[str]:
    """Devices so that transfers skip as few columns as can be; then the CPU in the middle of the
    accelerators."""
    machine = plan.costed.machine
    cpus = [device.name for device in machine.devices if device.traits.host]
    others = [device.name for device in machine.devices if not device.traits.host]
    middle = (len(others) + 1) // 2
    usual = [*others[:middle], *cpus, *others[middle:]]
    busy, idle = [name for name in usual if name in touched], [name for name in usual if name not in touched]
    traffic = Counter((t.src, t.dst) for t in plan.transfers)
    if len(busy) <= _MOST_TRIED:
        tries = [list(order) for order in permutations(busy)]
    else:
        rest = [name for name in busy if name not in cpus]
        here = [name for name in busy if name in cpus]
        tries = [busy, *([*rest[:cut], *here, *rest[cut:]] for cut in range(len(rest) + 1))]

    def cost(order: list[str]) -> tuple[int, int]:
        at = {name: position for position, name in enumerate(order)}
        skipped = sum(count * max(0, abs(at[src] - at[dst]) - 1) for (src, dst), count in traffic.items())
        return skipped, sum(abs(at[name] - position) for position, name in enumerate(busy))

    return [*min(tries, key=cost), *idle]
