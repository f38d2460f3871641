"""The commands of `python -m autopar`, as a user types them."""

import gzip
import importlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import autopar
from autopar.__main__ import main
from autopar.cli import doctor
from autopar.runtime.kernels import onnx_runtime, open_vino

pytestmark = pytest.mark.slow


def run(*words, **more):
    return subprocess.run(
        [sys.executable, "-m", "autopar", *words], capture_output=True, text=True, check=False, **more
    )


def test_the_demo_runs_on_three_devices_and_draws(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", sys.argv)
    call = ["demo", "--batch", "256", "--width", "256", "--split", "2", "--out", str(tmp_path)]
    assert main(call) == 0
    out = capsys.readouterr().out
    for words in ("best single device", "placed, predicted", "placed, measured", "256-256-256", "256 rows"):
        assert words in out
    # One sentence says what is emulated, and all lines fit a terminal.
    assert out.count("Emulated: ") == 1 and max(map(len, out.splitlines())) <= 100 + len(str(tmp_path))
    assert main([*call, "--report"]) == 0
    out = capsys.readouterr().out
    assert "EMULATED, declared clock" in out and "lower bound" in out
    error = float(out.split("max|Δ| ÷ max|reference| = ")[1].split()[0])
    assert error <= 1e-5
    assert "EMULATED" in (tmp_path / "placed.svg").read_text()
    page = (tmp_path / "placed.html").read_text()
    assert "<script" in page and 'src="http' not in page
    events = json.loads(gzip.decompress((tmp_path / "run.json.gz").read_bytes()))["traceEvents"]
    assert {"emulated:0", "emulated:1"} <= {
        word
        for event in events
        if event["ph"] == "M"
        for word in str(event["args"]).replace("'", " ").split()
    }


def test_plan_from_the_shell(tmp_path, monkeypatch, capsys):
    (tmp_path / "mymodel.py").write_text(
        "import torch\nfrom torch import nn\n"
        "def make():\n    return nn.Sequential(nn.Linear(64, 64), nn.ReLU()), (torch.ones(8, 64),)\n"
        "def fails():\n    raise ValueError('no weights')\n"
    )
    (tmp_path / "broken.py").write_text("def make(:\n")
    (tmp_path / "failing.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    machine = ["--machine", "cpu-16,h100-sxm,h100-sxm"]
    assert main(["plan", "mymodel:make", *machine, "--out", "plan.json"]) == 0
    told = capsys.readouterr()
    assert not told.out and told.err.count("\n") == 1 and "wrote plan.json" in told.err
    assert json.loads((tmp_path / "plan.json").read_text())["format"] == "autopar plan 1"
    for wrong, words in [
        (["mymodel"], "is not MODULE:FACTORY"),
        (["nothing:make"], "No module named 'nothing'"),
        (["mymodel:other"], "no attribute 'other'"),
        ([":make"], "is not MODULE:FACTORY"),
        (["nothing.py:make"], "there is no file nothing.py"),
        (["mymodel:fails"], "mymodel.py:6"),
        (["broken:make"], "broken.py, line 1"),
        (["failing:make"], "ZeroDivisionError: division by zero"),
    ]:
        assert main(["plan", *wrong, *machine]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert words in line
    assert main(["plan", "mymodel:make", "--machine", "cpu-16, t4", "--out", "plan.json"]) == 0
    capsys.readouterr()
    assert main(["plan", "mymodel:make", "--machine", "h1000"]) == 2
    assert "h100" in capsys.readouterr().err
    assert main(["plan", "mymodel:make", "--machine", "bogus"]) == 2
    assert "--machine cpu-16,h100-sxm" in capsys.readouterr().err


def test_doctor_says_what_there_is(capsys):
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    for name in ("cpu", "onnxruntime", "openvino", "inductor", "C++ compiler", "native search", "caches"):
        assert name in out
    assert "h100-sxm" not in out and max(map(len, out.splitlines())) <= 100
    assert main(["doctor", "--chips"]) == 0
    out = capsys.readouterr().out
    assert "h100-sxm" in out and max(map(len, out.splitlines())) <= 100


def test_doctor_says_what_to_type_for_what_is_missing(capsys, monkeypatch):
    absent = {"onnxruntime", "openvino", "cairosvg"}
    find, which = importlib.util.find_spec, shutil.which
    for module in (doctor, onnx_runtime, open_vino):
        monkeypatch.setattr(module, "find_spec", lambda name: None if name in absent else find(name))
    monkeypatch.setattr(shutil, "which", lambda name, **more: None if "+" in name else which(name, **more))
    assert main(["doctor", "--json", "cpu"]) == 0
    told = json.loads(capsys.readouterr().out)
    libraries, tools = told["kernel libraries"], told["tools"]
    assert "pip install 'autopar[onnxruntime]'" in libraries["onnxruntime"]
    assert "pip install 'autopar[openvino]'" in libraries["openvino"]
    assert "install g++" in libraries["inductor"] and "apt install g++" in tools["C++ compiler"]
    assert "pip install 'autopar[png]'" in tools[".png pictures"]
    assert told["versions"]["torch"].startswith(torch.__version__)
    assert told["machine"]["devices"][0]["name"] == "cpu"


def test_the_package_is_a_command():
    # Neither loads torch, which takes seconds.
    done = run("--version")
    assert done.returncode == 0 and autopar.__version__ in done.stdout, done.stderr
    assert run("dance").returncode == 2


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["dance"], "'dance'"),
        (["--dance"], "unrecognized arguments: --dance"),
        (["-v"], "give a command: demo, doctor, plan, bench, whatif"),
    ],
)
def test_an_unknown_command_is_refused(capsys, words, answer):
    with pytest.raises(SystemExit) as error:
        main(words)
    assert error.value.code == 2 and answer in capsys.readouterr().err


def test_a_folder_that_cannot_be_made_is_named_before_anything_runs(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", sys.argv)
    (tmp_path / "out").write_text("")
    small = ["--batch", "4", "--width", "4", "--out", str(tmp_path / "out")]
    assert main(["demo", *small]) == 2
    said = capsys.readouterr()
    assert f"{tmp_path / 'out'}: File exists; give another name" in said.err and not said.out


def test_the_gpu_suite_says_in_one_line_that_there_is_none(monkeypatch, capsys):
    monkeypatch.setattr("tests.benchmarks.timed.gpu.accelerators", lambda: ())
    assert main(["bench", "--suite", "gpu"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "needs a CUDA device" in line and "tests.benchmarks.timed" in line


def test_the_planner_is_measured_without_torch(monkeypatch, capsys):
    code = (
        "import sys; sys.modules['torch'] = None; "
        "from tests.benchmarks.__main__ import main; sys.exit(main(['small', '--seeds', '1']))"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root)
    assert done.returncode == 0, done.stderr
    assert "no torch" in done.stdout
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["bench", "mymodel:make"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "torch is not installed" in line
