"""Signatures that differ in nothing but the size of the batch: one proof, then a graph for each."""

from __future__ import annotations

import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from .capture import Captured
from .capture.dynamic import Batch, Family, difference, prove
from .errors import AutoparError
from .tables import seconds

log = logging.getLogger("autopar")

KEPT = 8
"""Proofs that are kept; the oldest goes first."""
CAPTURED = 2
"""Batch sizes that are captured one by one before a proof is tried."""


class Batches:
    """For each kind of signature its captures at all batch sizes; `hopeless` where nothing proves them."""

    def __init__(self, model: Callable[..., Any]) -> None:
        self.model = model
        self.families: OrderedDict[tuple[Hashable, Hashable], Family] = OrderedDict()
        self.hopeless: set[Hashable] = set()

    def derive(
        self, key: Any, kept: Mapping[Any, Captured], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Captured | None:
        """The capture of a call, from one at another batch size; None when the call must be captured.

        A key is that of the arguments, then whatever else decides; `kept` has the captures of earlier calls.
        """
        related = [
            (batch, (batch.axes, key[0][:-1], key[1:]), captured)
            for old, captured in reversed(tuple(kept.items()))
            if old[1:] == key[1:] and (batch := difference(old[0], key[0])) is not None
        ]
        for batch, kind, _ in related:
            if (kind, batch.rest) in self.families:
                return self.at(self.families[kind, batch.rest], batch.rows)
        sizes = Counter((kind, batch.rest) for batch, kind, _ in related)
        for batch, kind, captured in related:
            # A proof costs two or three captures, so that it pays from the third size on: a full batch and a short
            # last one need none.
            if sizes[kind, batch.rest] < CAPTURED:
                continue
            # What stands against one size of the other axes nearly always stands against all.
            if kind in self.hopeless:
                continue
            family = self.proved(batch, captured, args, kwargs)
            if family is None:
                self.hopeless.add(kind)
                return None
            self.families[kind, batch.rest] = family
            if len(self.families) > KEPT:
                self.families.popitem(last=False)
            return self.at(family, batch.rows)
        return None

    def at(self, family: Family, rows: int) -> Captured | None:
        """The capture at so many rows; None where it takes another graph after all."""
        try:
            return family.at(rows)
        except AutoparError as error:
            log.info("%s at %d rows is captured: %s", family.name, rows, error)
            return None

    def proved(
        self, batch: Batch, captured: Captured, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Family | None:
        """The family of a signature, with one line on how it came out."""
        start, name = time.perf_counter(), captured.graph.name
        try:
            family = prove(self.model, args, kwargs, batch, captured)
        except AutoparError as error:
            log.info("%s is captured for each batch size: %s", name, error)
            return None
        log.info("%s is one graph at every batch size: %s", name, seconds(time.perf_counter() - start))
        return family

    def refuse(self, captured: Captured) -> bool:
        """Derive no more as a capture was derived that failed; False when it was not derived at all."""
        for place, family in self.families.items():
            if family.base.state is captured.state and family.base is not captured:
                del self.families[place]
                self.hopeless.add(place[0])
                return True
        return False
