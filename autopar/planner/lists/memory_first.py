"""List scheduling by free memory, regardless of time, for graphs that hardly fit.

Lifetimes depend on times, which are not known yet. A value therefore counts from the placement of its
cluster, or of the first reader that needs a copy, to the placement of its last reader.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from ..model.instance import Instance
from ..model.simulator import Schedule, in_order
from ..model.toposort import depth_first_order


class _MemoryUse:
    """Bytes in use on each device; `share` of each cap may be used."""

    def __init__(self, instance: Instance, share: float) -> None:
        self.instance = instance
        self.caps = [math.inf if cap is None else cap * share for cap in instance.caps]
        self.used = [sum(storages.values()) for storages in instance.initial]
        self.stored = [set(storages) for storages in instance.initial]
        stay = not instance.costed.consumed
        self.left = [
            math.inf
            if (instance.deliver[v] and stay) or instance.carry[v] or instance.stays[v]
            else len(readers)
            for v, readers in enumerate(instance.readers)
        ]

    def need(self, r: int, d: int, there: Sequence[dict[int, float]]) -> int:
        """Return the bytes that a cluster adds to a device while it runs."""
        instance = self.instance
        state = sum(nbytes for storage, nbytes in instance.resident[r] if storage not in self.stored[d])
        reads = sum(instance.bytes[v] for v in instance.reads[r] if d not in there[v])
        return state + reads + sum(instance.bytes[v] for v in instance.makes[r]) + instance.workspace[r]

    def fitting(self, r: int, allowed: Sequence[int], there: Sequence[dict[int, float]]) -> Sequence[int]:
        """Return the devices with room for a cluster; if there is none, the one that is exceeded least."""
        over = [self.used[d] + self.need(r, d, there) - self.caps[d] for d in allowed]
        fits = [d for d, excess in zip(allowed, over) if excess <= 0]
        return fits or (allowed[over.index(min(over))],)

    def copy(self, v: int, d: int) -> None:
        """Add a copy of a value to a device."""
        self.used[d] += self.instance.bytes[v]

    def settle(self, r: int, d: int, there: Sequence[dict[int, float]]) -> None:
        """Add a cluster placed on `d`, and free the values that nothing reads after it."""
        instance = self.instance
        for storage, nbytes in instance.resident[r]:
            if storage not in self.stored[d]:
                self.stored[d].add(storage)
                self.used[d] += nbytes
        for v in instance.makes[r]:
            self.used[d] += instance.bytes[v]
        for v in instance.reads[r]:
            self.left[v] -= 1
            if not self.left[v]:
                for holder in there[v]:
                    if holder != instance.home[v]:
                        self.used[holder] -= instance.bytes[v]


def tracked(instance: Instance, room: float) -> _MemoryUse | None:
    """Return the bytes in use before the first cluster, with `room` of each cap; None if no cap can be exceeded."""
    return _MemoryUse(instance, room) if instance.tight else None


def fill_devices(instance: Instance, room: float = 1.0) -> Schedule:
    """Place clusters in graph order, filling one device after the other, the roomiest first.

    Neighbours stay together, so few values are transferred or held twice.
    """
    space = _MemoryUse(instance, room)
    last = _roomiest(space, range(len(instance.devices)))

    def choose(r: int, able: Sequence[int], there: Sequence[dict[int, float]]) -> int:
        nonlocal last
        if last not in able:
            last = _roomiest(space, able)
        return last

    return _laid("fill", space, range(instance.clusters), choose)


def follow_data(instance: Instance, room: float = 1.0) -> Schedule:
    """Place each cluster just before it is needed, where most of the computed bytes that it reads are.

    This suits graphs that save much, such as a forward for its backward. Ties go to the device of the
    previous cluster, lest one device run ahead. Clusters that read nothing computed fill the devices in turn
    up to `room` of each cap; the rest is left for later readers.
    """
    space = _MemoryUse(instance, 1.0)
    last = current = _roomiest(space, range(len(instance.devices)))

    def choose(r: int, able: Sequence[int], there: Sequence[dict[int, float]]) -> int:
        nonlocal last, current
        computed = [v for v in instance.reads[r] if instance.maker[v] >= 0]
        near = {d: sum(instance.bytes[v] for v in computed if d in there[v]) for d in able}
        nearest = max(able, key=lambda d: (near[d], d == last, -d))
        if not near[nearest]:
            free = [d for d in able if space.used[d] + space.need(r, d, there) <= room * space.caps[d]]
            if current not in free:
                current = _roomiest(space, free or able)
            nearest = current
        last = nearest
        return nearest

    return _laid("follow", space, just_in_time(instance), choose)


def _laid(policy: str, space: _MemoryUse, order: Iterable[int], choose: Callable[..., int]) -> Schedule:
    """Place clusters in this order, on the first lane of a device with room that `choose` picks."""
    instance = space.instance
    there: list[dict[int, float]] = [{home: 0.0} if home >= 0 else {} for home in instance.home]
    placed: list[tuple[int, int, int]] = []
    chosen: dict[int, int] = {}
    for r in order:
        group = instance.group[r]
        allowed = (chosen[group],) if group in chosen else instance.allowed[r]
        d = choose(r, space.fitting(r, allowed, there), there)
        if group >= 0:
            chosen[group] = d
        for v in instance.reads[r]:
            if d not in there[v]:
                there[v][d] = 0.0
                space.copy(v, d)
        space.settle(r, d, there)
        for v in instance.makes[r]:
            there[v][d] = 0.0
        placed.append((r, d, 0))
    return in_order(instance, policy, placed)


def _roomiest(space: _MemoryUse, devices: Iterable[int]) -> int:
    """Return the first of the devices with the most room."""
    return max(devices, key=lambda d: (space.caps[d] - space.used[d], -d))


def just_in_time(instance: Instance) -> list[int]:
    """Order clusters depth first from the last ones, visiting the longest chain of predecessors first. Each
    then comes shortly before its first reader, and few values are alive.

    The order of Sethi and Ullman for expressions (J. ACM 17(4), 1970), with chain lengths in place of
    registers.
    """
    depth = [0] * instance.clusters
    for r in range(instance.clusters):
        depth[r] = 1 + max((depth[p] for p in instance.before[r]), default=0)
    return depth_first_order([sorted(before, key=lambda p: (-depth[p], p)) for before in instance.before])
