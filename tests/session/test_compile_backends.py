"""Kernels of backends of `torch.compile`, by name."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from compilers import alone, mlp
from torch import nn

import autopar
from autopar.errors import PlanError

pytestmark = pytest.mark.slow

SEEN: list[tuple[str, int]] = []
"""The thread and the number of arguments of each compilation by `backend_of_a_test`."""


def backend_of_a_test(module: torch.fx.GraphModule, examples: list[torch.Tensor]) -> Any:
    SEEN.append((threading.current_thread().name, len(examples)))
    return module.forward


def backend_that_fails(module: torch.fx.GraphModule, examples: list[torch.Tensor]) -> Any:
    raise ValueError("no such instruction")


def backend_that_is_wrong(module: torch.fx.GraphModule, examples: list[torch.Tensor]) -> Any:
    return lambda *tensors: tuple(made + 1 for made in module(*tensors))


@pytest.fixture(scope="module", autouse=True)
def registered() -> None:
    for backend in (backend_of_a_test, backend_that_fails, backend_that_is_wrong):
        torch._dynamo.register_backend(backend)


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    SEEN.clear()
    with alone(tmp_path, monkeypatch):
        yield


def test_a_backend_compiles_in_the_first_call_and_serves() -> None:
    model, x = mlp(), torch.randn(5, 8)
    fast = autopar.compile(model, ["cpu"], kernels="backend_of_a_test")
    fast(x)
    # Four tensors of the linear layers, four of the norm, and the input.
    assert [(threading.current_thread().name, 9)] == SEEN
    for scale in range(3):
        assert torch.equal(fast(scale * x), model(scale * x))
    assert fast.serving == "backend_of_a_test" and len(SEEN) == 1
    assert "backend_of_a_test" in fast.explain()


def test_weights_are_arguments_so_that_a_change_needs_no_compilation() -> None:
    model, x = mlp(), torch.randn(5, 8)
    fast = autopar.compile(model, ["cpu"], kernels="aot_eager", example_inputs=(x,))
    for _ in range(5):
        model[0].weight.mul_(1.5)
        model[1].running_mean.add_(0.1)
        torch.testing.assert_close(fast(x), model(x), rtol=1e-6, atol=1e-6)
        assert fast.serving == "aot_eager"


@pytest.mark.parametrize(
    ("name", "why"),
    [("backend_that_fails", "no such instruction"), ("backend_that_is_wrong", "its answer differs")],
)
def test_a_backend_that_fails_or_is_wrong_leaves_the_call_to_eager(name: str, why: str) -> None:
    model, x = mlp(), torch.randn(5, 8)
    fast = autopar.compile(model, ["cpu"], kernels=name, example_inputs=(x,))
    for _ in range(5):
        assert torch.equal(fast(x), model(x))
    assert fast.serving == "eager" and why in fast.explain()


@pytest.mark.parametrize("name", ["autopar", "no_such_backend", 3, None])
def test_other_names_are_refused(name: Any) -> None:
    with pytest.raises(
        PlanError, match=r"kernels=.* is not known; give one of .*torch\.compiler\.list_backends"
    ):
        autopar.compile(mlp(), ["cpu"], kernels=name)


def test_several_lanes_run_a_backend() -> None:
    model, x = mlp(), torch.randn(6, 8)
    fast = autopar.compile(
        model, ["cpu*2"], kernels="backend_of_a_test", split=2, policy="round_robin", example_inputs=(x,)
    )
    assert fast.serving == "backend_of_a_test" and len(SEEN) > 1
    torch.testing.assert_close(fast(x), model(x), rtol=1e-6, atol=1e-6)


@torch.enable_grad()
def test_training_runs_a_backend_bit_for_bit() -> None:
    model, other = mlp().train(), mlp().train()
    criterion = nn.CrossEntropyLoss()
    optimizer, rival = (torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (model, other))
    step = autopar.train_step(model, criterion, optimizer, ["cpu"], kernels="backend_of_a_test")
    for _ in range(8):
        x, y = torch.randn(5, 8), torch.randint(4, (5,))
        loss = step(x, y)
        rival.zero_grad()
        right = criterion(other(x), y)
        right.backward()
        rival.step()
        assert torch.equal(loss, right.detach())
    assert SEEN and "backend_of_a_test" in step.serving
    assert all(map(torch.equal, model.parameters(), other.parameters()))


def test_threads_that_trace_take_turns() -> None:
    """Two traces at once leave a flag of torch set, and each later call of a compiled model fails."""
    failed: list[BaseException] = []

    def several() -> None:
        try:
            with torch.no_grad():
                for _ in range(3):
                    model = mlp()
                    fast = autopar.compile(model, ["cpu"], kernels="aot_eager")
                    for _ in range(4):
                        x = torch.randn(5, 8)
                        torch.testing.assert_close(fast(x), model(x))
                    assert fast.serving == "aot_eager"
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=several) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed and not torch.compiler.is_compiling()
    assert not torch.fx._symbolic_trace.is_fx_tracing()
