"""Chains that cool side by side, of which the best go on: in which basin one ends shows long before it is cold.

Go with the winners: Aldous and Vazirani, "Go with the winners algorithms", FOCS 1994.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from . import compiled as native
from .chain import CLOSE, Chain
from .evaluate import Timed
from .network import Network

STAGES = ((0.4, 1), (0.2, 1), (0.2, 1), (0.2, 4))
"""Shares of the cooling, and of how many chains as began one is there in each."""
QUARTER = 4
"""Of so many chains one goes on from stage to stage."""
AGREED = 8
"""Chains that have come to the same makespan after which none goes on: hardly any would come to a shorter one."""
COOLING = 1 / 30
"""What is left of the first heat at last."""


class Kept(Protocol):
    """A list that was timed, as `Timed` takes it; `makespan` in seconds."""

    @property
    def device(self) -> Sequence[int]: ...
    @property
    def keys(self) -> Sequence[float]: ...
    @property
    def eager(self) -> bool: ...
    @property
    def of(self) -> Sequence[int]: ...
    @property
    def makespan(self) -> float: ...


class Cooling(Protocol):
    """`chain.Chain`, or the same compiled."""

    @property
    def bound(self) -> float: ...
    @property
    def best(self) -> Sequence[Kept]: ...
    def cool(self, steps: float, heats: tuple[float, float], until: float) -> None: ...


@dataclass(frozen=True)
class Effort:
    """About so many steps by so many chains; `hot` is the first heat as a share of the makespan, and `ruins` and
    `copies` are how often runs are placed anew and copied (`chain`)."""

    steps: float
    chains: int
    hot: float
    ruins: int
    copies: int = 0


def winners(
    network: Network, starts: Sequence[Kept], bound: float, effort: Effort, until: float, keep: int
) -> list[Timed]:
    """The `keep` shortest that any chain found, each placement once, the shortest first.

    After each of `STAGES` one of `QUARTER` chains goes on, and others begin from the shortest schedules of these. The
    end is at `until` of the monotonic clock, where a chain is at the bound, or where `AGREED` of them agree.
    """
    begin, count = _begin(network), effort.chains
    pace = effort.steps / sum(share * max(1, count // among) for share, among in STAGES)
    begun: list[Cooling] = []
    chains: list[Cooling] = []
    cooled = 0.0
    for share, among in STAGES:
        chains = sorted(chains, key=_length)
        if len(chains) >= AGREED and _length(chains[AGREED - 1]) <= _length(chains[0]) * (1 + CLOSE):
            break
        chains = chains[: max(1, count // QUARTER)]
        best = [chain.best[0] for chain in chains] or starts[:count]
        for i in range(max(1, count // among) - len(chains)):
            draw = random.Random(len(begun))
            chains.append(begin(best[i % len(best)], bound, draw, effort.ruins, effort.copies))
            begun.append(chains[-1])
        heats = effort.hot * COOLING**cooled, effort.hot * COOLING ** (cooled + share)
        cooled += share
        chains = _cooled(chains, pace * share, heats, until)
        if _at_bound(chains[-1]):
            begun = chains
            break
    found = {(kept.makespan, *kept.device): kept for chain in begun for kept in chain.best}
    best = sorted(found.values(), key=lambda kept: kept.makespan)[:keep]
    return [_timed(network, kept) for kept in best]


def _begin(network: Network) -> Callable[[Kept, float, random.Random, int, int], Cooling]:
    """What begins a chain from a list, given its bound, its draws, and how often it does what takes room."""

    def begin(start: Kept, *more: Any) -> Cooling:
        return Chain(network, _timed(network, start), *more)

    return native.chains(network) or begin


def _timed(network: Network, kept: Kept) -> Timed:
    if isinstance(kept, Timed):
        return kept
    return Timed(network, kept.device, kept.keys, eager=kept.eager, of=kept.of)


def _cooled(chains: list[Cooling], steps: float, heats: tuple[float, float], until: float) -> list[Cooling]:
    """The chains after so many steps of each, up to the first that has come to the bound: where it does, those behind
    it need not go on, and may or may not have, as there are cores."""

    def cool(at: int) -> None:
        if not any(map(_at_bound, chains[: at + 1])):
            chains[at].cool(steps, heats, until)

    numbers = range(len(chains))
    native.side_by_side(cool, numbers)
    return chains[: next((at for at in numbers if _at_bound(chains[at])), numbers[-1]) + 1]


def _at_bound(chain: Cooling) -> bool:
    return _length(chain) <= chain.bound * (1 + CLOSE)


def _length(chain: Cooling) -> float:
    return chain.best[0].makespan
