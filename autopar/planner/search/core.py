"""The native search as it is called from here: the structures of `native/core.h`, of the same fields in the same
order, lists that are timed, and chains of annealing."""

from __future__ import annotations

import ctypes
import logging
import math
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any

import numpy as np

from ...ir.costed import repeatable
from .. import native
from ..lists.ranking import cost_to_go
from ..model.instance import Instance
from ..model.simulator import Schedule, in_order

MOST = 24
"""Copies of clusters in a list at most."""
COPIES = 3
"""Weight of the move that makes or leaves out copies of clusters, where there may be any, relative to the moves that
any chain makes (`native/anneal.c`)."""
KEEP = 6
"""Schedules that a chain returns."""
CLOSE = 1e-6
"""Share above the lower bound at which a chain ends."""

Int, Float = ctypes.c_int, ctypes.c_double
Ints, Floats = ctypes.POINTER(Int), ctypes.POINTER(Float)

log = logging.getLogger("autopar")


class _Lists(ctypes.Structure):
    """`Lists` of `native/core.h`."""

    _fields_ = [("at", Ints), ("of", Ints)]


class _Arrays(ctypes.Structure):
    """A problem: `Network` of `native/core.h`, which says what each is."""

    _fields_ = [
        *((name, Int) for name in ("clusters", "devices", "wires", "values", "groups", "most_copies")),
        *((name, Int) for name in ("storages", "capped", "given_up")),
        ("lane_at", Ints),
        *((name, Floats) for name in ("seconds", "to_go", "bytes", "latency", "s_per_byte")),
        *((name, Ints) for name in ("hop_at", "hop_wire", "hop_queue", "hop_stop")),
        *((name, Floats) for name in ("hop_latency", "hop_s_per_byte")),
        *((name, _Lists) for name in ("makes", "readers", "deliver", "reads", "sooner", "later")),
        *((name, _Lists) for name in ("near", "before", "after", "allowed", "members", "keeps")),
        *((name, Ints) for name in ("waits", "maker", "home", "repeatable", "stays")),
        *((name, Floats) for name in ("room", "stored", "size", "scratch")),
    ]

    def __init__(self, **fields: Any) -> None:
        """Numbers, and sequences of numbers or of sequences, by name."""
        super().__init__()
        self.held: list[np.ndarray[Any, Any]] = []
        for name, kind, *_ in self._fields_:
            given = fields.pop(name)
            if kind is _Lists:
                at = [0, *accumulate(map(len, given))]
                setattr(self, name, _Lists(self._array(at, Ints), self._array([*chain(*given)], Ints)))
            else:
                setattr(self, name, given if kind is Int else self._array(given, kind))

    def _array(self, numbers: Any, kind: Any) -> Any:
        made = np.array(numbers, dtype=np.int32 if kind is Ints else np.float64).ravel()
        # One more, for none at all would have no address.
        self.held.append(np.append(made, made.dtype.type(0)))
        return self.held[-1].ctypes.data_as(kind)


_ARRAYS: weakref.WeakKeyDictionary[Instance, _Arrays] = weakref.WeakKeyDictionary()


def arrays(instance: Instance) -> _Arrays:
    """The problem as the C sources have it, made once."""
    if instance not in _ARRAYS:
        _ARRAYS[instance] = _arrays(instance)
    return _ARRAYS[instance]


