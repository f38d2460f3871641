"""The rivals run what a user would have them run."""

from __future__ import annotations

import pytest
import torch
from compilers import Folding, alone, using
from torch import nn

from autopar.bench.contest import wrong
from autopar.bench.rivals import RIVALS, Case, chosen


@pytest.fixture
def case():
    class Named(nn.Module):
        """Two inputs, integers among them, and a nested answer."""

        def __init__(self):
            super().__init__()
            self.table, self.layer = nn.Embedding(10, 8), nn.Linear(8, 4)

        def forward(self, x, ids):
            y = self.layer(x + self.table(ids))
            return {"sum": y.sum(0), "rows": (y.relu(), y.argmax(1))}

    torch.manual_seed(0)
    return Case(Named().eval(), (torch.randn(4, 8), torch.randint(0, 10, (4,))))


def built(case, name):
    (rival,) = [rival for rival in RIVALS if rival.name == name]
    if rival.missing():
        pytest.skip(rival.missing())
    with torch.no_grad():
        return rival.build(case)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        # torch's own compiler takes long; what it has for constants is held against eager below.
        pytest.param(rival.name, marks=[pytest.mark.release] if rival.name.startswith("compile") else [])
        for rival in RIVALS
        if not rival.on_request
    ],
)
def test_each_gives_eagers_answer(case, name, monkeypatch, tmp_path):
    # What the libraries compile is held against eager in tests/session/test_kernel_libraries.py.
    with alone(tmp_path, monkeypatch), torch.no_grad():
        using(monkeypatch, Folding(), fastest="folding")
        eager = RIVALS[0].build(case).answers()
        entrant = built(case, name)
        error, why = wrong(entrant.answers(), eager, lambda: [eager], False)
        entrant.call()
        entrant.close()
    assert not why and error <= 1e-5
    torch.compiler.reset()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "follows"), [("compile", True), ("compile-frozen", False)])
def test_a_frozen_graph_has_its_weights_for_constants(name, follows):
    case = Case(nn.Linear(8, 8).eval(), (torch.randn(4, 8),))
    with torch.no_grad():
        entrant = built(case, name)
        built(case, "compile" if name != "compile" else "compile-frozen").call()
        entrant.call()
        case.model.weight.mul_(2)
        assert torch.allclose(entrant.call(), case.model(*case.args)) == follows
    torch.compiler.reset()


def test_unasked_all_but_the_slowest_take_part():
    names = [rival.name for rival in chosen([], RIVALS)]
    assert names[0] == "eager" and {"autopar", "compile", "onnxruntime", "openvino"} <= set(names)
    assert "max-autotune" not in names
    assert [rival.name for rival in chosen(["max-autotune"], RIVALS)] == ["eager", "max-autotune"]
