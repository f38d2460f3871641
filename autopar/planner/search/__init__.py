"""Python interface of the native search: the structures of `native/core.h`, field by field, timed lists, and annealing
chains."""

from __future__ import annotations

import ctypes
import logging
import math
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from typing import Any

import numpy as np

from .. import native
from ..lists.heft import cost_to_go
from ..model.instance import Instance
from ..model.simulator import Schedule, Simulation, in_order
from ..model.toposort import inverse

KEEP = 6
"""Number of schedules that a chain returns."""
CLOSE = 1e-6
"""Gap to the lower bound, as a share, at which a chain ends."""

Int, Float = ctypes.c_int, ctypes.c_double
Ints, Floats = ctypes.POINTER(Int), ctypes.POINTER(Float)

log = logging.getLogger("autopar")


class _Lists(ctypes.Structure):
    """Structure `Lists` of `native/core.h`."""

    _fields_ = [("at", Ints), ("of", Ints)]


class _Arrays(ctypes.Structure):
    """Structure `Network` of `native/core.h`: a problem."""

    _fields_ = [
        *((name, Int) for name in ("clusters", "devices", "wires", "values", "groups")),
        *((name, Int) for name in ("storages", "capped", "given_up")),
        ("lane_at", Ints),
        *((name, Floats) for name in ("seconds", "to_go", "bytes", "latency", "s_per_byte")),
        *((name, Ints) for name in ("hop_at", "hop_wire", "hop_queue", "hop_stop")),
        *((name, Floats) for name in ("hop_latency", "hop_s_per_byte")),
        *((name, _Lists) for name in ("makes", "readers", "deliver", "reads", "sooner", "later")),
        *((name, _Lists) for name in ("near", "before", "after", "allowed", "members", "keeps")),
        *((name, Ints) for name in ("waits", "maker", "home", "stays")),
        *((name, Floats) for name in ("room", "stored", "size", "scratch")),
    ]

    def __init__(self, instance: Instance, **fields: Any) -> None:
        """Fill each field with a number or (nested) sequence from `fields`, or else from the instance."""
        super().__init__()
        self.held: list[np.ndarray[Any, Any]] = []
        for name, kind, *_ in self._fields_:
            content = fields[name] if name in fields else getattr(instance, name)
            if kind is _Lists:
                at = [0, *accumulate(map(len, content))]
                setattr(self, name, _Lists(self._array(at, Ints), self._array([*chain(*content)], Ints)))
            else:
                setattr(self, name, content if kind is Int else self._array(content, kind))

    def _array(self, numbers: Any, kind: Any) -> Any:
        array = np.array(numbers, dtype=np.int32 if kind is Ints else np.float64).ravel()
        # One element more, since an empty array would have no address.
        self.held.append(np.append(array, array.dtype.type(0)))
        return self.held[-1].ctypes.data_as(kind)


_ARRAYS: weakref.WeakKeyDictionary[Instance, _Arrays] = weakref.WeakKeyDictionary()


def arrays(instance: Instance) -> _Arrays:
    """Return the problem as C arrays, made once."""
    if instance not in _ARRAYS:
        _ARRAYS[instance] = _arrays(instance)
    return _ARRAYS[instance]


def _arrays(instance: Instance) -> _Arrays:
    none = instance.wires + len(instance.copy_lanes)
    # Bus, copy queue, next device, latency in seconds and seconds per byte of each hop of each route.
    routes: list[list[tuple[int, int, int, float, float]]] = []
    for row in instance.route:
        for target, route in enumerate(row):
            hops = [] if route is not None else [(none, none, target, math.inf, 0.0)]
            for hop in route or ():
                queue = instance.wires + hop.lane if hop.lane >= 0 else none
                wire, queue = (hop.wire, queue) if hop.wire >= 0 else (queue, none)
                hops.append((wire, queue, hop.dst, hop.latency_s, hop.s_per_byte))
            routes.append(hops)
    wires, queues, stops, latency, s_per_byte = [*zip(*chain(*routes))] or [()] * 5
    storages = {
        name: at for at, name in enumerate(dict.fromkeys(name for name, _ in chain(*instance.resident)))
    }
    stored = np.zeros((len(storages), len(instance.devices)))
    for name, nbytes in chain(*instance.resident):
        stored[storages[name]] = np.maximum(stored[storages[name]], nbytes)
    for d, initial in enumerate(instance.initial):
        stored[[at for name, at in storages.items() if name in initial], d] = 0.0
    return _Arrays(
        instance,
        devices=len(instance.devices),
        wires=none,
        values=len(instance.bytes),
        groups=len(instance.members),
        storages=len(storages),
        capped=0,
        given_up=instance.costed.consumed,
        lane_at=[0, *accumulate(instance.widths)],
        to_go=cost_to_go(instance),
        hop_at=[0, *accumulate(map(len, routes))],
        hop_wire=wires,
        hop_queue=queues,
        hop_stop=stops,
        hop_latency=latency,
        hop_s_per_byte=s_per_byte,
        makes=[*instance.makes, [v for v, maker in enumerate(instance.maker) if maker < 0]],
        # Values that exist before the call are read, but nothing else waits for them.
        later=[*inverse(instance.sooner), []],
        near=[dict.fromkeys((*earlier, *later)) for earlier, later in zip(instance.before, instance.after)],
        waits=[len(reads) + len(items) for reads, items in zip(instance.reads, instance.sooner)],
        keeps=[[storages[name] for name, _ in items] for items in instance.resident],
        stored=stored,
        size=[0 if name in instance.views else items for name, items in zip(instance.values, instance.bytes)],
        scratch=instance.workspace,
    )


