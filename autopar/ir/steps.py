"""The steps of a plan: runs on lanes, and values on their way between devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Placed:
    """A cluster on a compute lane (`cpu/0`), from `start` to `end` in predicted seconds. `more` are the other lanes of
    the device that it takes at the same time."""

    cluster: str
    device: str
    lane: str
    start: float
    end: float
    more: tuple[str, ...] = ()

    @property
    def lanes(self) -> tuple[str, ...]:
        """All lanes it takes."""
        return (self.lane, *self.more)


@dataclass(frozen=True, slots=True)
class Transfer:
    """A value on its way from `src` to `dst` in the copy queue `lane`; `ready` is when it could have begun."""

    value: str
    src: str
    dst: str
    lane: str
    start: float
    end: float
    ready: float
    bytes: int


Step: TypeAlias = Placed | Transfer
