"""Each library that compiles kernels, held against eager, in inference and in training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from compilers import Folding, alone, pieces, using
from torch import nn

import autopar
from autopar.ir.program import Compute, Piece
from autopar.runtime.kernels import LIBRARIES
from autopar.session.compiled import Compiled

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with alone(tmp_path, monkeypatch):
        yield


def compiled(model: Any, x: torch.Tensor, library: str) -> Compiled:
    if missing := LIBRARIES[library].missing():
        pytest.skip(missing)
    return autopar.compile(model, ["cpu"], kernels=library, example_inputs=(x,))


class Convolutions(nn.Module):
    """A residual and batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.two, self.head = nn.Conv2d(8, 8, 3, padding=1), nn.Linear(8, 4)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu_(self.norm(self.one(x)))
        return h + torch.tanh(self.two(h))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(x).mean((2, 3)))


class Attention(Convolutions):
    """Causal attention over the pixels of an image, a table of positions: views, integers, several outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(20, 8), nn.LayerNorm(8)
        self.mix, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        pixels = self.features(x).flatten(2).transpose(1, 2)
        ids = torch.arange(pixels.shape[1]) % 20
        h = self.layer(pixels + self.table(ids))
        q, k, v = self.mix(h).view(*h.shape[:2], 3, 2, 4).permute(2, 0, 3, 1, 4)
        a = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = h + self.out(a.transpose(1, 2).reshape(h.shape))
        return h, h.argmax(-1), h[:, -1]


class Bags(nn.Module):
    """Embedding bags whose ids are rows of one tensor, and a layer above."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(20, 8, mode=mode) for mode in ("sum", "mean"))
        self.head = nn.Linear(16, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(torch.cat([bag(own) for bag, own in zip(self.bags, ids)], 1).relu())


def _marked(name: str) -> list[Any]:
    """Inductor takes 15 s and more for each."""
    return [pytest.mark.release] if name.startswith("inductor") else []


@pytest.mark.parametrize("name", [pytest.param(name, marks=_marked(name)) for name in LIBRARIES])
def test_bags_of_rows_are_within_one_piece(name: str) -> None:
    model, ids = Bags().eval(), torch.randint(20, (2, 6, 3))
    fast = compiled(model, ids, name)
    assert [*map(type, pieces(fast))] == [Piece], fast.explain()
    torch.testing.assert_close(fast(ids), model(ids), rtol=1e-5, atol=1e-6)


class Exotic(nn.Module):
    """Layers around an operator that few libraries know."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(torch.special.i1e(self.one(x).relu()).tanh())


def test_an_operator_that_a_library_turns_out_to_lack_stays_eager() -> None:
    model, x = Exotic().eval(), torch.randn(3, 6)
    fast = compiled(model, x, "openvino")
    assert [*map(type, pieces(fast))] == [Piece, Compute, Piece], fast.explain()
    torch.testing.assert_close(fast(x), model(x), rtol=1e-5, atol=1e-6)


def test_a_library_that_lacks_all_operators_says_which() -> None:
    fast = compiled(torch.special.i1e, torch.randn(3, 6), "openvino")
    assert fast.serving == "eager" and "aten.special_i1e.default" in fast.explain()


def _long(name: str, case: str) -> bool:
    """True where inductor compiles for half a minute, and where a library has the whole layer, as another here."""
    slow = name == "inductor" or (name == "inductor frozen" and case == "attention")
    return slow or (name == "openvino" and case == "lstm")


@pytest.mark.parametrize(
    ("name", "case"),
    [
        pytest.param(
            name, case, id=f"{case}-{name}", marks=[pytest.mark.release] if _long(name, case) else []
        )
        for name in LIBRARIES
        for case in ("attention", "lstm", "encoder")
    ],
)
def test_each_library_is_equal_to_eager(name: str, case: str) -> None:
    torch.manual_seed(1)
    cases: dict[str, tuple[nn.Module, torch.Tensor]] = {
        "attention": (Attention(), torch.randn(2, 8, 8, 3).permute(0, 3, 1, 2).requires_grad_()),
        "lstm": (nn.LSTM(8, 8, batch_first=True), torch.randn(2, 5, 8)),
        "encoder": (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), torch.randn(2, 5, 8)),
    }
    model, x = cases[case]
    model.eval()
    fast = compiled(model, x, name)
    assert fast.serving == name or case != "attention", fast.explain()
    for factor in (1.0, 1.5):
        next(model.parameters()).mul_(factor)
        for _ in range(2):
            found, expected = (torch.utils._pytree.tree_leaves(each(x)) for each in (fast, model))
            for ours, right in zip(found, expected, strict=True):
                torch.testing.assert_close(ours, right, rtol=1e-5, atol=1e-6)
                assert ours.stride() == right.stride()


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 4))


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))


# Each operator more is seconds of inductor's: those with statistics take 40.
@pytest.mark.parametrize(
    ("name", "made", "door"),
    [
        ("lifted", normed, "loop"),
        *(
            pytest.param(*case, marks=pytest.mark.release)
            for case in (
                ("inductor", plain, "loop"),
                ("inductor", normed, "loop"),
                ("inductor", normed, "step"),
                ("lifted", normed, "step"),
            )
        ),
    ],
)
def test_training_with_compiled_kernels_is_that_of_eager(
    name: str, made: Callable[[], nn.Module], door: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Losses, weights and statistics over some steps."""
    if name == "lifted":
        using(monkeypatch, Folding("lifted", folds=False), fastest="lifted")
    x, y = torch.randn(6, 12), torch.randint(4, (6,))
    criterion = nn.CrossEntropyLoss()
    found: dict[str, Any] = {}
    with torch.enable_grad():
        for kind in ("eager", "auto" if name == "lifted" else name):
            torch.manual_seed(2)
            model = made()
            optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
            if door == "step":
                step = autopar.train_step(model, criterion, optimizer, ["cpu"], kernels=kind)
            else:
                fast = autopar.compile(model, ["cpu"], kernels=kind)
            losses = []
            for _ in range(8):
                if door == "step":
                    losses.append(float(step(x, y)))
                else:
                    loss = criterion(fast(x), y)
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    losses.append(float(loss))
            found[kind if kind == "eager" else name] = losses, model.state_dict()
            if kind != "eager":
                assert (step if door == "step" else fast).serving == name
    torch.testing.assert_close(found[name][0], found["eager"][0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found[name][1], found["eager"][1], rtol=1e-4, atol=1e-5)
