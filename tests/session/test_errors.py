"""Each refusal, tried as a newcomer would meet it: what is wrong, where, and what to type next."""

import re
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import autopar
from autopar import CaptureError, DeviceError, MemoryCapError, PlanError
from autopar.__main__ import main
from autopar.costs.detect import detect
from autopar.session import batch_split as planning
from autopar.session.stages import Prepared, race
from autopar.system.text import seconds
from autopar.view import explain

DEVICES = ["cpu", "emulated:0", "emulated:1"]


class Towers(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.tower_a, self.tower_b = nn.Linear(width, width), nn.Linear(width, width)
        self.head = nn.Linear(width, 4)

    def forward(self, x):
        return self.head(self.tower_a(x).relu() + self.tower_b(x))


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


def refused(kind, *words, model=None, devices=DEVICES, **keywords):
    with pytest.raises(kind) as caught:
        autopar.compile(model or Towers(), devices, example_inputs=(torch.ones(8, 32),), **keywords)
    for word in words:
        assert word in str(caught.value)
    return str(caught.value)


def test_more_lanes_than_cores_are_told(caplog):
    many = detect(["cpu*200"])
    assert many.device["cpu"].lanes == 200 and re.search(
        r"cpu\*200 is more lanes than the \d+ cores here", caplog.text
    )


def test_a_split_asked_for_is_called_so_and_counts_agree():
    model, x = nn.Linear(8, 8), torch.randn(8, 8)
    with torch.no_grad():
        asked = autopar.plan(
            model, ["cpu", "emulated:0"], example_inputs=(x,), split={"cpu": 0.5, "emulated:0": 0.5}
        )
        mine = autopar.plan(model, ["cpu"], example_inputs=(x,), policy=lambda costed: {}, split=None)
    assert "placed by the split asked for, 2 parts" in explain(asked)
    report = explain(mine)
    assert "1 task in 1 cluster, placed by the policy given" in report
    assert "> 99 %" in report


def test_keys_of_a_data_parallel_checkpoint_are_explained():
    plain = nn.Linear(2, 2)
    fast = autopar.compile(plain, ["cpu"])
    wrapped = {f"module.{key}": value for key, value in plain.state_dict().items()}
    with pytest.raises(RuntimeError, match=r'begins with "module\.".*removeprefix'):
        fast.load_state_dict(wrapped)
    with pytest.raises(RuntimeError, match="Missing key"):
        fast.load_state_dict({})
    fast.load_state_dict({key.removeprefix("module."): value for key, value in wrapped.items()})


@pytest.mark.slow
def test_a_cap_too_small_says_what_would_fit_and_that_fits():
    given = {"devices": DEVICES[:2], "split": None}
    caps = dict.fromkeys(given["devices"], "1KiB")
    text = refused(MemoryCapError, "would need", "capped at 1.02 kB", "tower_a.weight", memory=caps, **given)
    device, amount = re.search(r"memory=\{'([\w:]+)': (\d+)\} would fit", text).groups()
    autopar.compile(
        Towers(), example_inputs=(torch.ones(8, 32),), memory={**caps, device: int(amount)}, **given
    )


def tied():
    model = Towers()
    model.tower_b.weight = model.tower_a.weight
    return model


@pytest.mark.parametrize(
    ("kind", "words", "given"),
    [
        (PlanError, "'tower_c' names no module, parameter or buffer … 'tower_b'", {"pins": {"tower_c": "cpu"}}),
        (PlanError, "'*.embedding' … near are", {"pins": {"*.embedding": "cpu"}}),
        (DeviceError, "the pin 'tower_a': no device 'cuda:9' … emulated:1", {"pins": {"tower_a": "cuda:9"}}),
        (PlanError, "'tower_a.weight' is shared by … pin both to one device",
         {"model": tied(), "pins": {"tower_a": "emulated:0", "tower_b": "emulated:1"}}),
        (PlanError, "policy='hefty' … round_robin", {"policy": "hefty"}),
        (PlanError, "policy= returned None … {name of a task or cluster: device}", {"policy": lambda costed: None}),
        (PlanError, "'nonsense', which is not a cluster or task", {"policy": lambda costed: {"nonsense": "cpu"}}),
        *((PlanError, f"split={split!r} is not known … a number of parts", {"split": split})
          for split in ("many", 2.5, True)),
        (PlanError, "split=0 … at least 1", {"split": 0}),
        (DeviceError, "'mars' … emulated:1", {"split": {"mars": 1.0}}),
        *((PlanError, "must be finite numbers, none negative, and not all zero", {"split": split})
          for split in ({"cpu": "half", "emulated:0": "half"}, {"cpu": 0, "emulated:0": 0}, {})),
        (PlanError, "check='sometimes' … 'never'", {"check": "sometimes"}),
        (PlanError, "outputs='there' … 'as_placed'", {"outputs": "there"}),
        (PlanError, "plan=3 is not a plan … fast.plan", {"plan": 3}),
        (PlanError, "fullgraph='yes' is not known; give one of … True, False", {"fullgraph": "yes"}),
        (PlanError, "dynamic=3 is not known; give one of … True, False", {"dynamic": 3}),
        (CaptureError, "3 is not a model … nn.Module", {"model": 3}),
        (DeviceError, "'6 gigs' … \"6GiB\"", {"memory": {"cpu": "6 gigs"}}),
        (DeviceError, "autopar.plan( … Machine.emulate(", {"devices": autopar.Machine.declare("cpu", "t4")}),
        (DeviceError, "devices=None … \"cpu\"", {"devices": None}),
        (DeviceError, "'gpu' is not a device name … \"cpu\"", {"devices": ["gpu"]}),
        (DeviceError, "'cuda:63' … this machine has cpu … Machine.declare( … emulated:",
         {"devices": ["cpu", "cuda:63"]}),
        (DeviceError, "the device list is empty … [\"cpu\"]", {"devices": []}),
        (DeviceError, "listed twice … 'cpu*2'", {"devices": ["cpu", "cpu"]}),
    ],
    ids=lambda given: given[:24] if isinstance(given, str) else "",
)  # fmt: skip
def test_what_is_given_by_mistake(kind, words, given):
    refused(kind, *words.split(" … "), **given)


def test_a_fault_of_our_own_runs_as_written_and_is_told(monkeypatch, caplog):
    monkeypatch.setattr("autopar.session.compiled_graph.captured_at", lambda *_: {}["nothing"])
    model, x = Towers(), torch.ones(8, 32)
    fast = autopar.compile(model, DEVICES)
    for _ in range(2):
        assert torch.equal(fast(x), model(x))
    assert caplog.text.count("KeyError: 'nothing'; a fault of autopar") == 1
    with pytest.raises(autopar.AutoparError, match="a fault of autopar"):
        _ = fast.plan


def test_a_factory_that_gives_no_model(tmp_path, monkeypatch, capsys):
    (tmp_path / "odd.py").write_text(
        "from torch import nn, ones\nvalue = 3\ndef alone(): return nn.ReLU()\n"
        "def bare(): return nn.ReLU(), ones(4)\ndef make(): return nn.ReLU(), (ones(4),)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for words, answer in [
        (["odd:value"], "name a function that returns (model, (x, …))"),
        (["odd:alone"], "odd:alone must return (model, (x, …))"),
        (["odd:bare"], "odd:bare must return (model, (x, …))"),
        (["odd:make", "--split", "x"], "--split x is not known"),
    ]:
        assert main(["plan", *words, "--machine", "cpu"]) == 2
        assert answer in capsys.readouterr().err


@pytest.mark.slow
def test_a_plan_passed_over_is_not_called_slower(monkeypatch):
    """The report on a plan of one device must not say that nothing shorter was tried when something was."""
    machine = autopar.Machine.declare("cpu-16", "t4", "t4")
    example = (torch.empty(8192, 1024),)
    assert (
        len({placed.device for placed in autopar.plan(Towers(1024), machine, example_inputs=example).placed})
        > 1
    )
    monkeypatch.setattr(planning, "WORTH", 0.99)
    plan = autopar.plan(Towers(1024), machine, example_inputs=example)
    assert len({placed.device for placed in plan.placed}) == 1
    beaten = min((c for c in plan.candidates if c.makespan), key=lambda c: c.makespan)
    assert beaten.makespan < plan.makespan and beaten.note
    why = f"{beaten.name} is predicted to take {seconds(beaten.makespan)}, but a gain below 99 % is finer"
    text = " ".join(explain(plan).split())
    assert why in text and "no plan" not in text.partition("candidate")[2]


@pytest.mark.slow
def test_a_plan_that_measured_slower_is_not_called_slower_by_prediction():
    class Timed:
        def __init__(self, seconds):
            self.seconds = seconds

        def run(self, tensors):
            return [], SimpleNamespace(makespan=self.seconds)

        def close(self):
            pass

    machine, example = autopar.Machine.declare("cpu-16", "t4", "t4"), (torch.empty(8192, 1024),)
    many = autopar.plan(Towers(1024), machine, example_inputs=example)
    one = autopar.plan(Towers(1024), machine, example_inputs=example, policy="single", split=None)
    kept = race(Prepared(None, many, None, Timed(2.0)), Prepared(None, one, None, Timed(1.0)), [])
    why = f"is predicted to take {seconds(many.makespan)}, but measured 2.00 s, the single device 1.00 s"
    assert kept.single_s == 1.0 and why in " ".join(explain(kept.plan).split())


def test_one_device_needs_no_other_reason():
    plan = autopar.plan(Towers(), ["cpu"], example_inputs=(torch.ones(8, 32),))
    assert {reason.text for reason in plan.reason.values()} == {"cpu is the only device there is."}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"criterion": nn.CrossEntropyLoss}, r"the class CrossEntropyLoss; give an instance"),
        ({"optimizer": torch.optim.Adam}, r"the class Adam; give an instance"),
        ({"optimizer": nn.MSELoss()}, r"MSELoss is not a torch optimizer; the order is"),
        ({"scaler": 3}, r"scaler=3 is not a GradScaler; give torch.amp.GradScaler"),
        ({"pins": ["cpu"]}, r"pins=\['cpu'\] names no device; write pins={"),
        ({"memory": "1GB"}, r"memory='1GB' names no device; write memory={"),
        ({"clip_norm": "1"}, r"clip_norm='1': give a norm above 0"),
        ({"clip_norm": 0}, r"clip_norm=0: give a norm above 0"),
        ({"clip_norm": True}, r"clip_norm=True: give a norm above 0"),
        ({"criterion": "mse"}, r"give a criterion\(outputs, \*targets\), .* not criterion='mse'"),
        ({"autocast": torch.int32}, r"autocast=torch.int32 is not known; give torch.bfloat16"),
        ({"pins": {0: "cpu"}}, r"pins=\{0: 'cpu'\} names no module; write pins={"),
        ({"policy": None}, r'policy=None is not known; give "auto"'),
        ({"recompute": True}, r"recompute=True is not known; .* from 0 to 1"),
        ({"measure": "no"}, r"measure='no' is not known; give one of None, True, False"),
        (
            {"kernels": "openvino"},
            r"kernels='openvino' folds the weights, .*; give one of 'eager', 'auto', 'cudagraphs', 'inductor'",
        ),
    ],
)
def test_what_a_training_step_is_given_by_mistake(change, sentence):
    model = nn.Linear(2, 2)
    given = {"criterion": nn.MSELoss(), "optimizer": torch.optim.SGD(model.parameters(), 0.1)} | change
    with pytest.raises(autopar.AutoparError, match=sentence):
        autopar.train_step(model, given.pop("criterion"), given.pop("optimizer"), ["cpu"], **given)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"criterion": nn.MSELoss}, "the class MSELoss; give an instance"),
        ({"criterion": "mse"}, "criterion='mse' is not a function"),
        ({"optimizer": torch.optim.SGD}, "the class SGD; give an instance"),
    ],
)
def test_what_the_plan_of_a_step_is_given_by_mistake(given, sentence):
    with pytest.raises(autopar.CaptureError, match=sentence):
        autopar.plan(nn.Linear(2, 2), ["cpu"], example_inputs=(torch.ones(2, 2),) * 2, **given)


