"""What the page on training says to type, typed."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import autopar

TEXT = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")


def snippet(name):
    found = re.search(rf"<!-- {name} -->\n```python\n(.*?)```", TEXT, re.DOTALL)
    assert found, f"the page has no snippet {name}"
    return found[1]


def built():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 3))
    return {
        "torch": torch,
        "autopar": autopar,
        "model": model,
        "criterion": nn.CrossEntropyLoss(),
        "optimizer": torch.optim.Adam(model.parameters(), 0.01),
        "devices": ["cpu", "emulated:0"],
    }


def taken(names, batches):
    return [float(names["step"](*batch)) for batch in batches]


@pytest.mark.slow
def test_a_run_is_resumed_as_its_page_says(tmp_path):
    draw = torch.Generator().manual_seed(1)
    batches = [
        (torch.randn(8, 6, generator=draw), torch.randint(0, 3, (8,), generator=draw)) for _ in range(6)
    ]
    save, resume = snippet("resume").split("\n\n")
    names = built()
    first = built()
    for held in (names, first):
        held["path"] = tmp_path / "run.pt"
        held["step"] = autopar.train_step(
            *(held[key] for key in ("model", "criterion", "optimizer", "devices"))
        )
    torch.manual_seed(3)
    through = taken(first, batches)
    torch.manual_seed(3)
    begun = taken(names, batches[:3])
    exec(save, names)
    again = built()
    again["path"] = names["path"]
    exec(resume, again)
    assert begun + taken(again, batches[3:]) == pytest.approx(through, rel=1e-6)
    for held in (names, first, again):
        held["step"].close()
