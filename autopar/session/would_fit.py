"""The memory caps that a refused call is told would fit: those with which it was planned."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

from ..errors import MemoryCapError
from ..ir.machine import Machine

log = logging.getLogger("autopar")

T = TypeVar("T")

ATTEMPTS = 6
"""Limit on the sets of caps that are tried for one message."""


def advised(error: MemoryCapError, machine: Machine, planned: Callable[[Machine], Any]) -> MemoryCapError:
    """Return the error with caps of `machine` that `planned` keeps: those that the nearest plan needs, or larger ones
    if another plan is found with these; without caps if none of them are kept. An error that names no need stays."""
    caps: dict[str, int] = {}
    last = error
    for _ in range(ATTEMPTS):
        more = {device: nbytes for device, nbytes in last.needs.items() if nbytes > caps.get(device, 0)}
        if not more:
            break
        caps |= more
        try:
            planned(machine.with_memory(caps))
        except MemoryCapError as refusal:
            log.debug("memory=%s does not fit either: %s", caps, refusal)
            last = refusal
        else:
            way = f"memory={caps} would fit; less, a split of the batch or another device may too"
            return MemoryCapError(error.wrong, way, caps)
    if not caps:
        return error
    return MemoryCapError(error.wrong, "raise the cap, split the batch or let another device take part")


def fitting(machine: Machine, planned: Callable[[Machine], T]) -> T:
    """Return what `planned` returns for a machine. Raises its MemoryCapError, `advised`."""
    try:
        return planned(machine)
    except MemoryCapError as error:
        raise advised(error, machine, planned) from None
