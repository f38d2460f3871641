"""A compiled model as a folder: other processes answer alike without a capture, and say what does not fit."""

import json
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch
from torch import nn

import autopar

LOADING = """
import sys
import torch
before = {*sys.modules}
import autopar
pairs = []
for folder in sys.argv[1:]:
    fast = autopar.load(folder)
    pairs += [(fast(*args), right) for args, right in torch.load(folder + ".calls")]
slow = {"sympy", "torch._dynamo", "torch._inductor", "torch.onnx", "onnxscript", "jinja2"}
assert not slow & ({*sys.modules} - before), slow & {*sys.modules}
for found, right in pairs:
    torch.testing.assert_close(found, right)
"""


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 32), nn.Linear(32, 8)

    def forward(self, x, scale=None, mode="both"):
        hidden = self.first(x).relu()
        if scale is not None:
            hidden = hidden * scale
        return {"y": self.last(hidden), "rest": (hidden, x, None)} if mode == "both" else self.last(hidden)

    def halved(self, x):
        return self(x, mode="one") / 2


@pytest.fixture
def model() -> Net:
    torch.manual_seed(0)
    return Net().eval().requires_grad_(False)


@pytest.mark.slow
def test_another_process_answers_alike_and_loads_nothing_that_compiles(model, tmp_path):
    x, folders = torch.randn(4, 16), []
    for kernels in ("eager", "onnxruntime", "openvino"):
        if kernels != "eager" and not find_spec(kernels):
            continue
        folders.append(tmp_path / kernels)
        fast = autopar.compile(model, ["cpu"], kernels=kernels)
        fast.prepare(x)
        fast(x[:3], None, "one")
        fast(x[:2], None, "one")
        fast.save(folders[-1])
        calls = (x,), (x[:3], None, "one"), (x, None, "one")
        torch.save([(args, model(*args)) for args in calls], f"{folders[-1]}.calls")
    subprocess.run([sys.executable, "-c", LOADING, *folders], check=True, timeout=120)


@pytest.mark.parametrize("devices", [["cpu*2"], ["emulated:0", "emulated:1"], ["cpu", "emulated:0"]])
def test_several_devices_answer_alike(model, devices, tmp_path):
    fast = autopar.compile(model, devices)
    x, scale = torch.randn(4, 16), torch.randn(32)
    fast(x, scale)
    fast.save(tmp_path / "saved")
    saved = autopar.load(tmp_path / "saved")
    for _ in range(2):
        torch.testing.assert_close(saved(x, scale), model(x, scale))
    assert saved(x, scale)["rest"][1] is x
    saved.close()


@pytest.mark.slow
@pytest.mark.parametrize("library", ["onnxruntime", "openvino"])
def test_kernels_serve_all_sizes_that_were_open(model, library, tmp_path):
    pytest.importorskip(library)
    fast = autopar.compile(model, ["cpu"], kernels=library)
    for rows in (4, 6):
        fast(torch.randn(rows, 16))
    fast.save(tmp_path / "saved")
    saved = autopar.load(tmp_path / "saved")
    assert saved.serving == library
    for rows in (2, 4, 6, 33):
        x = torch.randn(rows, 16)
        torch.testing.assert_close(saved(x), model(x))


def test_other_arguments_are_refused_with_what_was_saved(model, tmp_path):
    fast = autopar.compile(model, ["cpu"])
    fast(torch.randn(4, 16), mode="one")
    fast.save(tmp_path / "saved")
    saved = autopar.load(tmp_path / "saved")
    x = torch.randn(4, 16)
    for args, kwargs in (((x[:3],), {"mode": "one"}), ((x.double(),), {"mode": "one"}), ((x,), {}), ((), {})):
        with pytest.raises(autopar.AutoparError, match=r"saved for \(float32 \[4, 16\], 'one'\)"):
            saved(*args, **kwargs)


def test_weights_are_those_that_were_saved(model, tmp_path):
    fast = autopar.compile(model, ["cpu"])
    x = torch.randn(4, 16)
    before = fast(x, mode="one")
    fast.save(tmp_path / "saved")
    model.last.weight.zero_()
    saved = autopar.load(tmp_path / "saved", model)
    assert torch.equal(saved(x, mode="one"), before) and isinstance(saved, Net)
    assert torch.equal(saved.halved(x), before / 2)
    fast.save(tmp_path / "saved")
    assert torch.equal(autopar.load(tmp_path / "saved")(x, mode="one"), model(x, mode="one"))
    assert torch.equal(saved(x, mode="one"), before)


def test_saving_leaves_the_state_of_the_model(tmp_path):
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).requires_grad_(False)
    fast = autopar.compile(model, ["cpu"])
    x = torch.randn(8, 4)
    fast(x)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    fast.save(tmp_path / "saved")
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    torch.testing.assert_close(autopar.load(tmp_path / "saved")(x), model(x))


def test_a_folder_that_does_not_fit_or_is_damaged_is_one_sentence(model, tmp_path):
    fast = autopar.compile(model, ["cpu"])
    with pytest.raises(autopar.AutoparError, match="nothing to save"):
        fast.save(tmp_path / "saved")
    fast.prepare(torch.randn(4, 16))
    fast.save(tmp_path / "saved")
    assert [each.name for each in tmp_path.iterdir()] == ["saved"]
    about = tmp_path / "saved" / "model.json"
    text = about.read_text()
    data = json.loads(text)
    about.write_text(json.dumps({**data, "versions": {**data["versions"], "torch": "1.0"}}))
    with pytest.raises(autopar.AutoparError, match=f"saved with torch 1.0, here is {torch.__version__[:4]}"):
        autopar.load(tmp_path / "saved")
    about.write_text(text[:50])
    with pytest.raises(autopar.AutoparError, match="incomplete"):
        autopar.load(tmp_path / "saved")
    about.write_text(text)
    weights = tmp_path / "saved" / "weights.pt"
    weights.write_bytes(weights.read_bytes()[:-9])
    with pytest.raises(autopar.AutoparError, match=r"weights.pt has \d+ bytes of \d+"):
        autopar.load(tmp_path / "saved")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine").touch()
    with pytest.raises(autopar.AutoparError, match="no saved model"):
        fast.save(tmp_path / "other")


def test_a_file_cannot_run_code(model, tmp_path):
    fast = autopar.compile(model, ["cpu"])
    fast(torch.randn(4, 16))
    fast.save(tmp_path / "saved")
    programs = tmp_path / "saved" / "programs.pickle"
    code = b"cos\nmkdir\n(V" + str(tmp_path / "made").encode() + b"\ntR."
    programs.write_bytes(code + b" " * (programs.stat().st_size - len(code)))
    with pytest.raises(autopar.AutoparError, match=r"os\.mkdir is not allowed"):
        autopar.load(tmp_path / "saved")
    assert not (tmp_path / "made").exists()


def test_a_graph_break_is_refused(tmp_path):
    class Broken(nn.Linear):
        def forward(self, x):
            x = super().forward(x)
            torch._dynamo.graph_break()
            return x + 1

    fast = autopar.compile(Broken(4, 4).requires_grad_(False), ["cpu"])
    fast(torch.randn(2, 4))
    with pytest.raises(autopar.CaptureError, match="one graph"):
        fast.save(tmp_path / "saved")
    assert not [*tmp_path.iterdir()]
