"""`chain.Chain` in C: the same steps to the same schedules, some thirty times as fast."""

from __future__ import annotations

import ctypes
import logging
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np

from ....system.cores import cores
from ...native.build import built
from .. import chain
from ..evaluate import Timed
from ..flat import WORDS, Draw, Flat, Floats, Ints, Kept, State, ways_of
from ..network import Network

log = logging.getLogger("autopar")

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, eq=False)
class Listed:
    """A list that was timed, as `Timed` takes it; `makespan` in seconds."""

    device: Sequence[int]
    keys: Sequence[float]
    eager: bool
    makespan: float
    of: Sequence[int]


class Chain:
    """As `chain.Chain`, but that `best` are not `Timed` but what that can be made of."""

    def __init__(
        self, flat: Flat, start: Timed, bound: float, draw: random.Random, ruins: int, copies: int = 0
    ) -> None:
        self.flat, self.bound, self.draw, self.ways = flat, bound, draw, ways_of(ruins, copies)
        self.now = Listed(start.device, start.keys, start.eager, start.makespan, start.of)
        self.best = [self.now]
        self.spent = 0.0

    def cool(self, steps: float, heats: tuple[float, float], until: float) -> None:
        """As there; nothing changes, with a line in the log, where there is no memory for it."""
        found, network, keep, most = built(), self.flat.network, chain.KEEP, self.ways.most
        assert found
        device = np.zeros((keep + 1, network.runs + 1 + most), dtype=np.int32)
        keys = np.zeros((keep + 1, network.runs + 1 + most), dtype=np.float64)
        of = np.zeros((keep + 1, most), dtype=np.int32)
        kept = (Kept * (keep + 1))()
        for i in range(keep + 1):
            kept[i].device, kept[i].keys = device[i].ctypes.data_as(Ints), keys[i].ctypes.data_as(Floats)
            kept[i].of = of[i].ctypes.data_as(Ints)
        for i, timed in (*enumerate(self.best), (keep, self.now)):
            count, kept[i].copies = len(timed.device), len(timed.of)
            device[i, :count], keys[i, :count] = timed.device, timed.keys
            of[i, : kept[i].copies] = timed.of
            kept[i].eager, kept[i].makespan = timed.eager, timed.makespan
        own = State(kept[keep], kept, len(self.best), keep, self.bound * (1 + chain.CLOSE))
        version, words, gauss = self.draw.getstate()
        draw = Draw((ctypes.c_uint32 * (WORDS + 1))(*words))
        failed = found.autopar_cool(
            *map(ctypes.byref, (self.flat.arrays, self.ways, own, draw)),
            *map(ctypes.c_double, (steps, *heats, until - time.monotonic())),
        )
        if failed:
            log.warning(
                "no memory to search for a plan of %d runs on %d devices", network.runs, network.devices
            )
            return
        self.draw.setstate((version, tuple(draw.state), gauss))
        self.spent = own.spent
        self.now, *self.best = (_listed(each, network.runs) for each in (own.now, *kept[: own.count]))


def _listed(kept: Kept, runs: int) -> Listed:
    count = runs + 1 + kept.copies if kept.copies else runs
    own = kept.device[:count], kept.keys[:count], bool(kept.eager), kept.makespan
    return Listed(*own, tuple(kept.of[: kept.copies]))


def chains(network: Network) -> Callable[..., Chain] | None:
    """What begins chains of a network, given all but that; None where nothing can be compiled."""
    return partial(Chain, Flat(network)) if built() else None


def side_by_side(call: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """What calls return whose time goes into chains, on as many cores as there are: compiled ones leave the interpreter
    to others."""
    threads = min(len(items), cores())
    if threads < 2 or built() is None:
        return [*map(call, items)]
    with ThreadPoolExecutor(threads) as pool:
        return [*pool.map(call, items)]
