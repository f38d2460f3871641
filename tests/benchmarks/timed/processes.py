"""Whole processes: one that calls a model, or trains it, as it is, and one that does so through autopar.

In one process, what autopar changes about the process itself, such as where freed memory goes, changes the rival too.
Rounds alternate which comes first.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from typing import Any

import torch

from autopar.bench import rivals, stacks
from autopar.engine.api import compile
from autopar.errors import AutoparError

CASES = (
    ("mlp2048", "256", ""), ("bert_small", "1", ""), ("bert_small", "8", ""), ("clip", "8", ""), ("googlenet", "1", ""),
    ("googlenet", "8", ""), ("inception_v3", "8", ""), ("lstms", "8", ""), ("moe", "8", ""),
    ("resnet18", "1", "train"), ("resnet18", "8", "train"),
)  # fmt: skip
ROUNDS, SECONDS, LEAST = 3, 3.0, 5
"""Pairs of processes for each case; seconds and calls that one of them times."""


def run(rounds: int = 0) -> dict[str, Any]:
    """Print and return the milliseconds of a call, the median of each process, of `rounds` (default 3) pairs."""
    found: dict[str, Any] = {}
    for case in CASES:
        taken: dict[str, list[float]] = {"eager": [], "autopar": []}
        for number in range(rounds or ROUNDS):
            for how in sorted(taken, reverse=number % 2 == 0):
                taken[how].append(_process(how, *case))
        medians = {how: statistics.median(each) for how, each in taken.items()}
        ratios = [b / a for a, b in zip(*taken.values())]
        title = f"{case[0]} {case[1]}{', a step' if case[2] else ''}"
        print(
            f"{title:26} eager {medians['eager']:8.2f} ms   autopar {medians['autopar']:8.2f} ms   "
            f"÷ eager {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
            flush=True,
        )
        found[title] = taken
    return found


def _process(*words: str) -> float:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", __name__, *words], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise AutoparError(f"{' '.join(words)} failed: {done.stderr.strip().splitlines()[-1]}")
    return float(done.stdout.split()[-1])


def timed(how: str, name: str, batch: int, train: bool) -> float:
    """Return the median milliseconds of the calls of one model in this process."""
    torch.manual_seed(0)
    model, args = getattr(stacks, name)(batch)
    case = rivals.Case(model.train(train), args, train=train)
    if train:
        call = (rivals.run if how == "eager" else rivals.whole)(case).call
    else:
        fast = model if how == "eager" else compile(model, ["cpu"])

        def call() -> Any:
            return fast(*args)

    taken = []
    with torch.set_grad_enabled(train):
        for _ in range(LEAST):
            call()
        until = time.perf_counter() + SECONDS
        while len(taken) < LEAST or time.perf_counter() < until:
            began = time.perf_counter()
            call()
            taken.append(time.perf_counter() - began)
    return statistics.median(taken) * 1e3


if __name__ == "__main__":
    how, name, batch, *train = sys.argv[1:]
    print(timed(how, name, int(batch), train == ["train"]))
