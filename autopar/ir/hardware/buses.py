"""Declared buses, and networks between hosts: what the datasheets promise in one direction (of one port), and the share
of it that copies reach."""

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
"""Share of a bus that large pinned copies reach: protocol headers and credits take the rest (PCIe 3 to 5
cards commonly measure 0.78 to 0.87 of the encoded rate, NVLink about 0.8); and of a port that large messages reach."""


@dataclass(frozen=True, slots=True)
class Bus:
    """A way between two devices, or a network port: datasheet bytes per second in one direction, and the latency of one
    copy, or of a message from its send to its receipt.

    No datasheet gives a latency; `latency_s` is what an asynchronous copy of a few bytes commonly takes, call
    included. `peer` marks a bus between accelerators.
    """

    name: str
    title: str
    bytes_per_s: float
    latency_s: float
    source: str
    peer: bool = False

    @property
    def reached(self) -> float:
        """Bytes per second that copies are expected to reach."""
        return self.bytes_per_s * REACHED


def rows(table: str) -> Iterator[dict[str, str]]:
    """The rows of one of the tables of datasheets beside this file, by the names of its columns."""
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
    """The entry of a table called `name`; DeviceError lists those `known` and the nearest, also of `more` names, and
    says what `else_` can be done."""
    if name in known:
        return known[str(name)]
    close = get_close_matches(str(name).lower(), [*known, *more], n=1, cutoff=0.5)
    near = f" (did you mean {close[0]!r}?)" if close else ""
    raise DeviceError(f"no {what} {name!r} is known{near}; known are {', '.join(known)}{else_}")
