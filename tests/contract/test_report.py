"""The report fits a screen, answers to the names it shows, and is a page of a notebook; stages say that they run."""

from __future__ import annotations

import html
import logging
import re

import pytest
import torch
import view_plans
from torch import nn

import autopar
from autopar.view import Report, explain
from autopar.view.placed.fold import fold

TWO = autopar.Machine.declare("cpu-16", "t4", "t4")


class Towers(nn.Module):
    """Two towers of long module paths, which differ at their ends."""

    def __init__(self, width=2048):
        super().__init__()
        self.towers = nn.ModuleDict(
            {f"a_tower_with_a_long_name_{side}": nn.Sequential(*[nn.Linear(width, width) for _ in range(3)])
             for side in ("left", "right")}
        )  # fmt: skip

    def forward(self, x):
        left, right = self.towers.values()
        return left(x).relu() + right(x)


def forward(batch=4096):
    with torch.no_grad():
        return autopar.plan(Towers().eval(), TWO, example_inputs=(torch.randn(batch, 2048),))


def step():
    model = nn.Sequential(nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10))
    return autopar.plan(
        model, TWO, example_inputs=(torch.randn(2048, 2048), torch.randint(0, 10, (2048,))),
        criterion=nn.CrossEntropyLoss(), optimizer=torch.optim.SGD(model.parameters(), 0.1),
    )  # fmt: skip


PLANS = {
    "forward": forward,
    "one row": lambda: forward(1),
    "step": step,
    **{name: view_plans.ALL[name] for name in ("towers", "transformer", "four", "micro")},
    "rough": lambda: view_plans.rough(120),
}
plans = pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in PLANS.items()])


def cells(table: str, *heads: str) -> set[str]:
    """Return the cells of the columns of a table with these heads; wrapped cells have no others in their lines."""
    found, spans = set(), {}
    lines = table.splitlines()
    for line, above in zip(lines, ["", *lines]):
        if not line:
            spans = {}
        elif not line.strip("- "):
            spans = {above[m.start() : m.end()].strip(): m.span() for m in re.finditer("-+", line)}
        elif spans and line[: next(iter(spans.values()))[1]].strip():
            found |= {line[slice(*spans[head])].strip() for head in heads if head in spans}
    return found - {"", *heads}


@pytest.mark.slow
@plans
def test_every_name_that_is_shown_is_explained(make):
    plan = make()
    everything = plan.explain("all")
    names = cells(everything, "cluster", "device", "what", "where", "candidate")
    assert len(names) > 2
    names |= {card.title for row in fold(plan).values() for card in row}
    for cluster, placed in plan.place.items():
        names |= {cluster, plan.words.cluster(cluster), placed.lane, *plan.costed.cluster[cluster].tasks}
        names |= {task.module for task in plan.costed.graph.tasks if task.module}
    names |= {
        value.name
        for value in plan.costed.graph.values
        if any(value.name in task.inputs for task in plan.costed.graph.tasks)
    }
    for name in (name for name in names if name and not name.startswith("waits for ")):
        assert plan.explain(name), name
    for name in ("costs", "devices", "candidates", "path", "reasons", "hardware", "notes", "kernels"):
        assert plan.explain(name), name
    with pytest.raises(autopar.PlanError, match="is not a task of"):
        plan.explain("no such thing")


@pytest.mark.slow
@plans
def test_one_screen_of_100_columns(make):
    plan = make()
    notes = ["A note that is " + "rather " * 40 + "long." for _ in range(9)]
    for timeline in (None, view_plans.measured(plan)):
        texts = [explain(plan, timeline, plan.makespan, notes), plan.explain()]
        assert max(len(text.splitlines()) for text in texts) <= 50
        texts += [explain(plan, timeline, None, notes, "all"), plan.explain(next(iter(plan.place)))]
        assert max(len(line) for text in texts for line in text.splitlines()) <= 100
        assert "e-0" not in texts[2] and "predicted" in texts[0]


def test_a_member_of_a_cluster_is_explained_as_its_cluster():
    model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10)).eval().requires_grad_(False)
    plan = autopar.plan(model, TWO, example_inputs=(torch.randn(1, 784),))
    (cluster,) = plan.place
    tasks = [task.name for task in plan.costed.graph.tasks]
    assert len(tasks) == 3 and len({plan.explain(task) for task in (*tasks, cluster)}) == 1


def test_a_reason_that_all_share_is_said_once():
    graph = {
        "tasks": [{"id": name, "seconds": {"cpu": 1.0}} for name in "abc"],
        "values": [],
        "devices": [{"name": "cpu"}],
        "links": [],
    }
    plan = autopar.schedule(graph)
    assert plan.explain("reasons").count("cpu is the only device there is") == 1
    assert "cpu is the only device there is" in plan.explain("a")


def test_a_report_is_a_page_whose_names_are_escaped():
    graph = {
        "tasks": [{"id": "<b>&", "seconds": {"cpu": 1.0}}],
        "values": [],
        "devices": [{"name": "cpu"}],
        "links": [],
    }
    report = autopar.schedule(graph).explain("all")
    assert isinstance(report, Report) and repr(report) == str(report)
    page = report._repr_html_()
    assert "<b>" not in page and html.escape("<b>&") in page


def test_a_recording_is_a_picture():
    fast = autopar.compile(nn.Linear(4, 4), ["cpu"])
    with fast.record() as recording:
        assert recording._repr_html_() is None
        fast(torch.randn(2, 4))
    assert "<svg" in recording._repr_html_() and "1 call" in repr(recording)


def test_stages_log_their_start_and_their_seconds(caplog):
    caplog.set_level(logging.INFO, "autopar")
    fast = autopar.compile(nn.Linear(5, 3), ["cpu"])
    fast(torch.randn(2, 5))
    lines = [record.getMessage() for record in caplog.records if record.name == "autopar"]
    for stage in ("torch.compile traces Linear", "capture", "plan", "lower", "check"):
        begun = lines.index(f"{stage} …")
        assert any(re.fullmatch(rf"{stage}: [\d.]+ \S+", line) for line in lines[begun:]), lines
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    caplog.clear()
    with pytest.raises(autopar.CaptureError):
        autopar.plan(lambda x: x[x.sum().item()], ["cpu"], example_inputs=(torch.zeros(3),))
    assert any(re.fullmatch(r"capture failed after [\d.]+ \S+", line) for line in caplog.messages)


class Terminal:
    """A terminal that keeps what is written to it."""

    encoding = "utf-8"

    def __init__(self):
        self.text = ""

    def write(self, text):
        self.text += text
        return len(text)

    def flush(self):
        pass

    def isatty(self):
        return True


@pytest.mark.parametrize("terminal", [True, False])
def test_a_long_stage_shows_a_bar_on_a_terminal_alone(terminal, monkeypatch, capsys):
    import time

    from autopar.system import text

    pytest.importorskip("rich")
    out = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(text, "PATIENCE_S", 0.01)
    if terminal:
        monkeypatch.setattr("sys.stderr", out)
    with pytest.raises(KeyError), text.stage("a [long] stage"):
        time.sleep(0.3)
        raise KeyError
    assert ("a [long] stage" in out.text) == terminal
    assert not capsys.readouterr().err
