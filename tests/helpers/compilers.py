"""Compilers of kernels for tests, and how to let a test use them."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import autopar
from autopar.costs.blocks import Block
from autopar.costs.detect import detect
from autopar.engine.compiled import Compiled
from autopar.pipeline import kernel_choice, options
from autopar.runtime import trial
from autopar.runtime.kernels import STACKS, Compilation, Stack
from autopar.system import cache


class Folding:
    """A compiler for tests: it folds the weights as they are now, and calls PyTorch's own kernels."""

    frozen, traces, open = True, False, False
    devices: frozenset[str] | None = None

    def __init__(
        self, name: str = "folding", off: float = 0.0, error: str = "", absent: str = "", able: bool = True
    ) -> None:
        self.name, self.off, self.error, self.absent, self.able = name, off, error, absent, able
        self.built = 0

    def missing(self) -> str:
        return self.absent

    def keeps(self, task: Any, graph: Any) -> bool:
        return self.able

    def compile(self, work: Compilation) -> None:
        if self.error:
            raise RuntimeError(self.error)

    def load(self, work: Compilation) -> Callable[..., Any]:
        self.built += 1
        self.compile(work)
        for name, tensor in work.module.named_buffers():
            setattr(work.module, name, tensor.clone())

        def call(*tensors: torch.Tensor) -> Any:
            with torch.no_grad():
                return tuple(made + self.off if self.off else made for made in work.module(*tensors))

        return call


class Late(Folding):
    """Kernels that take their time, until they may come."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.begun, self.may = threading.Event(), threading.Event()

    def load(self, work: Compilation) -> Callable[..., Any]:
        self.begun.set()
        assert self.may.wait(60)
        return super().load(work)


class Idle:
    """No process: the compilers of tests compile as they load."""

    spent_s = 0.0

    def compile(self, *_: Any) -> None:
        """Nothing."""

    def stop(self) -> None:
        """Nothing."""


class Here:
    """Compiles in this process, which saves the start of another."""

    spent_s = 0.0

    def compile(self, stack: str, *job: Any) -> None:
        """Compile a piece."""
        (found,) = (each for each in STACKS if each.name == stack)
        found.compile(job[-1])

    def stop(self) -> None:
        """Nothing: nobody waits for it."""


def apart(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what other tests have measured of operations, in a folder of its own; the rates of this machine, which
    take most of a second to measure, are those that other tests have found."""
    detect(["cpu"])
    for kind in ("machine", "scales"):
        for file in cache.folder().glob(f"{kind}-*.json"):
            shutil.copy(file, folder)
    monkeypatch.setenv("AUTOPAR_CACHE", str(folder))


@contextmanager
def alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Without verdicts of other tests, without gradients, and with one thread: with more there are more contestants."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    apart(folder, monkeypatch)
    with torch.no_grad():
        yield
    torch.set_num_threads(threads)


def using(monkeypatch: pytest.MonkeyPatch, *stacks: Stack, fastest: str = "") -> None:
    """Let these be the compilers that are known, and time none of them."""
    monkeypatch.setattr(trial, "CALLS", 0)
    monkeypatch.setattr(kernel_choice, "STACKS", stacks)
    monkeypatch.setattr(options, "STACKS", stacks)

    def timed(turns: Any, *_: Any) -> dict[str, list[Block]]:
        for call, _ in turns.values():
            call()
        return {name: [Block(1.0 if name == fastest else 2.0, 1, False)] for name in turns}

    monkeypatch.setattr(kernel_choice, "timed", timed)
    monkeypatch.setattr(kernel_choice, "CompilerProcess", Idle)


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4)).eval()


def chosen(fast: Compiled) -> str:
    """The name of what serves."""
    (executor,) = fast._placement.backend.tuned()
    return executor.chosen.name if executor.chosen else "eager"


def compiled(model: nn.Module, x: torch.Tensor, kernels: str = "auto") -> Compiled:
    fast = autopar.compile(model, ["cpu"], kernels=kernels, example_inputs=(x,))
    fast.wait()
    return fast
