"""Tiny graph files at random, of which brute force knows the shortest plan."""

from __future__ import annotations

import random
from typing import Any


def tiny(seed: int, *, exact: bool = True) -> dict[str, Any]:
    """Two to five tasks on two devices that may lack a link or share a wire, with values at home, caps, groups, pins
    and tasks that take no time. All times are `exact` sums of powers of two, so that what comes at one moment does so
    to the bit, or have three decimals."""
    draw = random.Random(seed)
    names = [f"t{n}" for n in range(draw.randint(2, 5))]
    whole = draw.random() < 0.3

    def seconds() -> float:
        if draw.random() < 0.08:
            return 0.0
        if whole or draw.random() < 0.4:
            return float(draw.randint(1, 4))
        return draw.randint(1, 64) / 16 if exact else round(draw.uniform(0.1, 4), 3)

    tasks: list[dict[str, Any]] = []
    for name in names:
        able = [d for d in ("d0", "d1") if draw.random() < 0.9] or ["d0"]
        task: dict[str, Any] = {"id": name, "seconds": {d: seconds() for d in able}}
        if draw.random() < 0.08:
            task["pin"] = draw.choice(able)
        elif draw.random() < 0.08 and len(able) == 2:
            task["colocate"] = "g"
        if draw.random() < 0.1:
            task["state_bytes"] = draw.choice((16, 64))
        if draw.random() < 0.1:
            task["workspace_bytes"] = draw.choice((16, 64))
        tasks.append(task)
    values = _values(draw, names)
    wires = draw.choice(({}, {}, {"wire": "w"}, {"wire": "w"}, {"wire": "w"}, {"wire": None}))
    links: list[dict[str, Any]] = []
    for src, dst in (("d0", "d1"), ("d1", "d0")):
        if draw.random() < 0.95:
            rate = draw.choice((32.0, 64.0, 512.0)) if exact else draw.choice((50.0, 100.0, 1000.0))
            latency = draw.choice((0.0, 0.0, 0.125, 0.5)) if exact else draw.choice((0.0, 0.05, 0.5))
            links.append({"src": src, "dst": dst, "latency_s": latency, "bytes_per_s": rate, **wires})
    capped = draw.random() < 0.3
    devices = []
    for name in ("d0", "d1"):
        cap = draw.choice((None, 64, 128, 300, 400)) if capped else None
        devices.append({"name": name, "lanes": 1, "memory_bytes": cap})
    if len(names) < 4 and draw.random() < 0.2:
        devices[0]["lanes"] = 2
    return {"tasks": tasks, "values": values, "devices": devices, "links": links}


def _values(draw: random.Random, names: list[str]) -> list[dict[str, Any]]:
    values: list[dict[str, Any]] = []
    for n, name in enumerate(names):
        readers = [later for later in names[n + 1 :] if draw.random() < 0.5]
        if readers or draw.random() < 0.2:
            values.append({"id": f"v{n}", "producer": name, "consumers": readers})
    for n in range(draw.choice((0, 1, 2, 2, 3))):
        readers = draw.sample(names, min(len(names), draw.choice((1, 1, 2))))
        home = draw.choice(("d0", "d1"))
        values.append({"id": f"in{n}", "producer": None, "home": home, "consumers": readers})
    for value in values:
        value["bytes"] = draw.choice((0, 1, 8, 32, 64, 64, 256))
        if draw.random() < 0.1:
            value["deliver_to"] = draw.choice(("d0", "d1"))
    return values
