"""The native search as it is called from here: the structures of `native/core.h`, of the same fields in the same
order, lists that are timed, and chains of annealing."""

from __future__ import annotations

import ctypes
import logging
import math
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any

import numpy as np

from ...ir.costed import repeatable
from .. import native
from ..lists.ranking import cost_to_go
from ..model.orders import in_order
from ..model.problem import Problem
from ..model.simulator import Schedule

MOST = 24
"""Copies of runs in a list at most."""
COPIES = 3
"""How often copies of runs are made or left out, where there may be any, in proportion to the changes that any chain
makes (`native/anneal.c`)."""
KEEP = 6
"""Schedules that a chain returns."""
CLOSE = 1e-6
"""Share above the lower bound at which a chain ends."""

Int, Float = ctypes.c_int, ctypes.c_double
Ints, Floats = ctypes.POINTER(Int), ctypes.POINTER(Float)

log = logging.getLogger("autopar")


class Lists(ctypes.Structure):
    _fields_ = [("at", Ints), ("of", Ints)]


class Arrays(ctypes.Structure):
    """A problem: `Network` of `native/core.h`, which says what each is."""

    _fields_ = [
        *((name, Int) for name in ("runs", "devices", "wires", "values", "groups", "most_copies")),
        ("lane_at", Ints),
        *((name, Floats) for name in ("seconds", "to_go", "bytes", "latency", "s_per_byte")),
        *((name, Ints) for name in ("hop_at", "hop_wire", "hop_queue", "hop_stop")),
        *((name, Floats) for name in ("hop_latency", "hop_s_per_byte")),
        *((name, Lists) for name in ("makes", "readers", "deliver", "reads", "sooner", "later")),
        *((name, Lists) for name in ("near", "before", "after", "allowed", "members")),
        *((name, Ints) for name in ("waits", "maker", "home", "repeatable")),
    ]

    def __init__(self, **fields: Any) -> None:
        """Numbers, and sequences of numbers or of sequences, by name."""
        super().__init__()
        self.held: list[np.ndarray[Any, Any]] = []
        for name, kind, *_ in self._fields_:
            given = fields.pop(name)
            if kind is Lists:
                at = [0, *accumulate(map(len, given))]
                setattr(self, name, Lists(self._array(at, Ints), self._array([*chain(*given)], Ints)))
            else:
                setattr(self, name, given if kind is Int else self._array(given, kind))

    def _array(self, numbers: Any, kind: Any) -> Any:
        made = np.array(numbers, dtype=np.int32 if kind is Ints else np.float64).ravel()
        # One more, for none at all would have no address.
        self.held.append(np.append(made, made.dtype.type(0)))
        return self.held[-1].ctypes.data_as(kind)


_ARRAYS: weakref.WeakKeyDictionary[Problem, Arrays] = weakref.WeakKeyDictionary()


def arrays(problem: Problem) -> Arrays:
    """The problem as the C sources have it, made once."""
    if problem not in _ARRAYS:
        _ARRAYS[problem] = _arrays(problem)
    return _ARRAYS[problem]


def _arrays(problem: Problem) -> Arrays:
    none = problem.wires + len(problem.copy_lanes)
    # Wire, copy queue, next device, latency in seconds and seconds per byte of each hop of each way.
    ways: list[list[tuple[int, int, int, float, float]]] = []
    for row in problem.route:
        for target, way in enumerate(row):
            hops = [] if way is not None else [(none, none, target, math.inf, 0.0)]
            for hop in way or ():
                queue = problem.wires + hop.lane if hop.lane >= 0 else none
                wire, queue = (hop.wire, queue) if hop.wire >= 0 else (queue, none)
                hops.append((wire, queue, hop.dst, hop.latency_s, hop.s_per_byte))
            ways.append(hops)
    wires, queues, stops, latency, s_per_byte = [*zip(*chain(*ways))] or [()] * 5
    # Those that a run waits for without reading from them, and those that so wait for it; R is waited for by none.
    makers = [{problem.maker[v] for v in reads} for reads in problem.reads]
    sooner = [[p for p in earlier if p not in own] for earlier, own in zip(problem.before, makers)]
    later: list[list[int]] = [[] for _ in range(problem.runs + 1)]
    for r, earlier in enumerate(sooner):
        for p in earlier:
            later[p].append(r)
    return Arrays(
        runs=problem.runs,
        devices=len(problem.devices),
        wires=none,
        values=len(problem.bytes),
        groups=len(problem.members),
        most_copies=MOST,
        lane_at=[0, *accumulate(map(len, problem.lane_names))],
        seconds=problem.seconds,
        to_go=cost_to_go(problem),
        bytes=problem.bytes,
        latency=problem.latency,
        s_per_byte=problem.s_per_byte,
        hop_at=[0, *accumulate(map(len, ways))],
        hop_wire=wires,
        hop_queue=queues,
        hop_stop=stops,
        hop_latency=latency,
        hop_s_per_byte=s_per_byte,
        makes=[*problem.makes, [v for v, maker in enumerate(problem.maker) if maker < 0]],
        readers=problem.readers,
        deliver=problem.deliver,
        reads=problem.reads,
        sooner=sooner,
        later=later,
        near=[near(problem, r) for r in range(problem.runs)],
        before=problem.before,
        after=problem.after,
        allowed=problem.allowed,
        members=problem.members,
        waits=[len(reads) + len(own) for reads, own in zip(problem.reads, sooner)],
        maker=problem.maker,
        home=problem.home,
        repeatable=[repeatable(problem.costed, run) for run in problem.costed.runs],
    )


