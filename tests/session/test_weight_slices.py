"""Parts of weights live on the devices that read them: a layer that is too large for one device runs on several."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from machines import away, capped
from torch import nn

import autopar
from autopar.errors import MemoryCapError
from autopar.ir.machine import Machine
from autopar.transform.feature_split import LABEL

WIDE = 256


def pair(wide: int = WIDE) -> nn.Sequential:
    return nn.Sequential(nn.Linear(32, wide), nn.GELU(), nn.Linear(wide, 32)).eval()


def nbytes(model: nn.Module) -> int:
    return sum(parameter.nbytes for parameter in model.parameters())


def close(found: torch.Tensor, right: torch.Tensor) -> None:
    """Equal within float32 rounding."""
    assert (found - right).abs().max() <= 1e-5 * max(1.0, float(right.abs().max()))


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("model", [pair(), nn.Linear(64, WIDE).eval()], ids=["pair", "column"])
def test_a_layer_too_large_for_each_device_runs_on_two(model: nn.Module) -> None:
    x = torch.randn(3, next(model.parameters()).shape[1])
    options = {"devices": capped(int(0.7 * nbytes(model))), "policy": away, "measure": False}
    with pytest.raises(MemoryCapError):
        autopar.compile(model, split=None, example_inputs=(x,), **options)
    fast = autopar.compile(model, split="features", **options)
    close(fast(x), model(x))
    held = {name: memory for name, memory in fast.plan.peaks.items() if name != "cpu"}
    assert len(held) == 2 and all(0 < most < 0.7 * nbytes(model) for most in held.values())
    assert "has the parts it reads" in " ".join(fast.explain("all").split())
    with fast.record() as recording:
        fast(x)
    measured = {memory.device: memory.peak for memory in recording.last.memory}
    assert all(measured[name] < 0.7 * nbytes(model) for name in held)
    # At home a part is no memory of its own.
    assert fast.plan.peaks["cpu"] < 1.2 * nbytes(model)


@torch.no_grad()
def test_a_table_too_large_for_each_device_is_cut_by_words() -> None:
    model, words = nn.Sequential(nn.Embedding(256, 16), nn.Linear(16, 8)), torch.randint(0, 256, (3, 5))
    cap = int(0.7 * nbytes(model))
    with pytest.raises(MemoryCapError):
        autopar.plan(model, capped(cap), example_inputs=(words,), split=None, policy=away, measure=False)
    fast = autopar.compile(model, capped(cap), split="features", policy=away, measure=False)
    close(fast(words), model(words))
    assert all(peak <= cap for name, peak in fast.plan.peaks.items() if name != "cpu")
    with pytest.raises(autopar.errors.AutoparError, match="out of range"):
        fast(words + 256)


def slowly(cap: int | None, **rates: float) -> Machine:
    """`capped`, with links over which no weights are streamed."""
    machine = capped(cap, **rates)
    return replace(machine, links=tuple(replace(link, bytes_per_s=1e8) for link in machine.links))


@pytest.mark.slow
@torch.no_grad()
def test_auto_cuts_what_does_not_fit_whatever_the_batch_and_only_that() -> None:
    model, x = pair(), torch.randn(6, 32)
    for cap, label in ((int(0.7 * nbytes(model)), LABEL), (4 * nbytes(model), "")):
        machine = slowly(cap)
        plan = autopar.plan(model, machine, example_inputs=(x,), measure=False)
        assert plan.costed.graph.split.startswith(LABEL) == bool(label)
        whole = autopar.plan(model, machine, example_inputs=(x,), measure=False, split=None)
        assert plan.makespan <= whole.makespan
    # Where the CPU alone is quicker nothing is cut, though a layer is too large for the others.
    small = autopar.plan(model, slowly(nbytes(model) // 2, host=1e13), example_inputs=(x,), measure=False)
    assert not small.costed.graph.split and {step.device for step in small.placed} == {"cpu"}


@torch.no_grad()
def test_changed_weights_are_seen_in_parts() -> None:
    model, x = pair(), torch.randn(1, 32)
    fast = autopar.compile(model, capped(None), split="features", policy=away, measure=False, check="never")

    def same() -> None:
        close(fast(x), model(x))

    same()
    model[0].weight.mul_(2.0)
    same()
    model.load_state_dict({key: torch.randn_like(value) for key, value in model.state_dict().items()})
    same()
    model[2].weight.data = torch.randn_like(model[2].weight)
    same()
    # The sampled elements of each part are among these.
    model[2].weight.data.add_(1.0)
    same()
    model[2].weight = nn.Parameter(torch.randn_like(model[2].weight))
    same()
    model[0].weight.data.view(-1)[17] = 50.0
    fast.refresh()
    same()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, fused=True)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    same()


@torch.no_grad()
def test_weights_that_stay_at_home_are_brought_in_parts() -> None:
    model, x = pair(), torch.randn(2, 32)
    fast = autopar.compile(
        model, capped(int(0.7 * nbytes(model))), split="features", policy=away, measure=False, home="cpu"
    )
    close(fast(x), model(x))
    weight = model[0].weight
    brought = [moved for moved in fast.plan.transfers if moved.bytes == weight.nbytes // 2]
    assert len(brought) == 4 and not any(moved.bytes == weight.nbytes for moved in fast.plan.transfers)
    weight.mul_(3.0)
    close(fast(x), model(x))


@pytest.mark.slow
@settings(max_examples=4, deadline=None)
@given(st.integers(2, 4), st.integers(1, 3), st.integers(1, 4), st.booleans())
def test_any_pair_in_any_number_of_parts_is_the_pair(parts: int, each: int, rows: int, bias: bool) -> None:
    wide = 4 * parts * each
    model = nn.Sequential(nn.Linear(6, wide, bias), nn.ReLU(), nn.Linear(wide, 5, bias)).eval()
    x = torch.randn(rows, 6)
    with torch.no_grad():
        fast = autopar.compile(model, capped(None, parts), split="features", policy=away, measure=False)
        close(fast(x), model(x))
    sizes = {value.slice.length for value in fast.plan.costed.graph.values if value.slice}
    assert sizes and all(wide % size == 0 for size in sizes)


def test_a_plan_with_parts_is_saved_and_given_again(tmp_path) -> None:
    model, x = pair(), torch.randn(2, 32)
    machine = capped(int(0.7 * nbytes(model)))
    with torch.no_grad():
        plan = autopar.plan(model, machine, example_inputs=(x,), split="features", policy=away, measure=False)
        plan.save(tmp_path / "plan.json")
        fast = autopar.compile(model, machine, plan=tmp_path / "plan.json", measure=False)
        close(fast(x), model(x))
    assert fast.plan.costed.graph.values == plan.costed.graph.values
