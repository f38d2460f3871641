"""`python -m autopar bench --suite gpu`: rows in processes of their own, of which none stops the others."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from autopar.__main__ import main
from tests.benchmarks.timed import gpu

ROW = """
import json, os, signal, subprocess, sys, time
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
name = options["--only"]
print("figures of", name)
if name == "raises":
    raise ValueError("no such kernel")
if name == "crashes":
    os.kill(os.getpid(), signal.SIGSEGV)
if name == "hangs":
    subprocess.run([sys.executable, "-c", "import time; time.sleep(60)"])
with open(options["--json"], "w") as file:
    json.dump({"machine": "", "rows": {name: {"rounds": options["--rounds"]}}}, file)
if name == "ends badly":
    sys.exit("a stream is gone")
"""


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Rows by a script; the file for figures."""
    script = tmp_path / "row.py"
    script.write_text(ROW)
    names = ("first", "raises", "crashes", "hangs", "ends badly", "last")
    monkeypatch.setattr(gpu, "COMMAND", (sys.executable, str(script)))
    monkeypatch.setattr(gpu, "ROWS", {name: lambda *_: {"here": 1} for name in names})
    monkeypatch.setattr(gpu, "accelerators", lambda: ("cuda:0",))
    monkeypatch.setattr(gpu, "LEAST_S", 0.0)
    return tmp_path / "found.json"


@pytest.mark.slow
def test_a_row_that_fails_does_not_stop_the_others(rows, monkeypatch, capfd):
    monkeypatch.setattr(gpu, "ROW_S", 3.0)
    assert main(["bench", "--suite", "gpu", "--rounds", "3", "--json", str(rows)]) == 0
    found = json.loads(rows.read_text())["rows"]
    assert list(found) == list(gpu.ROWS)
    assert found["first"] == found["last"] == {"rounds": "3"}
    assert found["raises"] == {"failed": "ValueError: no such kernel"}
    assert found["crashes"] == {"failed": "it ended with status -11"}
    assert found["hangs"] == {"failed": "it was stopped after 3.00 s"}
    assert found["ends badly"] == {"rounds": "3", "failed": "a stream is gone"}
    shown = capfd.readouterr().out
    assert "figures of last" in shown and "raises failed: ValueError: no such kernel" in shown


def test_rows_that_no_time_is_left_for_do_not_begin(rows, monkeypatch, capfd):
    monkeypatch.setattr(gpu, "BUDGET_S", 0.0)
    assert main(["bench", "--suite", "gpu", "--only", "first", "--only", "last", "--json", str(rows)]) == 0
    reason = {"failed": "the time is up"}
    assert json.loads(rows.read_text())["rows"] == {"first": reason, "last": reason}
    assert "figures of" not in capfd.readouterr().out


def test_a_row_alone_runs_in_this_process(rows):
    assert main(["bench", "--suite", "gpu", "--only", "last", "--json", str(rows)]) == 0
    assert json.loads(rows.read_text())["rows"] == {"last": {"here": 1}}


def test_an_unknown_row_is_refused(rows, capsys):
    assert main(["bench", "--suite", "gpu", "--only", "fourth"]) == 2
    assert "no row of the gpu suite is called 'fourth'; there are first; raises" in capsys.readouterr().err