def near(problem: Problem, run: int) -> list[int]:
    """All runs beside one."""
    return [*dict.fromkeys((*problem.before[run], *problem.after[run]))]


class List(ctypes.Structure):
    """That of `native/core.h`."""

    _fields_ = [
        ("device", Ints),
        ("eager", Int),
        ("copies", Int),
        ("of", Ints),
        ("keys", Floats),
        ("makespan", Float),
    ]

    @classmethod
    def room(cls, problem: Problem) -> List:
        """A structure with room for any list of a problem."""
        count = problem.runs + 1 + MOST
        return cls(device=(Int * count)(), of=(Int * MOST)(), keys=(Float * count)())

    def fill(self, listed: Listed) -> None:
        """Take over a list, into the room there is."""
        for to, numbers in ((self.device, listed.device), (self.keys, listed.keys), (self.of, listed.of)):
            np.ctypeslib.as_array(to, (len(numbers),))[:] = numbers
        self.eager, self.copies, self.makespan = listed.eager, len(listed.of), listed.makespan


@dataclass(frozen=True, eq=False)
class Listed:
    """A list: each device starts its runs in the order of their `keys`, as early as it can, also where it has several
    lanes; or, if `eager`, whatever it can start, the least key first.

    Numbers up to R - 1 are runs. Where there are copies of runs, R stands for what no run makes, and R + 1 + i for a
    copy of run `of[i]`. `makespan` is in seconds, inf where no way leads or runs wait for each other.
    """

    device: Sequence[int]
    keys: Sequence[float]
    eager: bool = False
    of: Sequence[int] = ()
    makespan: float = math.inf


class Timed(Listed):
    """A list with its times, by number: `start` and `end` in seconds, and `lane`, its place among those of the device.

    It is given up, with an infinite makespan, where it must become longer than `limit`; `ended` runs and copies have
    ended by then. Second hops of a way are asked for with the first, and orders of copies other than first come, first
    served, memory caps and the host's dispatch are not looked at; for all else it is what the simulator finds.
    O(V log V + E). Raises MemoryError where there is no memory for it.
    """

    def __init__(
        self,
        problem: Problem,
        device: Sequence[int],
        keys: Sequence[float],
        limit: float = math.inf,
        eager: bool = False,
        of: Sequence[int] = (),
    ) -> None:
        assert native.LIBRARY
        own, count, ended = List.room(problem), len(device), Int()
        own.fill(Listed(device, keys, eager, of))
        starts, ends = (np.empty(problem.runs + 1 + len(of)) for _ in range(2))
        lanes = np.empty(len(starts), dtype=np.int32)
        failed = native.LIBRARY.autopar_time(
            ctypes.byref(arrays(problem)),
            ctypes.byref(own),
            Float(limit),
            starts.ctypes.data_as(Floats),
            ends.ctypes.data_as(Floats),
            lanes.ctypes.data_as(Ints),
            ctypes.byref(ended),
        )
        if failed:
            raise MemoryError(f"no memory to time {problem.runs} runs on {len(problem.devices)} devices")
        super().__init__(device, keys, eager, of, own.makespan)
        self.problem, self.ended = problem, ended.value
        self.start: list[float] = starts[:count].tolist()
        self.end: list[float] = ends[:count].tolist()
        self.lane: list[int] = lanes[:count].tolist()

    def schedule(self, policy: str) -> Schedule:
        """The orders of the lanes, where there are no copies."""
        runs = sorted(range(self.problem.runs), key=lambda r: (self.start[r], self.end[r], r))
        return in_order(self.problem, policy, ((r, self.device[r], (self.lane[r],)) for r in runs))


class State(ctypes.Structure):
    """`Chain` of `native/anneal.c`."""

    _fields_ = [
        ("now", List),
        ("best", ctypes.POINTER(List)),
        *((name, Int) for name in ("count", "keep", "copies")),
        ("bound", Float),
        ("spent", Float),
        ("draw", ctypes.c_uint64),
    ]


class Chain:
    """One list that is annealed (`native/anneal.c`): changed again and again, runs copied as often as `copies`
    says, until it comes to `bound` seconds. Random numbers follow from `seed`."""

    def __init__(self, problem: Problem, start: Listed, bound: float, seed: int, copies: int = 0) -> None:
        self.problem, self.bound = problem, bound
        self._best = (List * KEEP)(*(List.room(problem) for _ in range(KEEP)))
        self._best[0].fill(start)
        enough = bound * (1 + CLOSE)
        self._state = State(List.room(problem), self._best, 1, KEEP, copies, enough, 0.0, seed)
        self._state.now.fill(start)

    def cool(self, steps: float, heats: tuple[float, float], until: float) -> None:
        """Go on for about so many steps, from one heat to another, each a share of the shortest makespan, or until
        `until` of the monotonic clock; nothing changes, with a line in the log, where there is no memory for it."""
        assert native.LIBRARY
        failed = native.LIBRARY.autopar_cool(
            ctypes.byref(arrays(self.problem)),
            ctypes.byref(self._state),
            *map(Float, (steps, *heats, until - time.monotonic())),
        )
        if failed:
            runs, devices = self.problem.runs, len(self.problem.devices)
            log.warning("no memory to search for a plan of %d runs on %d devices", runs, devices)

    @property
    def makespan(self) -> float:
        """That of the shortest list there was."""
        return float(self._best[0].makespan)

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

    def _listed(self, kept: List) -> Listed:
        count = self.problem.runs + (1 + kept.copies if kept.copies else 0)
        of = tuple(kept.of[: kept.copies])
        return Listed(kept.device[:count], kept.keys[:count], bool(kept.eager), of, kept.makespan)
