"""The examples of the tutorials' and the textbook's chapters run, at small settings, and say what is so."""

from __future__ import annotations

import functools
import importlib.util
import re
import sys
from pathlib import Path

import pytest
import torch

from autopar.cli import demo

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
# What a script finds beside itself.
sys.path.append(str(EXAMPLES))


def example(name: str):
    """An example as a module."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def main(module, monkeypatch, capsys, *arguments: str) -> str:
    """What an example prints."""
    monkeypatch.setattr(sys, "argv", [module.__file__, *arguments])
    module.main()
    return capsys.readouterr().out


@pytest.mark.slow
@torch.no_grad()
def test_independent_operations_are_found_and_run_at_once():
    ops = example("independent_ops")
    found = ops.eight(256)
    assert found["independent"] == 8 and found["equal"] == 1
    busy = ops.busy(pieces=4, size=256)
    lanes = [seconds for name, seconds in busy.items() if "/" in name]
    assert len(lanes) == 3 and min(lanes) > 0 and 0 <= busy["all three s"] <= min(lanes)
    ours, shown = ops.names(16)
    assert ours and shown == ours
    tangle = ops.tangle(80, seed=3)
    assert tangle["equal"] == 1 and tangle["tasks"] > 60 and tangle["transfers"] > 10
    assert ops.small(count=8, size=16)["both lanes busy s"] >= 0


def test_an_example_that_cannot_go_on_says_so_in_a_sentence(monkeypatch, capsys):
    import autopar

    def raising(error: Exception):
        def measure(*_, **__):
            raise error

        return measure

    for name, error, sentence in (
        ("kernel_distance", autopar.MemoryCapError("nothing fits"), "give more: nothing fits"),
        ("overlap_copy", autopar.LateError("1 s behind"), "no figures from this run: 1 s behind"),
        ("parallel_matmul", autopar.LateError("1 s behind"), "no figures from this run: 1 s behind"),
    ):
        module = example(name)
        monkeypatch.setattr(module, "measure", raising(error))
        with pytest.raises(SystemExit, match=sentence):
            main(module, monkeypatch, capsys)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(SystemExit, match=r"scikit-learn.*--data"):
        main(example("fashion_mnist"), monkeypatch, capsys)


@pytest.mark.slow
def test_data_parallel_linear(monkeypatch, capsys):
    module = example("linear_dataparallel")
    found = module.compare(5)
    assert found["keys"] == ["weight", "bias"] and found["split"] == "2 parts: 32 + 32"
    assert found["last"] < found["first"]
    assert max(found["losses"], found["weights"], found["output"]) <= 1e-4
    assert module.said(0.0) == "0 (bit for bit)" and module.said(3e-7) == "3.0e-07"
    assert "['weight', 'bias']" in main(module, monkeypatch, capsys, "--steps", "2")


@pytest.mark.slow
def test_the_digits_are_learnt(monkeypatch, capsys):
    pytest.importorskip("sklearn")
    out = main(example("fashion_mnist"), monkeypatch, capsys, "--devices", "cpu", "--epochs", "3")
    assert "batches of 32, SGD at 0.05" in out and "accuracies equal" in out
    for name in ("compiled", "plain"):
        line = next(line for line in out.splitlines() if line.strip().startswith(name))
        accuracies = [float(text) for text in re.findall(r"([\d.]+)%", line)]
        assert len(accuracies) == 3 and accuracies[-1] > max(70, accuracies[0])
    short = main(
        example("fashion_mnist"), monkeypatch, capsys, "--devices", "cpu", "--epochs", "1", "--lr", "1e-9"
    )
    assert "nothing was learnt" in short


@pytest.mark.release
@pytest.mark.slow
def test_an_uneven_batch_fits_where_even_parts_do_not(monkeypatch, tmp_path):
    import autopar

    # By rates measured beside other work even parts may be quickest, on devices where they fit.
    rates = {"float32": 1e11, "float64": 5e10, "bytes_per_s": 1e10, "launch_s": 2e-6}
    monkeypatch.setenv("AUTOPAR_CACHE", str(tmp_path))
    monkeypatch.setattr("autopar.costs.calibrate.rates", lambda *_: rates)
    monkeypatch.setattr("autopar.costs.detect._scaled", lambda _: ())
    monkeypatch.setattr("autopar.costs.calibrate.memcpy", lambda: {"latency_s": 2e-5, "bytes_per_s": 1e10})
    monkeypatch.setattr(autopar, "compile", functools.partial(autopar.compile, measure=False))
    module = example("uneven_batch")
    found = module.measure(batch=12, devices=3, first="1.5MB", others="2.45MB")
    assert "as asked for" in found["even"] and 'split="auto"' in found["even"]
    rows = [int(count) for count in found["training"]["split"].partition(": ")[2].split(" + ")]
    assert sum(rows) == 12 and len(rows) == 3 and rows[0] < min(rows[1:])
    for what in ("inference", "training"):
        for device, cap, predicted, measured in found[what]["peaks"]:
            assert 0 < measured <= cap and predicted <= cap, (what, device)
    assert found["error"] <= 2 * found["eager error"]


@pytest.mark.release
@pytest.mark.slow
def test_the_distance_of_kernels_needs_two_devices_under_a_cap():
    module = example("kernel_distance")
    layer = torch.nn.Conv2d(64, 9, 3)
    reference = module.gradient(module.ac_distance, layer)
    assert module.apart(module.gradient(module.vectorised, layer), reference) <= 1e-5
    two = ["emulated:0", "emulated:1"]
    from autopar import compile

    both = compile(module.ac_distance, two, memory=dict.fromkeys(two, "250kB"), check="never")
    with module.staged() as stages:
        assert module.apart(module.gradient(both, layer), reference) <= 1e-5
    assert {placed.device for placed in both.plan.placed} == {*two}
    assert all(seconds is None for _, seconds in both.plan.singles), "one device can do it"
    assert stages["capture"] > 0 and stages["plan"] > 0
    assert all(memory.peak <= 250_000 for memory in both.plan.memory)
    tasks, seconds = module.chain(both.plan)
    assert tasks > 81 and seconds > 0
    both.close()


@pytest.mark.slow
def test_the_two_layer_mlp_trains_as_the_plain_loop_does():
    assert demo.curve(50, torch.float64, ["cpu", "emulated:0", "emulated:1"]) <= 1e-9


@pytest.mark.slow
def test_the_two_layer_mlp_hides_its_reduction_behind_the_backward():
    from autopar import Machine, train_step
    from autopar.view import hidden

    devices = Machine.emulate("cpu-16", "t4", "t4")
    model = demo.MLP(32, 1024, 1024)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    step = train_step(
        model,
        torch.nn.MSELoss(),
        optimizer,
        devices,
        split=demo.halves(devices),
        pins=demo.HOME,
        check="never",
    )
    step.prepare(torch.empty(4096, 32), torch.empty(4096, 1024))
    assert hidden(step.plan, step.plan.timeline()) >= 0.9
    step.close()


@pytest.mark.slow
# `generate` with both kinds of cache is in tests/uses/test_language.py.
def test_lengths_are_eagers(monkeypatch):
    from zoo.entry import library

    library("transformers")
    models = example("language_models")
    monkeypatch.setattr(models, "ROUNDS", 1)
    with torch.no_grad():
        assert models.lengths(["cpu"], hidden=16, layers=1)["equal"]