def _arrays(instance: Instance) -> _Arrays:
    none = instance.wires + len(instance.copy_lanes)
    # Wire, copy queue, next device, latency in seconds and seconds per byte of each hop of each way.
    ways: list[list[tuple[int, int, int, float, float]]] = []
    for row in instance.route:
        for target, way in enumerate(row):
            hops = [] if way is not None else [(none, none, target, math.inf, 0.0)]
            for hop in way or ():
                queue = instance.wires + hop.lane if hop.lane >= 0 else none
                wire, queue = (hop.wire, queue) if hop.wire >= 0 else (queue, none)
                hops.append((wire, queue, hop.dst, hop.latency_s, hop.s_per_byte))
            ways.append(hops)
    wires, queues, stops, latency, s_per_byte = [*zip(*chain(*ways))] or [()] * 5
    # Those that a cluster waits for without reading from them, and those that so wait for it; R is waited for by none.
    makers = [{instance.maker[v] for v in reads} for reads in instance.reads]
    sooner = [[p for p in earlier if p not in own] for earlier, own in zip(instance.before, makers)]
    later: list[list[int]] = [[] for _ in range(instance.clusters + 1)]
    for r, earlier in enumerate(sooner):
        for p in earlier:
            later[p].append(r)
    storages = {name: at for at, name in enumerate(dict.fromkeys(name for name, _ in chain(*instance.kept)))}
    stored = np.zeros((len(storages), len(instance.devices)))
    for name, nbytes in chain(*instance.kept):
        stored[storages[name]] = np.maximum(stored[storages[name]], nbytes)
    for d, given in enumerate(instance.given):
        stored[[at for name, at in storages.items() if name in given], d] = 0.0
    held = [0 if instance.costed.consumed else sum(given.values()) for given in instance.given]
    return _Arrays(
        clusters=instance.clusters,
        devices=len(instance.devices),
        wires=none,
        values=len(instance.bytes),
        groups=len(instance.members),
        most_copies=MOST,
        lane_at=[0, *accumulate(map(len, instance.lane_names))],
        seconds=instance.seconds,
        to_go=cost_to_go(instance),
        bytes=instance.bytes,
        latency=instance.latency,
        s_per_byte=instance.s_per_byte,
        hop_at=[0, *accumulate(map(len, ways))],
        hop_wire=wires,
        hop_queue=queues,
        hop_stop=stops,
        hop_latency=latency,
        hop_s_per_byte=s_per_byte,
        makes=[*instance.makes, [v for v, maker in enumerate(instance.maker) if maker < 0]],
        readers=instance.readers,
        deliver=instance.deliver,
        reads=instance.reads,
        sooner=sooner,
        later=later,
        near=[near(instance, r) for r in range(instance.clusters)],
        before=instance.before,
        after=instance.after,
        allowed=instance.allowed,
        members=instance.members,
        waits=[len(reads) + len(own) for reads, own in zip(instance.reads, sooner)],
        maker=instance.maker,
        home=instance.home,
        repeatable=[repeatable(instance.costed, cluster) for cluster in instance.costed.clusters],
        storages=len(storages),
        capped=0,
        given_up=instance.costed.consumed,
        keeps=[[storages[name] for name, _ in own] for own in instance.kept],
        stays=instance.stays,
        room=[math.inf if cap is None else cap - own for cap, own in zip(instance.caps, held)],
        stored=stored,
        size=[0 if name in instance.views else own for name, own in zip(instance.values, instance.bytes)],
        scratch=instance.workspace,
    )


@contextmanager
def capped(instance: Instance) -> Iterator[None]:
    """Have chains accept nothing that takes more bytes above the caps than what is at hand."""
    arrays(instance).capped = 1
    try:
        yield
    finally:
        arrays(instance).capped = 0


def near(instance: Instance, cluster: int) -> list[int]:
    """All clusters beside one."""
    return [*dict.fromkeys((*instance.before[cluster], *instance.after[cluster]))]


class _List(ctypes.Structure):
    """That of `native/core.h`."""

    _fields_ = [
        ("device", Ints),
        ("eager", Int),
        ("copies", Int),
        ("of", Ints),
        ("keys", Floats),
        ("makespan", Float),
        ("over", Float),
    ]

    @classmethod
    def room(cls, instance: Instance) -> _List:
        """A structure with room for any list of a problem."""
        count = instance.clusters + 1 + MOST
        return cls(device=(Int * count)(), of=(Int * MOST)(), keys=(Float * count)())

    def fill(self, listed: Listed) -> None:
        """Take over a list, into the room there is."""
        for to, numbers in ((self.device, listed.device), (self.keys, listed.keys), (self.of, listed.of)):
            np.ctypeslib.as_array(to, (len(numbers),))[:] = numbers
        self.eager, self.copies = listed.eager, len(listed.of)
        self.makespan, self.over = listed.makespan, listed.over


@dataclass(frozen=True, eq=False)
class Listed:
    """A list: each device starts its clusters in the order of their `keys`, as early as it can, also where it has
    several lanes; or, if `eager`, whatever it can start, the least key first.

    Numbers up to R - 1 are clusters. Where there are copies of clusters, R stands for what no cluster makes, and R + 1
    + i for a copy of cluster `of[i]`. `makespan` is in seconds, inf where no way leads or clusters wait for each other;
    `over` are the bytes above the caps, all devices together, of a list made while the instance is `capped`.
    """

    device: Sequence[int]
    keys: Sequence[float]
    eager: bool = False
    of: Sequence[int] = ()
    makespan: float = math.inf
    over: float = 0.0


