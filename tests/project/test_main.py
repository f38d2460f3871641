"""`python -m autopar`, demo and doctor, and calls of commands that are refused."""

import gzip
import importlib
import json
import shutil
import subprocess
import sys

import pytest
import torch

import autopar
from autopar.__main__ import main
from autopar.cli import doctor
from autopar.runtime.kernels import onnx_runtime, open_vino


@pytest.mark.slow
def test_the_demo_runs_on_three_devices_and_draws(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", sys.argv)
    call = ["demo", "--batch", "256", "--width", "256", "--split", "2", "--report", "--out", str(tmp_path)]
    assert main(call) == 0
    out = capsys.readouterr().out
    for words in (
        "best single device", "placed, predicted", "placed, measured", "256-256-256", "256 rows",
        "EMULATED, declared clock", "lower bound",
    ):  # fmt: skip
        assert words in out
    # One sentence says what is emulated, and all lines fit a terminal.
    assert out.count("Emulated: ") == 1 and max(map(len, out.splitlines())) <= 100 + len(str(tmp_path))
    error = float(out.split("max|Δ| ÷ max|reference| = ")[1].split()[0])
    assert error <= 1e-5
    assert "EMULATED" in (tmp_path / "placed.svg").read_text()
    page = (tmp_path / "placed.html").read_text()
    assert "<script" in page and 'src="http' not in page
    events = json.loads(gzip.decompress((tmp_path / "run.json.gz").read_bytes()))["traceEvents"]
    processes = " ".join(str(event["args"]) for event in events if event["ph"] == "M")
    assert "emulated:0" in processes and "emulated:1" in processes


@pytest.mark.slow
def test_doctor_says_what_there_is_and_what_to_type_for_what_is_missing(capsys, monkeypatch):
    assert main(["doctor", "cpu"]) == 0
    out = capsys.readouterr().out
    for name in ("onnxruntime", "openvino", "inductor", "C++ compiler", "native search", "caches"):
        assert name in out
    assert "h100-sxm" not in out and max(map(len, out.splitlines())) <= 100
    assert main(["doctor", "--chips"]) == 0
    out = capsys.readouterr().out
    assert "h100-sxm" in out and max(map(len, out.splitlines())) <= 100
    absent = {"onnxruntime", "openvino", "cairosvg"}
    find, which = importlib.util.find_spec, shutil.which
    for module in (doctor, onnx_runtime, open_vino):
        monkeypatch.setattr(module, "find_spec", lambda name: None if name in absent else find(name))
    monkeypatch.setattr(shutil, "which", lambda name, **more: None if "+" in name else which(name, **more))
    assert main(["doctor", "--json", "cpu"]) == 0
    report = json.loads(capsys.readouterr().out)
    libraries, tools = report["kernel libraries"], report["tools"]
    assert "pip install 'autopar[onnxruntime]'" in libraries["onnxruntime"]
    assert "pip install 'autopar[openvino]'" in libraries["openvino"]
    assert "install g++" in libraries["inductor"] and "apt install g++" in tools["C++ compiler"]
    assert "pip install 'autopar[png]'" in tools[".png pictures"]
    assert report["versions"]["torch"].startswith(torch.__version__)
    assert report["machine"]["devices"][0]["name"] == "cpu"


@pytest.mark.slow
def test_the_package_is_a_command():
    # It does not load torch, which takes seconds.
    words = [sys.executable, "-X", "importtime", "-m", "autopar", "--version"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert autopar.__version__ in done.stdout and "torch" not in done.stderr


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("dance", "'dance'"),
        ("--dance", "unrecognized arguments: --dance"),
        ("-v", "give a command: demo, doctor, plan, bench, whatif"),
        ("doctor --bogus", "--bogus"),
        ("bench", "give MODULE:FACTORY or --suite"),
        ("whatif a:b", "--hosts"),
        ("plan", "required"),
        ("plan a:b --graph g.json", "not allowed with"),
        ("plan --load p.json --graph g.json", "not allowed with"),
        ("plan --graph g.json --machine cpu", "--machine goes with a model"),
        ("plan --load p.json --machine cpu", "--machine goes with a model"),
        ("plan a:b --budget-s 2", "--budget-s goes with a task graph"),
    ],
)
def test_a_wrong_call_gets_one_line_with_the_way_to_help(capsys, command, answer):
    with pytest.raises(SystemExit) as ended:
        main(command.split())
    told = capsys.readouterr()
    assert ended.value.code == 2 and not told.out
    (line,) = told.err.splitlines()
    assert line.startswith("autopar") and answer in line and line.endswith("--help lists all options")


def test_a_folder_that_cannot_be_made_is_named_before_anything_runs(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", sys.argv)
    (tmp_path / "out").write_text("")
    assert main(["demo", "--batch", "4", "--width", "4", "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr()
    assert f"{tmp_path / 'out'}: File exists; give another name" in said.err and not said.out


def test_what_a_command_lacks_is_said_in_one_line(monkeypatch, capsys):
    monkeypatch.setattr("tests.benchmarks.timed.gpu.accelerators", lambda: ())
    assert main(["bench", "--suite", "gpu"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "needs a CUDA device" in line and "tests.benchmarks.timed" in line
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["bench", "mymodel:make"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "torch is not installed" in line
