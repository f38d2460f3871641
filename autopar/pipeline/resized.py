"""Programs for calls with other sizes than they were made for: equal steps, with other numbers as arguments."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Generic

from ..capture import results
from ..capture.region import Region
from ..ir.plan import Plan
from .calls import CHECKED, SIZES, Made
from .options import Options

LIMIT = 1024
"""Limit on the sets of sizes that are served so: each takes some kilobytes."""
RECURRING = 10
"""Calls of one set of sizes after which they have a program of their own, if kernels are compiled for it."""


class Resized(Generic[Made]):
    """Programs of a region by sizes other than theirs, derived from `programs`, those made for their own sizes.

    With PyTorch's own kernels one program serves all sizes for which it surely keeps every memory cap. Other kernels
    are compiled for one set of sizes: the first `CHECKED` ones, and those that recur, have programs of their own.
    """

    def __init__(self, region: Region | None, options: Options, programs: Mapping[Any, Made]) -> None:
        self._region, self._programs = region, programs
        self._compiled = options.kernels != "eager"
        self._allowed = options.split in (None, "auto")
        self._made: dict[Hashable, Made] = {}
        self._calls: dict[Hashable, int] = {}

    def get(self, sizes: Hashable) -> Made | None:
        """Return the program for a call with these sizes; None if there is none, or they are to have their own."""
        found = self._made.get(sizes)
        if found is None or not self._compiled or len(self._programs) >= SIZES:
            return found
        self._calls[sizes] = calls = self._calls.get(sizes, 0) + 1
        return found if calls < RECURRING else None

    def add(self, sizes: Sequence[Any], args: Sequence[Any]) -> Made | None:
        """Return a new program for a call with the arguments `args`; None if it is to have its own."""
        few = self._compiled and len(self._programs) < CHECKED
        if self._region is None or few or not self._allowed or sizes in self._made:
            return None
        for known, program in reversed(list(self._programs.items())):
            if program.resizable and _holds(program.plan, known, sizes):
                if len(self._made) >= LIMIT:
                    self.clear()
                source = results.resized(self._region, program.captured, args)
                self._made[sizes] = made = program.resized(source)
                return made
        return None

    @property
    def note(self) -> str:
        """A sentence if calls are served so."""
        if not self._made:
            return ""
        return (
            f"calls of {len(self._made)} more sets of sizes run by a program made for other sizes; "
            "record() plans each for its own"
        )

    def clear(self) -> None:
        """Drop all of them."""
        self._made.clear()
        self._calls.clear()


def _holds(plan: Plan, known: Sequence[Any], sizes: Sequence[Any]) -> bool:
    """Return True if a plan made for the sizes `known` keeps memory caps for others, if no tensor grows faster than the
    square of the sizes."""
    growth = max((size / own for size, own in zip(sizes, known) if own), default=1.0)
    device = plan.costed.machine.device
    caps = ((count, device[name].memory_bytes) for name, count in plan.peaks.items())
    return growth <= 1 or all(cap is None or count * growth**2 <= cap for count, cap in caps)
