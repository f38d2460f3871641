"""Load bounds: the optimal fractional load, with prices for devices, buses and memory; and all work over all lanes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..model.instance import Instance
from .critical_path import Floats, Ints, Paths

ROUNDS = 200
"""Rounds of the search for prices, fewer on large graphs: any prices give a valid bound."""
STEPS = 20_000_000
"""Limit on (cluster, device) costs computed, which limits the rounds."""
NEAR = 1e-3
"""Relative gap between the bound and the largest load of a division of the work at which the search ends."""
LATEST = 0.1
"""Weight of the latest division in the mean of the divisions, which thereby forgets the first, far off."""
HOPELESS = 1_000.0
"""Factor on the sequential time of all work and transfers. A larger bound means that nothing fits: the price
of memory grows until it overflows."""


def load(instance: Instance, paths: Paths, enough: float = math.inf) -> float:
    """Solve the dual of the load balancing linear program with divisible clusters (Lenstra, Shmoys and Tardos,
    Mathematical Programming 46, 1990), buses and memories included.

    Returns a lower bound in seconds, inf if nothing fits in memory. A device in use is idle for the least
    of its heads and the least of its tails. Prices are found by multiplicative weights (Plotkin, Shmoys and
    Tardos, Mathematics of Operations Research 20(2), 1995), until the bound is `enough` or `NEAR` the load of
    the mean division, which no bound exceeds.
    """
    work = paths.seconds
    clusters, devices = work.shape
    lanes = np.array(instance.widths, dtype=float)
    idle = np.minimum(paths.head.min(axis=0) + paths.tail.min(axis=0), paths.length)
    wires = crossings(instance)
    held = _state(instance)
    room = np.array(instance.room, dtype=float)
    capped = np.isfinite(room) if held.any() else np.zeros(devices, dtype=bool)
    used = np.isfinite(work).any(axis=0)
    every = np.arange(clusters)
    most = _one_by_one(instance, work, idle)
    bound = 0.0
    memory, idle_lanes = bool(capped.any()), lanes * idle

    def weigh(price: Floats, toll: Floats, rent: Floats) -> tuple[float, Ints]:
        """Return the bound that some prices prove, and the cheapest device of each cluster."""
        if price.all():
            cost = work * price
        else:
            with np.errstate(invalid="ignore"):
                cost = work * price
            cost[np.isnan(cost)] = np.inf
        if memory:
            cost += held * rent
        wires.charge(cost, toll)
        at = cost.argmin(axis=1)
        total = float(cost[every, at].sum() + price @ idle_lanes + toll @ wires.fixed)
        return total - float(rent[capped] @ room[capped]) if memory else total, at

    prices = np.concatenate([np.where(used, 1.0, 0.0), np.where(wires.busy, 0.1, 0.0)])
    shares = np.concatenate([lanes, np.ones(len(wires.fixed))])
    prices /= prices @ shares
    rent = np.zeros(devices)
    mean, mean_rent, weight = np.zeros_like(prices), np.zeros(devices), 0.0
    usual, division = 0.0, np.zeros(len(prices) + devices)
    rounds = max(10, min(ROUNDS, STEPS // work.size)) if used.sum() + wires.busy.sum() > 1 else 1
    for step in range(rounds):
        total, at = weigh(prices[:devices], prices[devices:], rent)
        bound = max(bound, total)
        if bound >= enough:
            return bound
        if total > HOPELESS * most:
            return math.inf
        busy = np.bincount(at, weights=work[every, at], minlength=devices)
        finish = np.concatenate([np.where(used, idle + busy / lanes, 0.0), wires.fixed + wires.carried(at)])
        longest = float(finish.max())
        if longest <= 0:
            break
        rate = 0.5 * 3e-3 ** (step / rounds)
        mean, mean_rent, weight = mean + rate * prices, mean_rent + rate * rent, weight + rate
        held_bytes = np.bincount(at, weights=held[every, at], minlength=devices) if memory else rent
        division += (LATEST if step else 1.0) * (np.concatenate([finish, held_bytes]) - division)
        if division[:-devices].max() <= bound * (1 + NEAR) and (division[-devices:] <= room).all():
            break
        # Loads are relative to the usual longest one, so a rare overload counts for more than a common one.
        usual += 0.1 * (longest - usual) if step else longest
        prices = prices * np.exp(rate * (np.minimum(finish / usual, 3.0) - 0.5))
        prices /= prices @ shares
        if memory:
            with np.errstate(over="ignore"):
                # The quotient may overflow; it is clipped below.
                over = np.divide(held_bytes - room, room, out=np.zeros(devices), where=capped & (room > 0))
            rent = np.maximum(0.0, rent + rate * bound / np.maximum(room, 1.0) * np.clip(over, -1.0, 1.0))
    if weight:
        # Prices oscillate around the best ones, so their mean is closest to these.
        total, _ = weigh(mean[:devices] / weight, mean[devices:] / weight, mean_rent / weight)
        bound = max(bound, total)
    return bound


def _one_by_one(instance: Instance, work: Floats, idle: Floats) -> float:
    """Return an upper bound in seconds: one device busy at a time, and each value sent over each link."""
    count, nbytes = len(instance.bytes), sum(instance.bytes)
    sent = sum(hop.latency_s * count + hop.s_per_byte * nbytes for hop in instance.hops.values())
    return float(np.where(np.isfinite(work), work, 0.0).max(axis=1).sum() + idle.max() + sent)


def _state(instance: Instance) -> Floats:
    """Return the bytes of resident state that each cluster adds to each device; readers of one storage share it."""
    sharers: dict[str, int] = {}
    for storages in instance.resident:
        for storage, _ in storages:
            sharers[storage] = sharers.get(storage, 0) + 1
    added = np.zeros((instance.clusters, len(instance.devices)))
    for r, storages in enumerate(instance.resident):
        for storage, nbytes in storages:
            added[r] += nbytes / sharers[storage]
            for d, initial in enumerate(instance.initial):
                if storage in initial:
                    added[r, d] -= nbytes / sharers[storage]
    return added


def evenly(instance: Instance) -> float:
    """Return a lower bound in seconds: the least work of the clusters confined to a set of devices, over its
    lanes.

    The sets are all devices, and each set to which some cluster is bound. `load` need not find these bounds,
    since buses take part of its prices. O(R D) for each set.
    """
    sets = {tuple(range(len(instance.widths))), *instance.allowed}
    work: dict[tuple[int, ...], float] = {}
    for r, able in enumerate(instance.allowed):
        work[able] = work.get(able, 0.0) + min(instance.seconds[r][d] for d in able)
    return max(
        sum(seconds for able, seconds in work.items() if {*able} <= {*some})
        / sum(instance.widths[d] for d in some)
        for some in sets
    )


class _Crossings:
    """Lower bounds on the seconds of buses: `fixed[w]` on bus w in any case, and for each row (cluster,
    device, bus, seconds) its seconds if the cluster is on the device.
    """

    def __init__(self, fixed: Floats, rows: Sequence[tuple[int, int, int, float]], devices: int) -> None:
        self.fixed, self.devices = fixed, devices
        self.cluster, self.device, self.wire = (
            np.array([row[k] for row in rows], dtype=np.int64) for k in range(3)
        )
        self.seconds = np.array([row[3] for row in rows])
        self.busy = fixed > 0
        self.busy[self.wire] = True

    def charge(self, cost: Floats, toll: Floats) -> None:
        """Add the price of buses to the cost of each cluster on each device."""
        if len(self.seconds):
            spent = np.bincount(
                self.cluster * self.devices + self.device,
                weights=toll[self.wire] * self.seconds,
                minlength=cost.size,
            )
            cost += spent.reshape(cost.shape)

    def carried(self, at: Ints) -> Floats:
        """Return the seconds of each bus with each cluster on device `at`."""
        spent = np.where(at[self.cluster] == self.device, self.seconds, 0.0)
        total: Floats = np.bincount(self.wire, weights=spent, minlength=len(self.fixed)).astype(
            float, copy=False
        )
        return total


def crossings(instance: Instance) -> _Crossings:
    """Bound the seconds of buses by values with one fixed end: inputs, deliveries, clusters with one device.

    A value enters a device over one of its incoming links. If these share a queue or bus, it takes that for
    at least the time of the fastest link. It enters a device once, so each of k readers pays 1/k.
    """
    only = [allowed[0] if len(allowed) == 1 else -1 for allowed in instance.allowed]
    entrances = [_entrances(instance, d) for d in range(len(instance.devices))]
    fixed = np.zeros(instance.wires + len(instance.copy_lanes))
    rows: list[tuple[int, int, int, float]] = []
    for v, readers in enumerate(instance.readers if len(fixed) else ()):
        maker = instance.maker[v]
        source = instance.home[v] if maker < 0 else only[maker]
        wanted = dict.fromkeys((*instance.deliver[v], *(only[r] for r in readers if only[r] >= 0)))
        if instance.values[v] in instance.holders:
            continue
        if source < 0 and not wanted:
            continue
        for d in wanted:
            for wire, latency, s_per_byte in entrances[d]:
                seconds = latency + instance.bytes[v] * s_per_byte
                if source < 0:
                    rows += [(maker, e, wire, seconds) for e in instance.allowed[maker] if e != d]
                elif source != d:
                    fixed[wire] += seconds
        free = [r for r in readers if only[r] < 0] if source >= 0 else []
        for r in free:
            for d in instance.allowed[r]:
                for wire, latency, s_per_byte in entrances[d] if d != source and d not in wanted else ():
                    rows.append((r, d, wire, (latency + instance.bytes[v] * s_per_byte) / len(free)))
    return _Crossings(fixed, rows, len(instance.devices))


def _entrances(instance: Instance, d: int) -> list[tuple[int, float, float]]:
    """Return the buses and queues that all links into a device share, with the least latency and s/byte."""
    into = [link for link in instance.hops.values() if link.dst == d]
    latency = min((link.latency_s for link in into), default=0.0)
    s_per_byte = min((link.s_per_byte for link in into), default=0.0)
    wires, queues = {link.wire for link in into}, {link.lane for link in into}
    shared = [*wires] if len(wires) == 1 else []
    shared += [queue + instance.wires if queue >= 0 else -1 for queue in queues if len(queues) == 1]
    return [(wire, latency, s_per_byte) for wire in shared if wire >= 0]
