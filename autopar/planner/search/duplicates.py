"""Runs of a list that are computed on several devices: whom their copies serve, and changes of them.

A copy serves what reads from its run on its device, other copies too, and the run itself whatever has no copy of it
where it is: so a result is never moved to where it is computed.
"""

from __future__ import annotations

from collections.abc import Sequence

from .moves import Neighbourhood
from .network import Network

MOST = 24
"""Copies in a list at most."""
FEWER, SWAPPED = 0.25, 0.25
"""How often, of changes of copies where there are any, one is left out, or changes places with its run."""
ELSEWHERE = 0.5
"""How often what copies are made for goes to another device with them."""
ONWARD, ENOUGH = 0.5, 0.2
"""How often the next copy is made for the last, and how often there is none."""


def tidy(network: Network, device: list[int], keys: list[float], of: list[int]) -> None:
    """Leave out copies that nobody reads, and those on the devices of their runs."""
    i = len(of) - 1
    while i >= 0:
        run, d = of[i], device[network.runs + 1 + i]
        if device[run] == d or not _is_read(network, device, of, run, d):
            _leave_out(network, device, keys, of, i)
            i = len(of)
        i -= 1


def recopied(beside: Neighbourhood, device: list[int], keys: list[float], of: list[int]) -> bool:
    """Leave a copy out, have it change places with its run, or have what a run waits for, and perhaps what that waits
    for, computed on its device too, which may be a new one; whether anything is changed."""
    network, draw = beside.network, beside.draw
    what = draw.random()
    if of and what < FEWER + SWAPPED:
        i = int(draw.random() * len(of))
        if what < FEWER:
            _leave_out(network, device, keys, of, i)
        else:
            own, its = of[i], network.runs + 1 + i
            device[own], device[its] = device[its], device[own]
            keys[own], keys[its] = keys[its], keys[own]
        return True
    reader, first = beside.run(), len(of)
    was, high = device[reader], keys[reader]
    if draw.random() < ELSEWHERE:
        allowed = network.problem.allowed[reader]
        device[reader] = allowed[int(draw.random() * len(allowed))]
    d = device[reader]
    while len(of) < MOST:
        on = _on(network, device, of)
        makers = [network.problem.maker[v] for v in network.problem.reads[reader]]
        makers = [m for m in makers if m >= 0 and _could_be(network, device, on, m, d)]
        if not makers:
            break
        maker = makers[int(draw.random() * len(makers))]
        before = network.problem.before[maker]
        low = max([keys[on.get((p, d), p)] for p in before], default=-1.0)
        if low > high:
            low = high - 1.0
        key = beside.inside(low, high)
        if not of:
            device.append(-1)
            keys.append(0.0)
        of.append(maker)
        device.append(d)
        keys.append(key)
        if draw.random() < ONWARD:
            reader, high = maker, key
        if draw.random() < ENOUGH:
            break
    return d != was or len(of) > first


def _on(network: Network, device: Sequence[int], of: Sequence[int]) -> dict[tuple[int, int], int]:
    return {(r, device[i]): i for i, r in enumerate(of, network.runs + 1)}


def _could_be(
    network: Network, device: Sequence[int], on: dict[tuple[int, int], int], maker: int, d: int
) -> bool:
    """Whether a run could be computed on a device too."""
    there = network.seconds[maker][d] < float("inf")
    return network.repeatable[maker] and device[maker] != d and (maker, d) not in on and there


def _is_read(network: Network, device: Sequence[int], of: Sequence[int], run: int, d: int) -> bool:
    on = _on(network, device, of)
    return any(
        d in deliver or any(device[r] == d or (r, d) in on for r in readers)
        for _, readers, deliver in network.makes[run]
    )


def _leave_out(network: Network, device: list[int], keys: list[float], of: list[int], i: int) -> None:
    del of[i], device[network.runs + 1 + i], keys[network.runs + 1 + i]
    if not of:
        del device[network.runs :], keys[network.runs :]