@contextmanager
def capped(instance: Instance) -> Iterator[None]:
    """Within the block, chains reject moves that increase the bytes above the caps."""
    arrays(instance).capped = 1
    try:
        yield
    finally:
        arrays(instance).capped = 0


class _List(ctypes.Structure):
    """Structure `List` of `native/core.h`."""

    _fields_ = [
        ("device", Ints),
        ("eager", Int),
        ("keys", Floats),
        ("makespan", Float),
        ("over", Float),
    ]

    @classmethod
    def holding(cls, listed: Listed) -> _List:
        """Return a structure that holds this list and has room for any other list of the problem."""
        count = listed.instance.clusters
        structure = cls((Int * count)(), listed.eager, (Float * count)())
        for to, numbers in ((structure.device, listed.device), (structure.keys, listed.keys)):
            np.ctypeslib.as_array(to, (len(numbers),))[:] = numbers
        structure.makespan, structure.over = listed.makespan, listed.over
        return structure


@dataclass(frozen=True, eq=False)
class Listed:
    """A list: each device starts its clusters on its lanes in the order of their `keys`, as early as
    possible; if `eager`, it starts any ready cluster, the least key first.

    `makespan` is in seconds, inf without a route or in a deadlock; `over` is the total bytes above the caps of
    a list made while the instance is `capped`. `evaluate` adds, by number, `start` and `end` in seconds, and
    `lane` within the device.
    """

    instance: Instance
    device: Sequence[int]
    keys: Sequence[float]
    eager: bool = False
    makespan: float = math.inf
    over: float = 0.0
    start: Sequence[float] = ()
    end: Sequence[float] = ()
    lane: Sequence[int] = ()

    def schedule(self, policy: str) -> Schedule:
        """Return the orders of the lanes of an evaluated list."""
        clusters = sorted(range(self.instance.clusters), key=lambda r: (self.start[r], self.end[r], r))
        return in_order(self.instance, policy, ((r, self.device[r], self.lane[r]) for r in clusters))


def evaluate(instance: Instance, device: Sequence[int], keys: Sequence[float], eager: bool = False) -> Listed:
    """Return a list with its times, with an infinite makespan if it never ends.

    Ignores dispatch and orders of transfers other than FIFO, and requests second hops with the first; otherwise
    equal to the simulator. O(V log V + E). Raises MemoryError if memory runs out.
    """
    assert native.LIBRARY
    listed = Listed(instance, device, keys, eager)
    structure = _List.holding(listed)
    starts, ends = (np.empty(instance.clusters) for _ in range(2))
    lanes = np.empty(len(starts), dtype=np.int32)
    failed = native.LIBRARY.autopar_time(
        ctypes.byref(arrays(instance)),
        ctypes.byref(structure),
        starts.ctypes.data_as(Floats),
        ends.ctypes.data_as(Floats),
        lanes.ctypes.data_as(Ints),
    )
    if failed:
        raise MemoryError(
            f"no memory to time {instance.clusters} clusters on {len(instance.devices)} devices"
        )
    return replace(
        listed,
        makespan=structure.makespan,
        over=structure.over,
        start=starts.tolist(),
        end=ends.tolist(),
        lane=lanes.tolist(),
    )


def non_delay(simulation: Simulation) -> Listed:
    """Return the non-delay list of a simulated schedule: with its devices, and its starts as keys."""
    return evaluate(
        simulation.instance, simulation.device, simulation.start[: simulation.instance.clusters], eager=True
    )


class _State(ctypes.Structure):
    """Structure `Chain` of `native/anneal.c`."""

    _fields_ = [
        ("now", _List),
        ("best", ctypes.POINTER(_List)),
        *((name, Int) for name in ("count", "keep")),
        ("bound", Float),
        ("spent", Float),
        ("draw", ctypes.c_uint64),
    ]


class Annealing:
    """One annealing chain (`native/anneal.c`), which ends at `bound` seconds. `seed`: of its random numbers."""

    def __init__(self, start: Listed, bound: float, seed: int) -> None:
        self.instance, self.bound = start.instance, bound
        self._best = (_List * KEEP)(*(_List.holding(start) for _ in range(KEEP)))
        enough = bound * (1 + CLOSE)
        self._state = _State(_List.holding(start), self._best, 1, KEEP, enough, 0.0, seed)

    def cool(self, steps: float, heats: tuple[float, float], until: float) -> None:
        """Continue for about `steps` steps, from one temperature to another, each a share of the shortest makespan, or
        until `until` of the monotonic clock. If memory runs out, it only logs a warning."""
        assert native.LIBRARY
        failed = native.LIBRARY.autopar_cool(
            ctypes.byref(arrays(self.instance)),
            ctypes.byref(self._state),
            *map(Float, (steps, *heats, until - time.monotonic())),
        )
        if failed:
            clusters, devices = self.instance.clusters, len(self.instance.devices)
            log.warning("no memory to search for a plan of %d clusters on %d devices", clusters, devices)

    @property
    def makespan(self) -> float:
        """Makespan of the shortest list so far, in seconds."""
        return float(self._best[0].makespan)

    @property
    def rank(self) -> tuple[float, float]:
        """Sort key: bytes above the caps and makespan of the best list so far."""
        return self._best[0].over, self._best[0].makespan

    @property
    def best(self) -> list[Listed]:
        """The shortest lists so far, the shortest first."""
        instance, count = self.instance, self.instance.clusters
        return [
            Listed(
                instance, best.device[:count], best.keys[:count], bool(best.eager), best.makespan, best.over
            )
            for best in self._best[: self._state.count]
        ]
