"""Memory caps in the model: bytes in use on each device over time, counted as in `liveness`.

Views and changes in place are ignored, so that the model never forbids what fits; `simulate` and `liveness` check its
solutions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from .model import Literal, Model
from .transfers import Transfers

MOST = 2**52
"""Limit on the sum of sizes given to the solver, which must stay exact integers."""


def cap(model: Model, transfers: Transfers) -> None:
    """Constrain every device that could exceed its cap."""
    instance = model.instance
    for d, limit in enumerate(instance.caps):
        if limit is None:
            continue
        held = _Held(model, transfers, d)
        held.state()
        held.scratch()
        for v in range(len(instance.values)):
            held.value(v)
        free = limit - (0 if instance.costed.consumed else sum(instance.given[d].values()))
        if sum(held.sizes) > free:
            # The solver counts in 64 bits. Sizes rounded down and room rounded up rule nothing out.
            unit = max(1.0, sum(held.sizes) / MOST)
            sizes = [math.floor(size / unit) for size in held.sizes]
            model.cp.add_cumulative(held.intervals, sizes, max(0, math.ceil(free / unit)))


class _Held:
    """Memory demand on one device: `intervals` and their `sizes` in bytes."""

    def __init__(self, model: Model, transfers: Transfers, device: int) -> None:
        self.model, self.transfers, self.device = model, transfers, device
        self.intervals: list[Any] = []
        self.sizes: list[int] = []

    def state(self) -> None:
        """Add resident state, for the whole schedule, if it is read."""
        instance, d = self.model.instance, self.device
        keepers: dict[str, list[tuple[int, Literal]]] = {}
        for r, kept in enumerate(instance.kept):
            for storage, nbytes in kept:
                if storage not in instance.given[d] and d in self.model.on[r]:
                    keepers.setdefault(storage, []).append((nbytes, self.model.on[r][d]))
        for storage, some in keepers.items():
            here = self.model.literals.any([literal for _, literal in some], f"{storage} on {d}")
            self._add(0, self.model.horizon, self.model.horizon, here, min(nbytes for nbytes, _ in some))

    def scratch(self) -> None:
        """Add the workspace of each cluster while it runs."""
        model = self.model
        for r, nbytes in enumerate(model.instance.workspace):
            if nbytes and self.device in model.on[r]:
                for _, size, when in model.modes[r, self.device]:
                    self._add(model.start[r], size, model.start[r] + size, when, nbytes)

    def value(self, v: int) -> None:
        """Add a value, from its creation or transfer to its last use on this device."""
        model, instance, d = self.model, self.model.instance, self.device
        name, nbytes, maker = instance.values[v], instance.bytes[v], instance.maker[v]
        deliver = () if instance.costed.consumed else instance.deliver[v]
        if not nbytes or instance.costed.graph.value[name].storage != name:
            return
        delivered = any(value == name and not device for value, device in instance.costed.deliver)
        if maker >= 0 and d in model.on[maker]:
            start, first, here = model.start[maker], model.end[maker], model.on[maker][d]
            self._alive(v, start, here, [(first, here)], d in deliver or delivered)
        if maker < 0 and instance.home[v] == d and instance.costed.consumed:
            self._alive(v, 0, True, [], d in deliver or delivered)
        for when, _, _, size in self.transfers.brings.get((v, d), ()):
            start = self.transfers.start[v, d]
            forever = d in deliver or instance.stays[v]
            self._alive(v, start, when, [(start + size, when)], forever)

    def _alive(
        self, v: int, start: Any, here: Literal, ends: Iterable[tuple[Any, Literal]], forever: bool
    ) -> None:
        """Hold a value on this device, if it is `here`, from `start` to the last of `ends` and of its uses.

        Every end depends on its step: an absent transfer is bounded only by its producer, and an end within the
        horizon would force that to end too early.
        """
        model, instance, d = self.model, self.model.instance, self.device
        if here is False:
            return
        end = model.cp.new_int_var(0, model.horizon, f"last use of {v} on {d}")
        size = model.cp.new_int_var(0, model.horizon, f"{v} in use on {d}")
        uses = [*ends, *((model.end[r], model.on[r][d]) for r in instance.readers[v] if d in model.on[r])]
        for (value, target), brings in self.transfers.brings.items():
            if value == v and target != d:
                sent = self.transfers.start[v, target]
                maker = instance.maker[v]
                for when, via, _, taken in brings:
                    # Straight from its source, or by way of this device.
                    if via == d or (via < 0 and (maker < 0 or d in model.on[maker])):
                        origin = True if via == d or maker < 0 else model.on[maker][d]
                        uses.append((sent + taken, model.literals.all([when, origin])))
        for use, when in uses:
            if when is True:
                model.cp.add(end >= use)
            elif when is not False:
                model.cp.add(end >= use).only_enforce_if(when)
        if forever:
            model.cp.add(end == model.horizon)
        self._add(start, size, end, here, instance.bytes[v])

    def _add(self, start: Any, size: Any, end: Any, here: Literal, nbytes: int) -> None:
        if here is not False:
            cp = self.model.cp
            self.intervals.append(cp.new_optional_interval_var(start, size, end, here, ""))
            # Graph files may have fractions of bytes and the solver has not.
            self.sizes.append(math.floor(nbytes))