class Timed(Listed):
    """A list with its times, by number: `start` and `end` in seconds, and `lane`, its place among those of the device.

    It is given up, with an infinite makespan, where it must become longer than `limit`; `ended` clusters and copies
    have ended by then. Second hops of a way are asked for with the first, and orders of copies other than first
    come, first served, and the host's dispatch are not looked at; for all else it is what the simulator finds.
    O(V log V + E). Raises MemoryError where there is no memory for it.
    """

    def __init__(
        self,
        instance: Instance,
        device: Sequence[int],
        keys: Sequence[float],
        limit: float = math.inf,
        eager: bool = False,
        of: Sequence[int] = (),
    ) -> None:
        assert native.LIBRARY
        own, count, ended = _List.room(instance), len(device), Int()
        own.fill(Listed(device, keys, eager, of))
        starts, ends = (np.empty(instance.clusters + 1 + len(of)) for _ in range(2))
        lanes = np.empty(len(starts), dtype=np.int32)
        failed = native.LIBRARY.autopar_time(
            ctypes.byref(arrays(instance)),
            ctypes.byref(own),
            Float(limit),
            starts.ctypes.data_as(Floats),
            ends.ctypes.data_as(Floats),
            lanes.ctypes.data_as(Ints),
            ctypes.byref(ended),
        )
        if failed:
            raise MemoryError(
                f"no memory to time {instance.clusters} clusters on {len(instance.devices)} devices"
            )
        super().__init__(device, keys, eager, of, own.makespan, own.over)
        self.instance, self.ended = instance, ended.value
        self.start: list[float] = starts[:count].tolist()
        self.end: list[float] = ends[:count].tolist()
        self.lane: list[int] = lanes[:count].tolist()

    def schedule(self, policy: str) -> Schedule:
        """The orders of the lanes, where there are no copies."""
        clusters = sorted(range(self.instance.clusters), key=lambda r: (self.start[r], self.end[r], r))
        return in_order(self.instance, policy, ((r, self.device[r], (self.lane[r],)) for r in clusters))


class _State(ctypes.Structure):
    """`Chain` of `native/anneal.c`."""

    _fields_ = [
        ("now", _List),
        ("best", ctypes.POINTER(_List)),
        *((name, Int) for name in ("count", "keep", "copies")),
        ("bound", Float),
        ("spent", Float),
        ("draw", ctypes.c_uint64),
    ]


class Chain:
    """One list that is annealed (`native/anneal.c`): changed again and again, clusters copied as often as `copies`
    says, until it comes to `bound` seconds. Random numbers follow from `seed`."""

    def __init__(self, instance: Instance, start: Listed, bound: float, seed: int, copies: int = 0) -> None:
        self.instance, self.bound = instance, bound
        self._best = (_List * KEEP)(*(_List.room(instance) for _ in range(KEEP)))
        self._best[0].fill(start)
        enough = bound * (1 + CLOSE)
        self._state = _State(_List.room(instance), self._best, 1, KEEP, copies, enough, 0.0, seed)
        self._state.now.fill(start)

    def cool(self, steps: float, heats: tuple[float, float], until: float) -> None:
        """Go on for about so many steps, from one heat to another, each a share of the shortest makespan, or until
        `until` of the monotonic clock; nothing changes, with a line in the log, where there is no memory for it."""
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
        """That of the shortest list there was."""
        return float(self._best[0].makespan)

    @property
    def rank(self) -> tuple[float, float]:
        """Sort key of chains: bytes above the caps and makespan of the best list there was."""
        return self._best[0].over, self._best[0].makespan

    @property
    def spent(self) -> float:
        """Steps taken when it last cooled."""
        return float(self._state.spent)

    @property
    def now(self) -> Listed:
        """The list at hand."""
        return self._listed(self._state.now)

    @property
    def best(self) -> list[Listed]:
        """The shortest lists there were, the shortest first."""
        return [self._listed(kept) for kept in self._best[: self._state.count]]

    def _listed(self, kept: _List) -> Listed:
        count = self.instance.clusters + (1 + kept.copies if kept.copies else 0)
        of = tuple(kept.of[: kept.copies])
        return Listed(kept.device[:count], kept.keys[:count], bool(kept.eager), of, kept.makespan, kept.over)
