"""One list of runs, and when they are as wires serve it that nobody holds back."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .. import native
from ..model.orders import in_order
from ..model.simulator import Schedule
from .network import MOST, Floats, Ints, Network


class List(ctypes.Structure):
    """That of `native/core.h`."""

    _fields_ = [
        ("device", Ints),
        ("eager", ctypes.c_int),
        ("copies", ctypes.c_int),
        ("of", Ints),
        ("keys", Floats),
        ("makespan", ctypes.c_double),
    ]

    def fill(self, listed: Listed) -> None:
        """Take over a list, into the room there is."""
        for to, numbers in ((self.device, listed.device), (self.keys, listed.keys), (self.of, listed.of)):
            np.ctypeslib.as_array(to, (len(numbers),))[:] = numbers
        self.eager, self.copies, self.makespan = listed.eager, len(listed.of), listed.makespan


def room(network: Network) -> List:
    """A structure with room for any list of a network."""
    count = network.runs + 1 + MOST
    return List(device=(ctypes.c_int * count)(), of=(ctypes.c_int * MOST)(), keys=(ctypes.c_double * count)())


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
        network: Network,
        device: Sequence[int],
        keys: Sequence[float],
        limit: float = math.inf,
        eager: bool = False,
        of: Sequence[int] = (),
    ) -> None:
        assert native.LIBRARY
        own, count, ended = room(network), len(device), ctypes.c_int()
        own.fill(Listed(device, keys, eager, of))
        starts, ends = (np.empty(network.runs + 1 + len(of)) for _ in range(2))
        lanes = np.empty(len(starts), dtype=np.int32)
        failed = native.LIBRARY.autopar_time(
            ctypes.byref(network.arrays),
            ctypes.byref(own),
            ctypes.c_double(limit),
            starts.ctypes.data_as(Floats),
            ends.ctypes.data_as(Floats),
            lanes.ctypes.data_as(Ints),
            ctypes.byref(ended),
        )
        if failed:
            raise MemoryError(f"no memory to time {network.runs} runs on {network.devices} devices")
        super().__init__(device, keys, eager, of, own.makespan)
        self.network, self.ended = network, ended.value
        self.start: list[float] = starts[:count].tolist()
        self.end: list[float] = ends[:count].tolist()
        self.lane: list[int] = lanes[:count].tolist()

    def schedule(self, policy: str) -> Schedule:
        """The orders of the lanes, where there are no copies."""
        runs = sorted(range(self.network.runs), key=lambda r: (self.start[r], self.end[r], r))
        return in_order(self.network.problem, policy, ((r, self.device[r], (self.lane[r],)) for r in runs))
