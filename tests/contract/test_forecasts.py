"""Forecasts price the rows that are asked for, whatever the rows of the example, and stay below the chip's peak."""

from __future__ import annotations

import json
from dataclasses import replace

import example_rows
import pytest

from autopar import Machine, PlanError
from autopar.__main__ import main
from autopar.distributed import forecast

pytestmark = pytest.mark.slow

ONE = "1 x (cpu + 1 a100) over ib-400"
A100 = Machine.declare("cpu", "a100").device["cuda:0"]


def step_s(tmp_path, monkeypatch, factory, rows, *words):
    """Seconds of a step that `whatif` forecasts from an example of some rows, by batch."""
    monkeypatch.setattr(example_rows, "make", lambda: factory(rows), raising=False)
    file, batches = tmp_path / "plans.json", [word for word in words if isinstance(word, int)]
    asked = [text for batch in batches for text in ("--hosts", ONE, "--batch", str(batch))]
    rest = [word for word in words if isinstance(word, str)]
    assert main(["whatif", "example_rows:make", *asked, *rest, "--json", str(file)]) == 0
    return [row["forecast"]["plan"]["step_s"] for row in json.loads(file.read_text())["rows"]]


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        ("perceptron", ("--infer", "latency")),
        ("masked", ("--infer", "latency")),
        ("perceptron", ()),
        ("image", ()),
        pytest.param("masked", (), marks=pytest.mark.release),
    ],
)
def test_few_rows_and_many_in_the_example_give_one_forecast(tmp_path, monkeypatch, factory, words):
    made = getattr(example_rows, factory)
    few, many = (step_s(tmp_path, monkeypatch, made, rows, 1, 64, 16384, *words) for rows in (1, 2048))
    assert many == pytest.approx(few, rel=0.1)


def test_no_forecast_is_above_the_peak_or_the_bandwidth_of_the_chip(tmp_path, monkeypatch):
    batches = 1, 512, 65536
    weights = 4 * example_rows.LAYERS * example_rows.WIDTH**2
    for rows in (2, 4096):
        found = step_s(tmp_path, monkeypatch, example_rows.perceptron, rows, *batches, "--infer", "latency")
        for batch, seconds in zip(batches, found):
            assert seconds >= weights / 2 * batch / A100.flops_per_s("float32")
            assert seconds >= weights / A100.bytes_per_s


def test_work_that_grows_with_the_square_of_the_rows_is_priced_so(tmp_path, monkeypatch):
    (less,), (more,) = (
        step_s(
            tmp_path, monkeypatch, example_rows.pairs, 2, batch, "--infer", "latency",
            "--micro-batch", str(batch),
        )
        for batch in (16384, 32768)
    )  # fmt: skip
    assert more == pytest.approx(4 * less, rel=0.1)


def test_a_model_that_is_another_for_each_number_of_rows_is_priced_for_those_of_its_example(capsys):
    words = ["whatif", "example_rows:row_by_row", "--hosts", ONE, "--batch", "16"]
    assert main(words) == 2
    assert "--micro-batch 2" in capsys.readouterr().err
    assert main([*words, "--micro-batch", "2"]) == 0
    assert "8 × 2" in capsys.readouterr().out


def test_a_forecast_above_the_peak_is_refused_as_a_bug(monkeypatch):
    planned = forecast.distribution

    def faster(*args, **kwargs):
        plan = planned(*args, **kwargs)
        return replace(plan, step_s=plan.step_s / 100)

    import torch

    with torch.device("meta"):
        model = forecast.captured(*example_rows.perceptron(8), train=False)
    hosts = forecast.Hosts.declare(ONE)
    asked = {"objective": "latency"}
    assert 0 < forecast.forecast(model, hosts, 16384, **asked).mfu < 1
    monkeypatch.setattr(forecast, "distribution", faster)
    with pytest.raises(PlanError, match=r"of the peak of 1 accelerators.*bug of autopar"):
        forecast.forecast(model, hosts, 16384, **asked)
