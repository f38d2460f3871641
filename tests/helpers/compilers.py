"""Libraries of kernels for tests, and how to let a test use them."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx, nn

from autopar.costs.blocks import Block
from autopar.costs.detect import detect
from autopar.runtime.kernels import LIBRARIES, Library
from autopar.session import kernel_selection, plain_model
from autopar.session.compiled import Compiled
from autopar.system import cache


@dataclass(eq=False)
class Folding:
    """A library for tests: it folds the weights as they are now, if it `folds`, and calls PyTorch's own kernels.

    built: the modules that it has compiled, each with the inputs.
    """

    name: str = "folding"
    off: Any = 0.0
    error: str = ""
    absent: str = ""
    able: bool = True
    folds: bool = True
    any_size: bool = False
    devices: frozenset[str] | None = None

    def __post_init__(self) -> None:
        self.built: list[tuple[fx.GraphModule, Sequence[torch.Tensor]]] = []

    def build(self, module: fx.GraphModule, inputs: Sequence[torch.Tensor]) -> Callable[..., Any]:
        self.built.append((module, inputs))
        if self.error:
            raise RuntimeError(self.error)
        if self.folds:
            for name, tensor in module.named_buffers():
                setattr(module, name, tensor.clone())

        def call(*tensors: torch.Tensor) -> Any:
            with torch.no_grad():
                return tuple(made + self.off if self.off else made for made in module(*tensors))

        return call


class Late(Folding):
    """Kernels that take their time, until they may come."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.begun, self.may = threading.Event(), threading.Event()

    def build(self, module: fx.GraphModule, inputs: Sequence[torch.Tensor]) -> Callable[..., Any]:
        self.begun.set()
        assert self.may.wait(60)
        return super().build(module, inputs)


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
    """Without verdicts of other tests, without gradients, and with one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    apart(folder, monkeypatch)
    with torch.no_grad():
        yield
    torch.set_num_threads(threads)


def using(
    monkeypatch: pytest.MonkeyPatch, *libraries: Folding, fastest: str = "", disturbed: bool = False
) -> None:
    """Let these be the libraries that are known, and time none of them."""
    for name in [*LIBRARIES]:
        monkeypatch.delitem(LIBRARIES, name)
    for each in libraries:
        known = Library(
            each.build, lambda each=each: each.absent, lambda *_, each=each: each.able,
            each.folds, each.any_size, each.devices,
        )  # fmt: skip
        monkeypatch.setitem(LIBRARIES, each.name, known)

    def timed(turns: Any, *_: Any) -> dict[str, list[Block]]:
        for call, _ in turns.values():
            call()
        first = fastest if fastest in turns else "placed"
        return {name: [Block(1.0 if name == first else 2.0, 1, disturbed)] for name in turns}

    for module in (kernel_selection, plain_model):
        monkeypatch.setattr(module, "timed", timed)


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4)).eval()


def pieces(fast: Compiled) -> list[Any]:
    """The steps of the programs with kernels, apart from those that free memory."""
    from autopar.ir.program import Free

    programs = [each.selection.candidate.executor._program for each in fast._placement.session.with_kernels()]
    return [
        step for each in programs for lane in each.lanes for step in lane.steps if not isinstance(step, Free)
    ]
