"""Rows of `python -m autopar bench --suite gpu` of models that are not all on the GPU: each contestant has figures
and is right. A real GPU has the suite itself."""

from __future__ import annotations

import math
from typing import Any

import pytest
import rig
import torch
from benchmarks.timed import gpu, racing
from rig import FIRST

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(rig.KIND == "cuda", reason="run python -m autopar bench --suite gpu"),
]


def figures(row: str) -> dict[str, Any]:
    """The data of a row, with the `names` of the contestants that have figures."""
    data = gpu.ROWS[row](FIRST, 1)
    contestants = {
        name: found for name, found in data.items() if isinstance(found, dict) and name != "samples_s"
    }
    names = {name for name, found in contestants.items() if "failed" not in found}
    for name in names:
        found = contestants[name]
        assert found["median_s"] > 0 and found["ratio"] > 0 and found["error"] <= 1e-4
        assert 0 <= found["kept_bytes"] <= found["peak_bytes"]
        assert data["samples_s"][name]
    return {**data, "names": names}


ACCELERATE = {f"accelerate {name}" for name in ("cpu_offload", "cpu_offload, pinned", "dispatch_model")}
OTHERS = {"eager, cpu", f"eager, {FIRST}, no cap", "autopar", 'autopar, home="cpu"'}


def test_a_model_four_times_as_large_as_the_cap() -> None:
    pytest.importorskip("accelerate")
    data = figures("larger, 4 times")
    cap, free = data["cap_bytes"], f"eager, {FIRST}, no cap"
    assert data["names"] == OTHERS | ACCELERATE
    assert data[free]["peak_bytes"] > 4 * cap
    assert all(
        data[name]["peak_bytes"] <= cap and "above_cap" not in data[name] for name in data["names"] - {free}
    )
    for name in ("accelerate dispatch_model", 'autopar, home="cpu"'):
        assert data[name]["peak_bytes"] > 0, f"{name} leaves the accelerator idle"


def test_copies_behind_compute() -> None:
    data = figures("copies")
    assert data["names"] == {"compute alone", "copies alone", "in turn, one stream", "autopar, streamed"}
    longer, shorter = sorted(
        (data["compute alone"]["median_s"], data["copies alone"]["median_s"]), reverse=True
    )
    overlapped = data["autopar, streamed"]["median_s"]
    assert data["ratio"] == pytest.approx(overlapped / longer)
    assert data["hidden"] == pytest.approx((longer + shorter - overlapped) / shorter)


def test_the_update_on_the_cpu() -> None:
    data = figures("update")
    forced = "autopar.train_step, updates on the CPU"
    assert data["names"] == {
        f"loop, Adam on {FIRST}", "loop, then Adam on the CPU", "autopar.train_step", forced
    }  # fmt: skip
    assert data[forced]["updates_on"] == ["cpu"]
    state_too = data[f"loop, Adam on {FIRST}"]["kept_bytes"]
    assert data[forced]["peak_bytes"] < state_too


def test_a_wrong_contestant_is_not_timed_and_one_above_the_cap_is_named(capsys) -> None:
    x = torch.ones(1000, device=FIRST)
    expected = [(x + 1).cpu()]

    def failing() -> racing.Call:
        raise ValueError("no such library\nmore")

    makers = {
        "eager": lambda: lambda: (x + 1).cpu(),
        "wrong": lambda: lambda: (x + 1.001).cpu(),
        "not a number": lambda: lambda: (x + math.nan).cpu(),
        "large": lambda: lambda: (x.repeat(9).view(9, -1)[0] + 1).cpu(),
        "failing": failing,
    }
    data = racing.race(makers, expected, FIRST, 2, base="eager", cap=3 * x.nbytes)
    assert data["eager"]["peak_bytes"] == 4096 and data["eager"]["ratio"] == 1
    assert "WRONG" in data["wrong"]["failed"] and "WRONG" in data["not a number"]["failed"]
    assert data["large"]["above_cap"] and "above_cap" not in data["eager"]
    assert "large does NOT keep to the cap of 12.0 kB" in capsys.readouterr().out
    assert data["failing"]["failed"] == "ValueError: no such library"
    assert list(data["samples_s"]) == ["eager", "large"] and len(data["samples_s"]["eager"]) >= 2
