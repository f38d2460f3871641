"""What `explain` predicts of a call ÷ what calls take, over thirty ordinary models on one CPU.

`probes`: the roofline with the scales of a fresh machine. `learned`: with those fitted to the models above it in the
table besides. `measured`: every operation of the model timed. Blocks of calls stand before and after the measuring;
those during which others used the cores do not count as long as there are three others.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..costs.detect import detect
from ..engine.api import compile
from ..ir.machine import Machine
from ..text import seconds as shown
from ..text import table
from .quiet import QUIET, Block, block, settled
from .zoo import Call, models

WAYS = ("probes", "learned", "measured")
BLOCKS = 4
"""Blocks before and after the measuring, each of `BLOCK_S` seconds."""
BLOCK_S = 0.12
PATIENCE_S = 6.0
"""Seconds that a model waits for quiet blocks."""


def run(rounds: int = 0) -> dict[str, Any]:
    """Print and return the ratios of each model, and median and 90th percentile of |ratio − 1|; `rounds` blocks before
    and after the measuring."""
    data: dict[str, Any] = {"models": {}}
    before = os.environ.get("AUTOPAR_CACHE")
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        os.environ["AUTOPAR_CACHE"] = folder
        try:
            fresh = detect(["cpu"])
            for name, make in models().items():
                data["models"][name] = judged(make, fresh, rounds or BLOCKS)
                print(_row(name, data["models"][name]), flush=True)
        finally:
            if before is None:
                del os.environ["AUTOPAR_CACHE"]
            else:
                os.environ["AUTOPAR_CACHE"] = before
    data.update(_summary(data["models"]))
    return data


def judged(make: Callable[[], Call], fresh: Machine, blocks: int) -> dict[str, Any]:
    """Seconds of a model's calls, and what was predicted of them in each way."""
    model, args = make()
    torch.compiler.reset()
    machines = {"probes": fresh, "learned": detect(["cpu"]), "measured": fresh}
    fast = {way: compile(model, machines[way], measure=way == "measured", check="never") for way in WAYS}
    fast["probes"](*args)
    fast["learned"](*args)
    taken = _blocks(lambda: fast["probes"](*args), blocks)
    start = time.perf_counter()
    fast["measured"](*args)
    first_s = time.perf_counter() - start
    taken += _blocks(lambda: fast["measured"](*args), blocks)
    until = time.perf_counter() + PATIENCE_S
    while sum(each.others <= QUIET for each in taken) < BLOCKS and time.perf_counter() < until:
        taken += _blocks(lambda: fast["measured"](*args), 1)
    call, costed = settled(taken), fast["measured"].plan.costed
    predicted = {way: fast[way].plan.makespan + fast[way].plan.costed.call_s for way in WAYS}
    timed = sum(cost.how == "measured" for cost in costed.costs) / max(1, len(costed.costs))
    return {**predicted, "seconds": call.seconds, "others": call.others, "call_s": costed.call_s,
            "first_measured_s": first_s, "timed_tasks": timed}  # fmt: skip


def _blocks(call: Callable[[], Any], count: int) -> list[Block]:
    call()
    return [block(call, BLOCK_S) for _ in range(count)]


def _row(name: str, found: Mapping[str, Any]) -> str:
    ratios = "  ".join(f"{way} {found[way] / found['seconds']:5.2f}" for way in WAYS)
    return f"{name:<40} {shown(found['seconds']):>9}  {ratios}  others used {found['others']:.2f} cores"


def _summary(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Print and return median and 90th percentile of the errors in each way."""
    lines, data = [("", "median error", "90th percentile", "most")], {}
    for way in WAYS:
        errors = sorted(abs(row[way] / row["seconds"] - 1) for row in rows.values())
        middle, most = statistics.median(errors), errors[-1]
        ninth = errors[min(len(errors) - 1, int(0.9 * len(errors)))]
        data[way] = {"median": middle, "p90": ninth, "most": most}
        lines.append((way, f"{middle:.1%}", f"{ninth:.1%}", f"{most:.1%}"))
    print(f"\n{len(rows)} models, |predicted ÷ measured − 1|:\n{table(lines, right=(1, 2, 3))}")
    return data
