"""Communication bound: optimal trade-off of work and transfers; a value read elsewhere takes a bus."""

from __future__ import annotations

import numpy as np

from ..model.instance import Instance
from .critical_path import Floats, Paths
from .load import areas, crossings

ROUNDS = 100
"""Rounds of the search for prices: any prices give a valid bound."""
FEWEST = 15
"""Least number of rounds for which it is worth starting."""
CELLS = 1_500_000
"""Limit on (read, device) pairs computed, which limits the rounds."""
ROUNDING = 1e-12
"""Relative rounding error allowed between what readers pay and makers receive."""


def traffic(instance: Instance, paths: Paths, load: tuple[float, Floats], bound: float) -> float:
    """Return a lower bound in seconds, at least the valid bound `bound`.

    Returns `bound` if buses have enough time for the load of `load`, or if dividing each cluster over all its
    devices takes no longer. Solves the dual of `load`'s linear program with transfers: a value enters each
    device that has a reader but not its maker, over some bus into that device. Its readers share the price:
    each pays its share on each device, and the maker is paid there. A cluster of negative cost on several
    devices is on all of them, as duplicates may be. Prices are found by multiplicative weights, against
    clusters that move ever more to where they cost least.
    """
    if instance.clusters * len(instance.devices) > CELLS // FEWEST:
        return bound
    trips = _Trips(instance)
    cells = instance.clusters * trips.devices + 2 * trips.reader.size * trips.devices
    rounds = min(ROUNDS, CELLS // max(1, cells))
    if trips.devices < 2 or rounds < FEWEST or not trips.reader.size:
        return bound
    market = _Market(instance, paths, trips)
    if market.spread() > bound and market.overloaded(*load):
        bound = max(bound, *(market.turn(step / rounds) for step in range(rounds)))
    return bound


class _Trips:
    """Reads of values with both ends open: value, maker and reader of each read, in the order of values; the least
    seconds of each value into each device, and the buses by which it enters. `wires`: the seconds of buses for all
    other values."""

    def __init__(self, instance: Instance) -> None:
        self.wires = crossings(instance)
        values = [v for v in self.wires.uncounted if instance.readers[v]]
        self.devices = len(instance.devices)
        counts = [len(instance.readers[v]) for v in values]
        self.value = np.repeat(np.arange(len(values)), counts)
        self.maker = np.repeat(np.array([instance.maker[v] for v in values], dtype=np.int64), counts)
        self.reader = np.array([r for v in values for r in instance.readers[v]], dtype=np.int64)
        self.first = np.cumsum([0, *counts[:-1]]) if counts else np.zeros(0, dtype=np.int64)
        nbytes = np.array([instance.bytes[v] for v in values], dtype=float)
        self.seconds = np.zeros((len(values), self.devices))
        self.entered: list[list[list[int]]] = []
        """Buses and queues of each link into each device."""
        for d in range(self.devices):
            into = [link for link in instance.hops.values() if link.dst == d]
            taken = [[link.wire] * (link.wire >= 0) for link in into]
            taken = [own + [instance.wires + link.lane] * (link.lane >= 0) for own, link in zip(taken, into)]
            self.entered.append(taken)
            if into and all(taken):
                latency, rate = min(o.latency_s for o in into), min(o.s_per_byte for o in into)
                self.seconds[:, d] = latency + nbytes * rate

    def tolls(self, price: Floats) -> Floats:
        """Return the price per second of the cheapest link into each device, given the prices of buses and
        copy queues."""
        return np.array([
            min((sum(price[w] for w in own) for own in links), default=0.0) for links in self.entered
        ])  # fmt: skip

    def carried(self, into: Floats, price: Floats) -> Floats:
        """Return the seconds of each bus for seconds into each device, by the nearly cheapest links."""
        found = np.zeros(len(price))
        for links, seconds in zip(self.entered, into):
            cost = np.array([sum(price[w] for w in own) for own in links])
            if seconds and len(links):
                share = np.exp(-(cost - cost.min()) / (0.05 * cost.mean() + 1e-300))
                for own, part in zip(links, share / share.sum() * seconds):
                    for w in own:
                        found[w] += part
        return found


class _Market:
    """Prices of lanes and buses, which sum to 1, the share of each reader in the cost of its values, and the
    devices of clusters."""

    def __init__(self, instance: Instance, paths: Paths, trips: _Trips) -> None:
        self.wires, self.trips = trips.wires, trips
        work = areas(instance, paths)
        self.able = np.isfinite(work)
        self.work = np.where(self.able, work, 0.0)
        self.lanes = np.array(instance.widths, dtype=float)
        self.idle = np.minimum(paths.head.min(axis=0) + paths.tail.min(axis=0), paths.length)
        self.of = np.concatenate([self.lanes, np.ones(len(self.wires.fixed))])
        self.price = np.concatenate(
            [np.where(self.able.any(axis=0), 1.0, 0.0), np.full(len(self.wires.fixed), 0.1)]
        )
        self.price /= self.price @ self.of
        counts = np.diff(np.append(trips.first, len(trips.reader)))
        self.least = 1e-4 / counts[trips.value][:, None]
        self.share = np.repeat(0.9 / counts[trips.value][:, None], trips.devices, axis=1)
        self.at = self.able / self.able.sum(axis=1, keepdims=True)

    def spread(self) -> float:
        """Return the seconds if each cluster is divided evenly over its possible devices, so that nothing crosses."""
        return float((self.idle + (self.work * self.at).sum(axis=0) / self.lanes).max())

    def overloaded(self, seconds: float, price: Floats) -> bool:
        """Return True if buses are busy for longer than this with each cluster where it is cheapest."""
        at = np.where(self.able, self.work * price, np.inf).argmin(axis=1)
        there = np.zeros_like(self.work)
        there[np.arange(len(at)), at] = 1.0
        into = (self._crossing(there) * self.trips.seconds).sum(axis=0)
        carried = self.trips.carried(into, np.zeros(len(self.wires.fixed)))
        return bool(carried.sum() > seconds * np.count_nonzero(carried))

    def turn(self, done: float) -> float:
        """Return the bound that the prices prove, then update the prices. `done`: share of all rounds, from 0 to 1."""
        trips, devices = self.trips, len(self.lanes)
        price, toll = self.price[:devices], self.price[devices:]
        paid = self.share * (trips.seconds * trips.tolls(toll))[trips.value]
        cost = self.work * price
        for d in range(devices):
            cost[:, d] += np.bincount(trips.reader, paid[:, d], len(cost))
            cost[:, d] -= np.bincount(trips.maker, paid[:, d], len(cost))
        self.wires.charge(cost, toll)
        cost[~self.able] = np.inf
        cheapest = cost.min(axis=1)
        gained = np.minimum(cost, 0.0).sum(axis=1)
        bound = float(np.where(cheapest < 0, gained, cheapest).sum())
        bound += float(price @ (self.lanes * self.idle) + toll @ self.wires.fixed - ROUNDING * paid.sum())
        self._move(cost - cheapest[:, None], done)
        self._reprice(done)
        return bound

    def _move(self, dearer: Floats, done: float) -> None:
        """Move clusters towards their least cost, ever more sharply."""
        usual = float((self.work * self.price[: len(self.lanes)])[self.able].mean())
        odds = np.exp(-np.minimum(dearer / (usual * 0.2 * 0.005**done + 1e-300), 50.0))
        odds[~self.able] = 0.0
        self.at = 0.7 * self.at + 0.3 * odds / odds.sum(axis=1, keepdims=True)

    def _reprice(self, done: float) -> None:
        """Raise the prices of the busiest resources, and the shares of readers on devices without the maker."""
        trips, devices = self.trips, len(self.lanes)
        into = (self._crossing(self.at) * trips.seconds).sum(axis=0)
        carried = self.wires.fixed + self.wires.expected(self.at) + trips.carried(into, self.price[devices:])
        finish = np.concatenate([self.idle + (self.work * self.at).sum(axis=0) / self.lanes, carried])
        if finish.max() > 0:
            self.price = self.price * np.exp(0.05 * 0.3**done * (finish / finish.max() - 0.5))
            self.price /= self.price @ self.of
        apart = self.at[trips.reader] - self.at[trips.maker]
        more = self.share * np.exp(5.0 * 0.05**done * apart)
        unpaid = np.maximum(1.0 - np.add.reduceat(self.share, trips.first), 0.0)
        share = np.maximum(more / (np.add.reduceat(more, trips.first) + unpaid)[trips.value], self.least)
        self.share = share / np.maximum(np.add.reduceat(share, trips.first), 1.0)[trips.value]

    def _crossing(self, at: Floats) -> Floats:
        """Return the fraction of each value that enters each device."""
        apart = np.maximum(at[self.trips.reader] - at[self.trips.maker], 0.0)
        return np.maximum.reduceat(apart, self.trips.first)
