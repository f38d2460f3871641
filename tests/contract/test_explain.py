"""`explain()` answers at any time: with the plan, or with the reason why there is none."""

from __future__ import annotations

import os
import threading
from contextlib import suppress

import pytest
import torch
from torch import nn

import autopar

X = torch.randn(2, 4)


class Broken(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        x = self.first(x)
        torch._dynamo.graph_break()
        return self.second(x)


class Raising(nn.Module):
    def forward(self, x):
        raise ValueError("never")


def hooked() -> nn.Module:
    """A model that Dynamo leaves as written."""
    net = nn.Sequential(nn.Linear(4, 4))
    net[0].register_full_backward_hook(lambda *_: None)
    return net


def in_fork(fast) -> bool:
    """Return True if `explain` returns text in a forked process."""
    child = os.fork()
    if not child:
        os._exit(0 if isinstance(fast.explain(), str) else 1)
    return os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("make", [autopar.compile, autopar.DataParallel])
def test_before_any_call(make):
    fast = make(nn.Linear(4, 4), ["cpu"])
    assert "nothing is planned yet" in fast.explain()
    assert in_fork(fast)
    with pytest.raises(autopar.AutoparError, match="nothing is planned yet"):
        _ = fast.plan


@pytest.mark.slow
def test_calls_that_ran_as_written():
    fast = autopar.compile(hooked(), ["cpu"])
    fast(X)
    assert "1 call ran as written" in fast.explain()
    assert "backward" in fast.explain()
    fast = autopar.compile(lambda x: x, ["cpu"])
    fast(X)
    assert "captured no graph" in fast.explain()


@pytest.mark.slow
@pytest.mark.parametrize("model", [Broken, Raising, lambda: nn.Linear(3, 3), lambda: nn.Linear(4, 4)])
@pytest.mark.parametrize(
    "kind", ["compile", "fullgraph", "capped", "DataParallel", "train_step", "capped step"]
)
def test_after_calls_that_may_raise(model, kind):
    model = model()
    cap = {"memory": {"cpu": 10}} if "capped" in kind else {}
    if kind == "DataParallel":
        fast = autopar.DataParallel(model, ["emulated:0", "emulated:1"])
    elif "step" in kind and not isinstance(model, Raising):
        sgd = torch.optim.SGD(model.parameters(), 0.1)
        fast = autopar.train_step(model, nn.MSELoss(), sgd, ["cpu"], **cap)
    else:
        fast = autopar.compile(model, ["cpu"], fullgraph=kind == "fullgraph", **cap)
    arguments = (X, X) if isinstance(fast, autopar.TrainStep) else (X,)
    with suppress(Exception):
        fast(*arguments)
    assert fast.explain()
    if "capped" in kind:
        assert "as written" not in fast.explain()


@pytest.mark.slow
def test_planned_only_and_in_a_fork():
    net = nn.Linear(4, 4)
    fast = autopar.compile(net, ["cpu"], example_inputs=(X,))
    step = autopar.train_step(net, nn.MSELoss(), torch.optim.SGD(net.parameters(), 0.1), ["cpu"])
    assert "nothing is planned yet" in step.explain()
    step.prepare(X, X)
    for each in (fast, step):
        assert "placed by" in each.explain()
        assert in_fork(each)


@pytest.mark.slow
def test_while_another_thread_plans():
    fast = autopar.compile(Broken(), ["cpu"])
    caller = threading.Thread(target=fast, args=(X,))
    caller.start()
    while caller.is_alive():
        assert fast.explain()
        caller.join(0.01)
    assert "graph break" in fast.explain()


def test_scripting_is_refused_with_the_remedy():
    fast = autopar.compile(nn.Linear(4, 4), ["cpu"])
    for outer in (fast, nn.Sequential(fast), autopar.compile(lambda x: x, ["cpu"])):
        with pytest.raises(autopar.CaptureError, match=r"torch\.jit\.script .* fast\.module"):
            torch.jit.script(outer)
