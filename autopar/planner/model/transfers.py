"""The steps of a graph whose clusters are placed: clusters, and the transfers that follow from where they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...errors import PlanError
from .instance import Hop, Instance


class Steps:
    """Steps are numbers: clusters first, then `moves`, the (value, hop) pairs that bring values to all who want them.

    Of each step, `waiting` has those that wait for it and `missing` how many it waits for itself. `device` is where
    each cluster is. Raises PlanError where no link leads. Linear in clusters and reads.
    """

    def __init__(self, instance: Instance, device: Sequence[int]) -> None:
        self.instance, self.device = instance, device
        self.moves: list[tuple[int, Hop]] = []
        self.missing = [*map(len, instance.before)]
        # Lists of their own only where something is added.
        self.waiting: list[Any] = [*instance.after]
        alone = len(set(device)) == 1
        for v, readers in enumerate(instance.readers):
            maker = instance.maker[v]
            if maker >= 0:
                if alone and not instance.deliver[v]:
                    continue
                source = device[maker]
            else:
                source = instance.home[v]
            wanted = {device[r] for r in readers}
            if instance.deliver[v] or instance.carry[v]:
                wanted.update(instance.deliver[v], (device[r] for r in instance.carry[v]))
            wanted.discard(source)
            if wanted:
                self._bring(v, maker, source, wanted)

    def _bring(self, v: int, maker: int, source: int, wanted: set[int]) -> None:
        """Add the hops that bring a value to all devices that want it, and make its readers there wait for them."""
        instance, device, waiting, missing = self.instance, self.device, self.waiting, self.missing
        arrival = {source: maker}
        if instance.holders and instance.values[v] in instance.holders:
            arrival |= dict.fromkeys((device[r] for r in instance.holders[instance.values[v]]), -1)
            wanted -= arrival.keys()
        route = instance.route[source]
        targets = sorted(wanted, key=lambda d: (len(route[d] or ()), d)) if len(wanted) > 1 else wanted
        for target in targets:
            hops = route[target]
            if hops is None:
                raise PlanError(
                    f"no link leads from {instance.devices[source]} to {instance.devices[target]}, where "
                    f"{instance.values[v]!r} is needed; add Link({instance.devices[source]!r}, "
                    f"{instance.devices[target]!r}, …) to the machine"
                )
            for hop in hops:
                if hop.dst not in arrival:
                    step = arrival[hop.dst] = len(waiting)
                    made = [arrival[hop.src]] if arrival[hop.src] >= 0 else []
                    for p in made:
                        later = waiting[p]
                        if isinstance(later, tuple):
                            waiting[p] = later = [*later]
                        later.append(step)
                    self.moves.append((v, hop))
                    waiting.append([])
                    missing.append(len(made))
        first = instance.clusters
        for r in instance.readers[v]:
            step = arrival[device[r]]
            if step >= first:
                waiting[step].append(r)
                missing[r] += 1
