"""What a prompt, a notebook and the shell show."""

from __future__ import annotations

import pytest
import torch
from machines import turns
from pairs import compiled
from torch import nn

import autopar
from autopar.view import pages


def deep(layers: int) -> nn.Sequential:
    return nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16)) for _ in range(layers)))


@pytest.mark.slow
def test_the_repr_of_a_plan_fits_a_screen_and_says_what_it_leaves_out():
    machine, model = autopar.Machine.declare("cpu-16", "h100-sxm"), deep(12)
    pins = {path: "cuda:0" if device == "cpu" else "cpu" for path, device in turns(model).items()}
    with torch.no_grad():
        plan = autopar.plan(
            model, machine, example_inputs=(torch.ones(8, 16),), policy="heft", split=None, pins=pins
        )
    shown, every = repr(plan).splitlines(), str(plan).splitlines()
    assert len(shown) <= 40 < len(every)
    left = int(shown[-1].split()[1].replace(",", ""))
    assert len(every) == len(shown) - 1 + left and "print(plan)" in shown[-1]


def test_notebooks_draw_models_plans_timelines_and_machines(monkeypatch):
    fast = compiled(deep(2))
    assert fast._repr_html_().startswith("<pre")
    with torch.no_grad():
        fast(torch.ones(8, 16))
        with fast.record() as timeline:
            fast(torch.ones(8, 16))
    del timeline
    recorded = fast._placement.session.timeline
    for drawn in (fast, fast.plan, recorded):
        assert "<svg" in drawn._repr_html_() and len(drawn._repr_html_()) < 200_000
    assert "emulated:0" in fast.machine._repr_html_() and "<pre" in fast.machine._repr_html_()
    monkeypatch.setattr(pages, "_MOST_STEPS", 0)
    assert "<svg" not in fast.plan._repr_html_() + recorded._repr_html_()
    fast.close()


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(x).relu()

    def answer(self, x: torch.Tensor) -> torch.Tensor:
        return self(x) + 1

    def sizes(self) -> int:
        return self.first.in_features

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.encode(x))


def test_another_method_that_runs_as_written_is_counted():
    model, x = Encoder(), torch.randn(2, 8)
    fast = autopar.compile(model, ["cpu"])
    assert torch.allclose(fast(x), model(x)) and torch.allclose(fast.answer(x), model.answer(x))
    assert fast.sizes() == 8 and "as written" not in fast.explain()
    assert torch.equal(fast.encode(x), model.encode(x)) and torch.equal(fast.encode(x=x), model.encode(x))
    assert "2 calls ran as written: encode calls parts of Encoder" in fast.explain()
    assert "autopar.compile(model.encode, devices)" in fast.explain()


def test_a_method_is_compiled_by_itself():
    model, x = Encoder(), torch.randn(2, 8)
    fast = autopar.compile(model.encode, ["cpu"])
    fast(x).sum().backward()
    given = model.first.weight.grad.clone()
    model.zero_grad()
    model.encode(x).sum().backward()
    assert torch.allclose(given, model.first.weight.grad) and "as written" not in fast.explain()
