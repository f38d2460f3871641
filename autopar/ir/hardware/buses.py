"""Declared buses and networks: datasheet bandwidth in one direction (of one port), and the share that copies
achieve."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files
from typing import TypeVar

from ...errors import DeviceError

T = TypeVar("T")

REACHED = 0.8
"""Achieved share of a bus for large pinned copies, after protocol headers and credits (PCIe 3 to 5 cards commonly
measure 0.78 to 0.87 of the encoded rate, NVLink about 0.8); and of a port for large messages."""


@dataclass(frozen=True, slots=True)
class Bus:
    """A bus between two devices, or a network port.

    Datasheet bytes per second in one direction. No datasheet gives a latency: `latency_s` is the common seconds of an
    asynchronous copy of a few bytes, call included, or of a message from send to receipt. `peer`: between
    accelerators.
    """

    name: str
    title: str
    bytes_per_s: float
    latency_s: float
    source: str
    peer: bool = False

    @property
    def reached(self) -> float:
        """Achievable bytes per second of copies."""
        return self.bytes_per_s * REACHED


def rows(table: str) -> Iterator[dict[str, str]]:
    """Yield the rows of a datasheet table beside this file, as dicts by column."""
    return csv.DictReader((files(__package__) / table).read_text(encoding="utf-8").splitlines())


def _of(*kinds: str) -> dict[str, Bus]:
    return {
        row["bus"]: Bus(
            row["bus"],
            row["title"],
            float(row["gb_per_s"]) * 1e9,
            float(row["latency_us"]) / 1e6,
            row["source"],
            peer=row["kind"] == "peer",
        )
        for row in rows("buses.csv")
        if row["kind"] in kinds
    }


BUSES = _of("host", "peer")
NETWORKS = _of("network")


def find(what: str, name: object, known: Mapping[str, T], more: Iterable[str] = (), else_: str = "") -> T:
    """Return the entry `name` of a table; DeviceError lists the `known` names and the nearest, also of `more`, and
    adds the advice `else_`."""
    if name in known:
        return known[str(name)]
    close = get_close_matches(str(name).lower(), [*known, *more], n=1, cutoff=0.5)
    near = f" (did you mean {close[0]!r}?)" if close else ""
    raise DeviceError(f"no {what} {name!r} is known{near}; known are {', '.join(known)}{else_}")