def test_an_optimizer_that_needs_a_closure_is_sent_to_the_users_own_loop():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.LBFGS(model.parameters())
    with pytest.raises(autopar.CaptureError, match=r"LBFGS.*closure.*autopar\.compile"):
        autopar.train_step(model, nn.MSELoss(), optimizer, ["cpu"])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"model": Towers}, r"the model is the class Towers; give an instance: Towers\(…\)"),
        (
            {"example_inputs": torch.ones(8, 32)},
            r"example_inputs is a Tensor; give .* as a tuple, such as \(x,\)",
        ),
        ({"example_kwargs": ["x"]}, r"example_kwargs is a list; give the keywords of one call"),
    ],
)
@pytest.mark.parametrize("door", [autopar.compile, autopar.plan])
def test_what_either_door_is_given_by_mistake(door, change, sentence):
    given = {"model": Towers(), "example_inputs": (torch.ones(8, 32),)} | change
    with pytest.raises(CaptureError, match=sentence):
        door(given.pop("model"), ["cpu"], **given)


def test_a_torch_device_is_named_as_its_name_is():
    assert [*autopar.compile(Towers(), torch.device("cpu")).machine.device] == ["cpu"]


def test_a_compiled_model_is_not_compiled_again():
    fast = autopar.compile(nn.Linear(2, 2), ["cpu"])
    with pytest.raises(autopar.CaptureError, match=r"compiled already.*compiled\.module"):
        autopar.compile(fast, ["cpu"])
