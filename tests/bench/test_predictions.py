"""The suite that holds predictions against calls: errors, and one model all the way."""

import pytest
import torch
from benchmarks.timed import predictions, zoo
from torch import nn

from autopar.costs.detect import detect


def test_errors_are_of_the_ratio_and_go_by_way(capsys):
    ways = dict.fromkeys(predictions.WAYS, 1.0)
    rows = {str(n): {**ways, "probes": 1.0 + n / 10, "seconds": 1.0} for n in range(10)}
    found = predictions._summary(rows)
    assert found["probes"]["median"] == pytest.approx(0.45) and found["probes"]["p90"] == pytest.approx(0.9)
    assert found["measured"]["most"] == 0 and "45.0%" in capsys.readouterr().out


@pytest.mark.slow
def test_a_model_is_predicted_in_each_way(tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOPAR_CACHE", str(tmp_path))
    monkeypatch.setattr(predictions, "PATIENCE_S", 0.0)
    monkeypatch.setattr(predictions, "BLOCK_S", 0.01)
    with torch.no_grad():
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU()).eval()
        found = predictions.judged(lambda: (model, (torch.randn(4, 64),)), detect(["cpu"]), 1)
        assert predictions._row("one", {**found, "disturbed": True}).endswith("DISTURBED")
    assert all(found[way] > found["call_s"] > 0 for way in predictions.WAYS)
    assert found["timed_tasks"] == 1 and found["seconds"] > 0


def test_the_models_of_the_suite_that_need_torch_alone_run_and_are_the_same_each_time():
    made = dict(zoo._plain())
    assert len(zoo.models()) >= len(made) == 9
    with torch.no_grad():
        for name in ("8 experts, batch 8", "2 grus, batch 4"):
            (first, args), (second, again) = (zoo.models()[name]() for _ in range(2))
            assert torch.equal(first(*args), second(*again)), name
