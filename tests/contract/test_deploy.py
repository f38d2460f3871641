"""A compiled model as a folder: other processes answer alike without a capture, and say what does not fit."""

import json
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec

import pytest
import torch
from torch import nn
from torch.export import register_dataclass

import autopar

LOADING = """
import sys
import torch
before = {*sys.modules}
import autopar
pairs = []
for folder in sys.argv[1:]:
    fast = autopar.load(folder)
    assert fast.serving == folder.rpartition("/")[2]
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
    for kernels in ("eager", *filter(find_spec, ("onnxruntime", "openvino"))):
        fast = autopar.compile(model, ["cpu"], kernels=kernels, dynamic=None if kernels == "eager" else True)
        fast.prepare(x, None, "one")
        calls = [(x, None, "one")]
        if kernels == "eager":
            fast(x)
            calls += [(x + 1,)]
        else:
            calls += [(torch.randn(rows, 16), None, "one") for rows in (2, 6, 33)]
        folders.append(tmp_path / kernels)
        fast.save(folders[-1])
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


def test_a_loaded_model_has_the_saved_weights_throughout(model, tmp_path):
    model.tied = model.last
    fast = autopar.compile(model, ["cpu"])
    x = torch.randn(4, 16)
    right, weights = fast(x, mode="one"), {name: item.clone() for name, item in model.state_dict().items()}
    fast.save(tmp_path / "saved")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    saved = autopar.load(tmp_path / "saved", model)
    torch.testing.assert_close(dict(saved.state_dict()), weights)
    torch.testing.assert_close(saved.tied(saved.first(x).relu()), right)
    assert not any(parameter.any() for parameter in model.parameters())
    with pytest.raises(autopar.AutoparError, match="load them into the Python model"):
        saved.load_state_dict(weights)
    with pytest.raises(
        autopar.AutoparError, match=r"weight first.weight \[32, 16\], and this Linear has no such"
    ):
        autopar.load(tmp_path / "saved", nn.Linear(16, 32))


def test_a_model_around_a_loaded_one_is_captured(model, tmp_path):
    class Outer(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return self.inner(x, mode="one") + 1

    fast = autopar.compile(model, ["cpu"])
    x = torch.randn(4, 16)
    right = fast(x, mode="one") + 1
    fast.save(tmp_path / "saved")
    saved = autopar.load(tmp_path / "saved", model)
    torch.testing.assert_close(autopar.compile(Outer(saved), ["cpu"], fullgraph=True)(x), right)
    with pytest.raises(autopar.CaptureError, match="give compile the Python model"):
        autopar.compile(saved, ["cpu"])


class Switch:
    on = None

    def __init__(self) -> None:
        self.on = None


switch = Switch()


@dataclass
class Output:
    sums: torch.Tensor
    hidden: torch.Tensor | None = None


register_dataclass(Output, serialized_type_name="test_deploy.Output")


def test_classes_of_outputs_equal_lengths_and_switches_within_a_call(tmp_path):
    """Models of transformers have them: two arguments of one length, and an attribute that is set for a call."""

    class Masked(nn.Linear):
        def forward(self, x, mask):
            switch.on = 1
            found = Output(sums=super().forward(x) * mask)
            switch.on = None
            return found

    model = Masked(4, 4).requires_grad_(False)
    fast = autopar.compile(model, ["cpu"])
    for rows in (3, 5):
        fast(torch.ones(rows, 4), mask=torch.ones(rows, 1))
    fast.save(tmp_path / "saved")
    saved = autopar.load(tmp_path / "saved")
    for rows in (3, 5, 9):
        x, mask = torch.randn(rows, 4), torch.randn(rows, 1)
        found = saved(x, mask=mask)
        assert isinstance(found, Output) and found.hidden is None
        torch.testing.assert_close(found.sums, model(x, mask).sums)
    with pytest.raises(autopar.AutoparError, match="was saved for"):
        saved(x, mask=mask[:1])


class Changes(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * y


@torch.no_grad()
def test_a_change_in_place_is_refused_where_it_would_reach_another_argument(tmp_path):
    fast = autopar.compile(Changes(), ["cpu"])
    fast(torch.ones(4), torch.ones(4))
    fast.save(tmp_path / "changes")
    loaded = autopar.load(tmp_path / "changes")
    assert torch.equal(loaded(torch.ones(4), torch.ones(4)), torch.full((4,), 2.0))
    both = torch.ones(6)
    for pair in ((both[:4], both[:4]), (both[:4], both[2:])):
        with pytest.raises(autopar.AutoparError, match="changes in place shares its memory"):
            loaded(*pair)


@torch.no_grad()
@pytest.mark.parametrize("rows", [(1, 8), (8, 1, 4), (0, 8)])
def test_a_size_that_an_open_one_does_not_cover_is_saved_too(rows, tmp_path):
    plain = nn.Linear(5, 3)
    fast = autopar.compile(plain, ["cpu"])
    for number in rows:
        fast.prepare(torch.randn(number, 5))
    fast.save(tmp_path / "rows")
    loaded = autopar.load(tmp_path / "rows")
    for number in (*rows, 5):
        x = torch.randn(number, 5)
        assert torch.equal(loaded(x), plain(x))


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
