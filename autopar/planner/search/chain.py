"""One chain of simulated annealing over lists, which goes on in C: `native/anneal.c`."""

from __future__ import annotations

import ctypes
import logging
import random
import time

from .. import native
from .evaluate import List, Listed, room
from .network import Network

RUINS = 2
"""How often runs are placed anew, in proportion to the changes that any chain makes (`native/anneal.c`)."""
COPIES = 3
"""How often, as well, copies of runs are made or left out, where there may be any."""
KEEP = 6
"""Schedules returned."""
CLOSE = 1e-6
"""Share above the lower bound at which the search ends."""
WORDS = 624
"""Of the state of the generator."""

log = logging.getLogger("autopar")


class State(ctypes.Structure):
    """`Chain` of `native/anneal.c`."""

    _fields_ = [
        ("now", List),
        ("best", ctypes.POINTER(List)),
        *((name, ctypes.c_int) for name in ("count", "keep", "ruins", "copies")),
        ("bound", ctypes.c_double),
        ("spent", ctypes.c_double),
    ]


class Draw(ctypes.Structure):
    """That of `native/core.h`."""

    _fields_ = [("state", ctypes.c_uint32 * (WORDS + 1))]


class Chain:
    """One list that is changed again and again, runs placed anew and copied as often as `ruins` and `copies` say, until
    it comes to `bound` seconds. It takes over the state of `draw`."""

    def __init__(
        self,
        network: Network,
        start: Listed,
        bound: float,
        draw: random.Random,
        ruins: int,
        copies: int = 0,
    ) -> None:
        self.network, self.bound = network, bound
        self._best = (List * KEEP)(*(room(network) for _ in range(KEEP)))
        self._best[0].fill(start)
        self._state = State(
            room(network), self._best, 1, KEEP, ruins, copies, bound=bound * (1 + CLOSE), spent=0.0
        )
        self._state.now.fill(start)
        self._draw = Draw((ctypes.c_uint32 * (WORDS + 1))(*draw.getstate()[1]))

    def cool(self, steps: float, heats: tuple[float, float], until: float) -> None:
        """Go on for about so many steps, from one heat to another, each a share of the shortest makespan, or until
        `until` of the monotonic clock; nothing changes, with a line in the log, where there is no memory for it."""
        assert native.LIBRARY
        failed = native.LIBRARY.autopar_cool(
            *map(ctypes.byref, (self.network.arrays, self._state, self._draw)),
            *map(ctypes.c_double, (steps, *heats, until - time.monotonic())),
        )
        if failed:
            runs, devices = self.network.runs, self.network.devices
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
        count = self.network.runs + (1 + kept.copies if kept.copies else 0)
        of = tuple(kept.of[: kept.copies])
        return Listed(kept.device[:count], kept.keys[:count], bool(kept.eager), of, kept.makespan)
