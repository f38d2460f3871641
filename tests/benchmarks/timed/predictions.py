"""Predictions that `explain` shows ÷ seconds of the calls, over thirty ordinary models on one CPU.

`probes`: the roofline with the scales of a fresh machine. `learned`: with those fitted to the models above it in the
table besides. `measured`: every operation of the model timed. Blocks of calls stand before and after the measuring.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from autopar.costs.blocks import Block, disturbed, median, timed
from autopar.costs.detect import detect
from autopar.engine.api import compile
from autopar.ir.machine import Machine
from autopar.system.text import seconds as shown
from autopar.system.text import table

from .zoo import Call, models

WAYS = ("probes", "learned", "measured")
BLOCKS = 4
"""Undisturbed blocks before and after the measuring, each of `BLOCK_S` seconds."""
BLOCK_S = 0.12
PATIENCE_S = 4.0
"""Seconds that a model waits for these, before and after."""


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
    taken = _blocks(partial(fast["probes"], *args), blocks)
    start = time.perf_counter()
    fast["measured"](*args)
    first_s = time.perf_counter() - start
    taken += _blocks(partial(fast["measured"], *args), blocks)
    costed = fast["measured"].plan.costed
    predicted = {way: fast[way].plan.makespan + fast[way].plan.costed.call_s for way in WAYS}
    share = sum(cost.how == "measured" for cost in costed.costs) / max(1, len(costed.costs))
    return {**predicted, "seconds": median(taken), "disturbed": disturbed(taken), "call_s": costed.call_s,
            "first_measured_s": first_s, "timed_tasks": share}  # fmt: skip


def _blocks(call: Callable[[], Any], count: int) -> list[Block]:
    (found,) = timed({"call": (call, torch.get_num_threads())}, count, PATIENCE_S, BLOCK_S).values()
    return found


def _row(name: str, found: Mapping[str, Any]) -> str:
    ratios = "  ".join(f"{way} {found[way] / found['seconds']:5.2f}" for way in WAYS)
    return f"{name:<40} {shown(found['seconds']):>9}  {ratios}{'  DISTURBED' * found['disturbed']}"


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
