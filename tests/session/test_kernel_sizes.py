"""Kernels that serve calls of all sizes: compiled once, right for each; else for the first few sets of sizes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from compilers import Folding, alone, using
from sized_kernels import SIZES, Attention, Open, alike, ids
from torch import fx, nn

import autopar
from autopar.runtime.kernels import LIBRARIES
from autopar.session.program_cache import CHECKED

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with alone(tmp_path, monkeypatch):
        yield


def compiled(model: nn.Module, kernels: str = "auto") -> Any:
    """The model after calls of two sizes, the second of which is captured for all."""
    fast = autopar.compile(model, ["cpu"], kernels=kernels)
    for sizes in SIZES[:2]:
        alike(fast, model, sizes)
    return fast


def test_one_kernel_serves_all_sizes_and_sees_changed_weights_in_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    library = Open()
    using(monkeypatch, library, fastest="folding")
    model = Attention().eval()
    fast = compiled(model)
    assert len(library.built) == 2, "for the sizes of the first call, and for all"
    for sizes in (*SIZES, *SIZES):
        alike(fast, model, sizes)
        assert fast.serving == "folding"
    assert len(library.built) == 2
    assert " for all sizes from 2 on, chosen with ids [4, 6]\n" in fast.explain()
    assert "its kernels are compiled for all sizes" in " ".join(fast.explain().split())
    # Calls of axes that are too short have programs of their own.
    for sizes in ((1, 5), (5, 1), (1, 1), (0, 3)):
        alike(fast, model, sizes)
    before = len(library.built)
    for sizes in SIZES[1:4]:
        model.out.weight.mul_(1.5)
        alike(fast, model, sizes)
        # The next call builds again, whatever its sizes.
        alike(fast, model, SIZES[7])
        assert fast.serving == "folding"
    assert len(library.built) == before + 3


class Gaps(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.float() * 2).relu()[:, 1:, None].expand(-1, -1, 3) + 1


def test_layouts_of_any_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    using(monkeypatch, Open(), fastest="folding")
    model = Gaps()
    fast = autopar.compile(model, ["cpu"], kernels="auto")
    for sizes in SIZES:
        x = ids(sizes)
        ours, right = fast(x), model(x)
        assert torch.equal(ours, right) and ours.stride() == right.stride()


@dataclass(eq=False)
class Partial(Open):
    """Wrong, or an error, for calls of all sizes where `fails` says so of the shape of an input."""

    fails: Callable[[Sequence[int]], bool] = lambda shape: False
    raises: bool = False

    def build(self, module: fx.GraphModule, inputs: Sequence[torch.Tensor]) -> Callable[..., Any]:
        call, open = super().build(module, inputs), bool(module.meta.get("axes"))

        def partial(*tensors: torch.Tensor) -> Any:
            failing = open and any(self.fails(tensor.shape) for tensor in tensors)
            if failing and self.raises:
                raise ValueError("not for this one")
            return tuple(made + 1 if failing else made for made in call(*tensors))

        return partial


@pytest.mark.parametrize(
    ("fails", "raises"),
    [
        # Found right after compilation, and in a later call.
        (lambda shape: any(n % 2 for n in shape), False),
        (lambda shape: max(shape) > 17, False),
        (lambda shape: max(shape) > 17, True),
    ],
    ids=["odd", "long", "long, by an error"],
)
def test_a_kernel_that_is_wrong_for_other_sizes_serves_none(
    fails: Callable[..., bool], raises: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = Partial(fails=fails, raises=raises)
    using(monkeypatch, library, fastest="folding")
    model = Attention().eval()
    fast = autopar.compile(model, ["cpu"], kernels="auto", dynamic=True)
    for sizes in ((2, 4), (4, 6), (8, 30), *SIZES):
        alike(fast, model, sizes)
    text = fast.explain("all")
    assert " for ids [2, 4]\n" in text or "eager serves some sizes: " in text


def test_kernels_for_one_set_of_sizes_are_built_for_the_first_few(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Folding()
    using(monkeypatch, library, fastest="folding")
    model = Attention().eval()
    fast = autopar.compile(model, ["cpu"], kernels="auto", dynamic=True)
    for sizes in (*SIZES, *SIZES):
        alike(fast, model, sizes)
    assert len(library.built) == CHECKED
    text = fast.explain("all")
    assert all(f" for ids {list(sizes)}\n" in text for sizes in SIZES[:CHECKED])
    assert f"libraries compile for the first {CHECKED} sets only" in " ".join(text.split())


def test_a_verdict_holds_for_sizes_of_a_magnitude(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Open()
    using(monkeypatch, library, fastest="eager")

    def built(*sizes: int) -> int:
        torch._dynamo.reset()
        before, model = len(library.built), nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 4))
        fast = autopar.compile(model, ["cpu"], kernels="auto", dynamic=True)
        torch.testing.assert_close(fast(x := ids(sizes)), model(x))
        return len(library.built) - before

    assert built(5, 20) and not built(6, 21) and built(40, 200)


@pytest.mark.parametrize("door", ["loop", "step"])
def test_training_with_one_kernel_for_all_sizes(door: str, monkeypatch: pytest.MonkeyPatch) -> None:
    library = Open("lifted", folds=False)
    using(monkeypatch, library, fastest="lifted")
    losses: dict[str, list[Any]] = {}
    for kind in ("eager", "auto"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        with torch.enable_grad():
            losses[kind] = _losses(door, kind, model, optimizer)
    # For each of the first four sets of sizes, forward and backward would be eight, beside the first capture's.
    assert 0 < len(library.built) < 10
    torch.testing.assert_close(losses["eager"], losses["auto"])


def _losses(door: str, kind: str, model: nn.Module, optimizer: Any) -> list[Any]:
    """Losses of steps of many sizes, and the weights after them."""
    criterion, losses = nn.MSELoss(), []
    if door == "step":
        step = autopar.train_step(model, criterion, optimizer, ["cpu"], kernels=kind)
    else:
        fast = autopar.compile(model, ["cpu"], kernels=kind)
    for number, sizes in enumerate((*SIZES, *SIZES)):
        generator = torch.Generator().manual_seed(number)
        x, y = (torch.randn(*sizes, width, generator=generator) for width in (8, 4))
        if door == "step":
            losses.append(step(x, y).item())
        else:
            optimizer.zero_grad()
            loss = criterion(fast(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return [*losses, *(parameter.detach() for parameter in model.parameters())]


# Inductor takes half a minute for each, and OpenVINO 15 s.
@pytest.mark.parametrize(
    "name",
    [
        name if name == "onnxruntime" else pytest.param(name, marks=pytest.mark.release)
        for name, library in LIBRARIES.items()
        if library.any_size
    ],
)
def test_each_library_compiles_for_all_sizes(name: str) -> None:
    if missing := LIBRARIES[name].missing():
        pytest.skip(missing)
    torch.manual_seed(1)
    model = Attention().eval()
    fast = autopar.compile(model, ["cpu"], kernels=name, dynamic=True)
    for sizes in (*SIZES, *SIZES):
        alike(fast, model, sizes)
        assert fast.serving == name, fast.explain()
    assert re.search(rf"{name} .*chosen", fast.explain()) and "for all sizes" in fast.explain()


@pytest.mark.release
def test_lengths_are_within_the_limits_that_the_export_has_found() -> None:
    """A table of positions ends: beyond it PyTorch's operators answer, or raise."""

    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.randn(40, 8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.table[: x.shape[0]]

    model = Positions()
    fast = autopar.compile(model, ["cpu"], kernels="onnxruntime", dynamic=True)
    for length in (6, 9, 40, 17):
        x = torch.randn(length, 8)
        torch.testing.assert_close(fast(x), model(x))
    with pytest.raises(Exception, match="size"):
        fast(torch.randn(41, 8))
