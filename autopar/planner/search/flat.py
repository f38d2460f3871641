"""A network, a chain and what a search may change as the C sources beside this file have them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import chain
from . import duplicates as copies
from . import moves as neighbours
from . import ruin_recreate as rebuilding
from .network import Network

Ints, Floats = ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_double)
WORDS = 624
"""Of the state of the generator."""


class Lists(ctypes.Structure):
    _fields_ = [("at", Ints), ("of", Ints)]


class Arrays(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int) for name in ("runs", "devices", "wires", "values", "groups")),
        ("lane_at", Ints),
        *((name, Floats) for name in ("seconds", "to_go", "bytes", "latency", "s_per_byte")),
        *((name, Ints) for name in ("hop_at", "hop_wire", "hop_queue", "hop_stop")),
        *((name, Floats) for name in ("hop_latency", "hop_s_per_byte")),
        *(
            (name, Lists)
            for name in (
                "makes", "readers", "deliver", "reads", "sooner", "later", "near", "before", "after", "allowed",
                "members",
            )
        ),
        *((name, Ints) for name in ("waits", "maker", "home", "repeatable")),
    ]  # fmt: skip


class Ways(ctypes.Structure):
    _fields_ = [
        *(
            (name, ctypes.c_int)
            for name in (
                "moves", "shifts", "exchanges", "groups", "ruins", "tried", "estimate", "looks", "close", "gathered",
                "copies", "most",
            )
        ),
        *(
            (name, ctypes.c_double)
            for name in (
                "early", "critical", "beside", "part", "fewer", "swapped", "elsewhere", "onward", "enough",
            )
        ),
        ("ahead", ctypes.c_double * len(rebuilding.AHEAD)),
        ("stay", ctypes.c_double * len(rebuilding.STAY)),
    ]  # fmt: skip


class Kept(ctypes.Structure):
    _fields_ = [
        ("device", Ints),
        ("eager", ctypes.c_int),
        ("copies", ctypes.c_int),
        ("of", Ints),
        ("keys", Floats),
        ("makespan", ctypes.c_double),
    ]


class State(ctypes.Structure):
    _fields_ = [
        ("now", Kept),
        ("best", ctypes.POINTER(Kept)),
        ("count", ctypes.c_int),
        ("keep", ctypes.c_int),
        ("bound", ctypes.c_double),
        ("spent", ctypes.c_double),
    ]


class Draw(ctypes.Structure):
    _fields_ = [("state", ctypes.c_uint32 * (WORDS + 1))]


class Flat:
    """A network as the C sources have it; it must outlive what points into it."""

    def __init__(self, network: Network) -> None:
        problem, values = network.problem, len(network.bytes)
        self.network = network
        self._held: list[NDArray[Any]] = []
        ways = [hops for row in network.hops for hops in row]
        hops = [hop for way in ways for hop in way]
        self.arrays = Arrays(
            runs=network.runs,
            devices=network.devices,
            wires=network.wires,
            values=values,
            groups=len(problem.members),
            lane_at=self._ints([0, *np.cumsum(network.lanes)]),
            seconds=self._floats(network.seconds),
            to_go=self._floats(network.to_go),
            bytes=self._floats(network.bytes),
            latency=self._floats(network.latency),
            s_per_byte=self._floats(network.s_per_byte),
            hop_at=self._ints([0, *np.cumsum([len(way) for way in ways])]),
            hop_wire=self._ints([hop[0] for hop in hops]),
            hop_queue=self._ints([hop[1] for hop in hops]),
            hop_stop=self._ints([hop[2] for hop in hops]),
            hop_latency=self._floats([hop[3] for hop in hops]),
            hop_s_per_byte=self._floats([hop[4] for hop in hops]),
            makes=self._lists([[v for v, _, _ in own] for own in network.makes]),
            readers=self._lists(network.readers),
            deliver=self._lists(problem.deliver),
            reads=self._lists(problem.reads),
            sooner=self._lists(network.sooner),
            later=self._lists(network.later),
            near=self._lists(network.near),
            before=self._lists(problem.before),
            after=self._lists(problem.after),
            allowed=self._lists(problem.allowed),
            members=self._lists(problem.members),
            waits=self._ints(network.waits),
            maker=self._ints(problem.maker),
            home=self._ints(problem.home),
            repeatable=self._ints(network.repeatable),
        )

    def _ints(self, numbers: Iterable[int]) -> Any:
        # One more, for none at all would have no address.
        self._held.append(np.array([*numbers, 0], dtype=np.int32))
        return self._held[-1].ctypes.data_as(Ints)

    def _floats(self, numbers: Sequence[Any]) -> Any:
        self._held.append(np.array(numbers, dtype=np.float64).ravel())
        return self._held[-1].ctypes.data_as(Floats)

    def _lists(self, lists: Iterable[Iterable[int]]) -> Lists:
        own = [list(each) for each in lists]
        at = [0, *np.cumsum([len(each) for each in own], dtype=np.int64)]
        return Lists(self._ints(at), self._ints(number for each in own for number in each))


def ways_of(ruins: int, repeats: int) -> Ways:
    """What a search may change, and how often."""
    return Ways(
        moves=chain.MOVES,
        shifts=chain.SHIFTS,
        exchanges=chain.EXCHANGES,
        groups=chain.GROUPS,
        ruins=ruins,
        tried=chain.TRIED,
        estimate=chain.ESTIMATE,
        looks=chain.LOOKS,
        close=neighbours.CLOSE,
        gathered=neighbours.GATHERED,
        copies=repeats,
        most=copies.MOST,
        early=chain.EARLY,
        critical=neighbours.CRITICAL,
        beside=neighbours.BESIDE,
        part=rebuilding.PART,
        fewer=copies.FEWER,
        swapped=copies.SWAPPED,
        elsewhere=copies.ELSEWHERE,
        onward=copies.ONWARD,
        enough=copies.ENOUGH,
        ahead=rebuilding.AHEAD,
        stay=rebuilding.STAY,
    )
