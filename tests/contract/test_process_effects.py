"""The process is as before once a call has returned, however it ended, and no thread is left after `close()`
(docs/process.md)."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import autopar

X, Y = torch.ones(4, 8), torch.zeros(4, 8)


def process() -> dict[str, Any]:
    """Parts of the process's state that users may have set, by name."""
    loggers = [logging.getLogger(name) for name in ("", "autopar", *logging.root.manager.loggerDict)]
    return {
        "collector": (gc.isenabled(), gc.get_threshold(), gc.get_debug()),
        "log levels": {each.name: (each.level, len(each.handlers), each.disabled) for each in loggers},
        "warnings": (warnings.showwarning, [*warnings.filters]),
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)],
        "hooks": (sys.excepthook, threading.excepthook, sys.gettrace(), sys.getprofile(), sys.displayhook),
        "environment": ({**os.environ}, os.getcwd(), [*sys.path]),
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "layers": (nn.Module.__call__, nn.Linear.forward, torch.nn.functional.linear, torch.compile),
        "optimizers": (torch.optim.SGD.step, torch.optim.SGD.__init__),
    }


def fails(x: torch.Tensor) -> torch.Tensor:
    """An operator that refuses these values, which no capture knows."""
    return torch.linalg.cholesky(-x @ x.T)


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))


def infer() -> None:
    fast = autopar.compile(model().eval(), ["cpu*2"], split=2)
    with torch.no_grad():
        fast(X)
    fast.close()


def refuse() -> None:
    fast = autopar.compile(fails, ["cpu"])
    with pytest.raises(RuntimeError):
        fast(X)
    fast.close()


def loop() -> None:
    fast = autopar.compile(model(), ["cpu"])
    fast(X).sum().backward()
    fast.close()


def train() -> None:
    net = model()
    step = autopar.train_step(net, nn.MSELoss(), torch.optim.SGD(net.parameters(), 0.1), ["cpu"])
    step(X, Y)
    step.close()


def plan() -> None:
    machine = autopar.Machine.declare("cpu", "t4", "t4")
    autopar.plan(model(), machine, example_inputs=(X,))


@pytest.mark.parametrize("use", [infer, refuse, loop, train, plan])
def test_the_process_is_as_before(use: Callable[[], None]) -> None:
    # What torch itself imports and sets at its first compilation and optimizer is none of autopar's effects.
    torch.compile(model(), backend="aot_eager")(X)
    torch.optim.SGD(model().parameters(), 0.1)
    before, threads = process(), threading.active_count()
    use()
    after = process()
    after["log levels"] = {name: after["log levels"][name] for name in before["log levels"]}
    assert {name: after[name] for name in before if after[name] != before[name]} == {}
    assert threading.active_count() <= threads
