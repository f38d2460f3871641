"""Calls leave the state of thread and process as it was, however they end; so other models are undisturbed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch_state import changed, nesting, state

import autopar

X = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
TRACES = {"so far": 0, "interrupted": 0}
"""Number of traces of `noticed` so far, and which of them is interrupted."""


@torch.library.custom_op("state_left::noticed", mutates_args=())
def noticed(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@noticed.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    TRACES["so far"] += 1
    if TRACES["so far"] == TRACES["interrupted"]:
        raise KeyboardInterrupt
    return torch.empty_like(x)


def cholesky(x: torch.Tensor) -> torch.Tensor:
    """An operator that fails on its values, which no trace knows."""
    return torch.linalg.cholesky(-x.float() @ x.float().T)


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextlib.contextmanager
def in_double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


REGIONS: dict[str, Callable[[], Any]] = {
    "autocast": lambda: torch.autocast("cpu", dtype=torch.float16, cache_enabled=False),
    "no_grad": torch.no_grad,
    "enable_grad": torch.enable_grad,
    "inference_mode": torch.inference_mode,
    "attention": lambda: sdpa_kernel([SDPBackend.MATH], set_priority=True),
    "hooks": lambda: torch.autograd.graph.disable_saved_tensors_hooks("not here"),
    "deterministic": deterministic,
    "in double": in_double,
    "dual level": forward_ad.dual_level,
    "forward grad": lambda: forward_ad._set_fwd_grad_enabled(False),
}


class Within(nn.Module):
    """Calls a function within a region after another one, or a transform of it."""

    def __init__(
        self, region: str, function: Callable[..., Any], before: Callable[..., Any] = torch.tanh
    ) -> None:
        super().__init__()
        self.before = before
        self.layer, self.region, self.function = nn.Linear(4, 4), region, function

    def forward(self, x):
        x = self.before(self.layer(x))
        if self.region == "jvp":
            return torch.func.jvp(self.function, (x,), (x,))[1]
        if self.region == "grad":
            return torch.func.grad(lambda row: self.function(row).sum())(x)
        with REGIONS[self.region]():
            y = self.function(x)
        return x + y.float() * 2


@pytest.fixture(autouse=True)
def unchanged() -> Iterator[None]:
    """Fail a test that leaves anything changed."""
    before = state()
    yield
    assert not changed(before)


def ended(call: Callable[..., Any], *args: Any, **kwargs: Any) -> type[BaseException] | None:
    """Return the class of the error that a call raises, None if it returns; fail if it leaves anything changed."""
    before = state()
    try:
        call(*args, **kwargs)
    except BaseException as error:
        # While the error lives, and with it what its frames hold.
        assert not changed(before)
        kind = type(error)
    else:
        kind = None
    assert not changed(before)
    return kind


@pytest.mark.slow
@pytest.mark.parametrize("region", [*REGIONS, "jvp"])
def test_interrupted_traces(region):
    """Dynamo, autopar's own trace and its check on fake tensors are interrupted in turn."""
    TRACES.update({"so far": 0, "interrupted": 0})
    autopar.compile(Within(region, noticed), ["cpu"])(X)
    count = TRACES["so far"]
    assert count >= 2
    for outer in (torch.no_grad, contextlib.nullcontext):
        for number in range(1, count + 1):
            TRACES.update({"so far": 0, "interrupted": number})
            fast = autopar.compile(Within(region, noticed), ["cpu"])
            with outer():
                assert ended(fast, X) is KeyboardInterrupt
    fast(X)


@pytest.mark.slow
@pytest.mark.parametrize("region", [*REGIONS, "jvp", "grad"])
def test_errors_within_regions(region):
    """In the first call, which is compared with eager, and later; in a graph that runs as written too, as one does that
    torch cannot differentiate."""
    for check, before in (("first", torch.tanh), ("never", torch.tanh), ("first", noticed)):
        fast = autopar.compile(Within(region, cholesky, before), ["cpu"], check=check)
        for _ in range(2):
            assert issubclass(ended(fast, X), torch.linalg.LinAlgError)
    step = autopar.train_step(
        model := Within(region, cholesky), nn.MSELoss(), torch.optim.SGD(model.parameters(), 0.1), ["cpu"]
    )
    assert ended(step, X, X) is not None


@pytest.mark.parametrize("outer", [True, False])
def test_weights_of_other_models_under_autocast(outer):
    """After a capture that failed within an autocast region, eager models that autopar has never seen cast their
    weights anew."""
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=outer):
        autopar.compile(Within("autocast", noticed), ["cpu"])(X)
    assert nesting() == 0
    other = nn.Linear(4, 4)
    for _ in range(3):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = other(X)
        wanted = nn.functional.linear(X.bfloat16(), other.weight.bfloat16(), other.bias.bfloat16())
        assert torch.allclose(found.float(), wanted.float(), atol=0.02)
        with torch.no_grad():
            other.weight.mul_(-2)
            other.bias.mul_(-2)


@pytest.mark.slow
def test_refusals_and_plans():
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    fast = autopar.compile(net, ["cpu"], memory={"cpu": 10})
    assert ended(fast, X) is autopar.MemoryCapError

    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            with torch.no_grad(), torch.autocast("cpu"):
                x = self.layer(x)
                torch._dynamo.graph_break()
                return noticed(x)

    assert ended(autopar.plan, Broken(), ["cpu"], example_inputs=(X,)) is autopar.CaptureError
    assert ended(autopar.compile, Broken(), ["cpu"], example_inputs=(X,)) is None
    assert ended(autopar.compile(Broken(), ["cpu"]), X) is None
    assert ended(autopar.plan, net, ["cpu"], example_inputs=(X,)) is None
    step = autopar.train_step(net, nn.MSELoss(), torch.optim.SGD(net.parameters(), 0.1), ["cpu"])
    assert ended(step.prepare, X, X) is None
    assert ended(step, X, X) is None
