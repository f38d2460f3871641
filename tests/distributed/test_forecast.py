"""Forecasts of a model on declared hosts: its chain, and the command `whatif`."""

from __future__ import annotations

import json
import re

import pytest
import torch
from layered_models import HIDDEN, LENGTH, VOCABULARY, Tied, numbered, tied

from autopar.__main__ import main
from autopar.capture import ahead as repeated
from autopar.distributed.forecast import _priced, captured, forecast
from autopar.ir.hosts import Hosts

pytestmark = pytest.mark.slow

HOSTS = Hosts.declare("2 x (cpu + 4 h100) over 4 ib-400")


def on_no_device(factory):
    """The model and inputs of a factory, on the meta device."""
    with torch.device("meta"):
        return factory()


@pytest.fixture(scope="module")
def model():
    return captured(*on_no_device(tied))


@pytest.fixture(scope="module")
def chain(model):
    return _priced(model, HOSTS, 1)[0](2)


def test_three_layers_stand_for_all(model, chain, monkeypatch):
    monkeypatch.setattr(repeated, "FEWEST", 99)
    whole = captured(*on_no_device(tied))
    plain = _priced(whole, HOSTS, 1)[0](2)
    assert model.repeats == {"layers": 8} and not whole.repeats
    assert model.row_flops == whole.row_flops and model.parameters == whole.parameters
    assert len(model.graph(2).tasks) < len(whole.graph(2).tasks) / 2
    assert len(plain.units) == len(chain.units)
    for ours, theirs in zip(chain.units, plain.units):
        assert ours.module == theirs.module and dict(ours.weights) == dict(theirs.weights)
        for word in ("forward", "backward"):
            (a, b), (c, d) = getattr(ours, word)[0], getattr(theirs, word)[0]
            assert (a, b) == pytest.approx((c, d))
        assert ours.saved_bytes == theirs.saved_bytes and ours.crossing_bytes == theirs.crossing_bytes


def test_layers_that_are_asked_for_by_number_are_all_captured():
    found = captured(*on_no_device(numbered))
    assert not found.repeats and found.row_flops == 3 * 6 * 2 * HIDDEN**2 - 2 * HIDDEN**2


def test_a_cut_between_layers_is_crossed_by_the_hidden_state_alone(chain):
    state = LENGTH * HIDDEN * 4
    places = [
        number
        for number, (unit, after) in enumerate(zip(chain.units, chain.units[1:]))
        if unit.block and after.block and unit.block != after.block
    ]
    assert len(places) == 7
    assert all(chain.units[number].crossing_bytes == state for number in places)
    assert all(unit.crossing_bytes >= state for unit in chain.units[: places[-1]])


def test_a_layer_sums_its_activations_twice_and_shares_out_its_products(chain):
    state = LENGTH * HIDDEN * 4
    for number in range(8):
        own = [unit for unit in chain.units if unit.block == f"layers.{number}"]
        assert [unit.sum_bytes for unit in own if unit.sum_bytes] == [state, state]
        assert {unit.module for unit in own if unit.sum_bytes} == {
            f"layers.{number}.out", f"layers.{number}.down",
        }  # fmt: skip
        assert all(
            unit.divisible for unit in own if any("qkv" in key or "up" in key for key, _ in unit.weights)
        )
        assert not any(unit.divisible for unit in own if "norm" in unit.module)


def test_tied_weights_are_known_by_one_key(chain):
    (nbytes, users), *others = chain.shared.values()
    assert nbytes == VOCABULARY * HIDDEN * 4 and not others
    assert [chain.units[user].module for user in users] == ["table", "head"]
    assert chain.weight_bytes(0, len(chain.units)) == sum(p.numel() * 4 for p in Tied(8).parameters())


def test_more_hosts_are_not_slower_and_the_utilisation_is_a_share(model):
    one, two = (forecast(model, Hosts.declare(f"{n} x (cpu + 2 h100) over 2 ib-400"), 16) for n in (1, 2))
    assert two.step_s <= one.step_s and one.used <= one.accelerators == 2
    for found in (one, two):
        assert 0 < found.mfu < 1 and 0 < found.efficiency <= 1 + 1e-9
        assert found.tokens_per_s == pytest.approx(LENGTH * found.rows_per_s)


def test_recomputed_layers_need_less_memory_and_more_time(model):
    fixed = {"tensor": 1, "replicas": 1, "stages": 2, "rows": 8, "schedules": ["1f1b"]}
    kept, again = (forecast(model, HOSTS, 64, recompute=r, **fixed) for r in (False, True))
    assert max(again.plan.memory) < max(kept.plan.memory) and again.step_s > kept.step_s


def test_inference_is_the_forward_alone(model):
    forward = captured(*on_no_device(tied), train=False)
    assert forward.row_flops < model.row_flops / 2.5
    found = forecast(forward, HOSTS, 16, objective="throughput")
    assert not found.plan.trained and not found.recompute


def test_the_command_prints_a_row_for_each_of_the_hosts(capsys, tmp_path):
    file = tmp_path / "plans.json"
    one, many = "1 x (cpu + 2 h100) over ib-400", "2 x (cpu + 2 h100) over ib-400"
    words = ["--hosts", one, "--hosts", many, "--batch", "8", "--dtype", "bfloat16", "--json", str(file)]
    assert main(["whatif", "layered_models:numbered", *words, "--stages-shown"]) == 0
    out = capsys.readouterr().out
    assert "declared hosts, not run" in out and "stage" in out
    assert max(map(len, out.splitlines())) <= 100 and re.search(r"^[12]\b.*^[2-4]\b", out, re.M | re.S)
    rows = json.loads(file.read_text())["rows"]
    assert [row["hosts"] for row in rows] == [one, many]


def test_hosts_without_a_plan_do_not_lose_the_rows_of_others(capsys, tmp_path):
    file = tmp_path / "plans.json"
    one, less = "1 x (cpu + 4 h100) over ib-400", "1 x (cpu + 2 h100) over ib-400"
    words = ["--hosts", less, "--hosts", one, "--batch", "8", "--tensor", "4", "--json", str(file)]
    assert main(["whatif", "layered_models:numbered", *words]) == 2
    told = capsys.readouterr()
    assert "\n4 " in told.out and f"{less}: " in told.err and "smaller group" in told.err
    assert [row["hosts"] for row in json.loads(file.read_text())["rows"]] == [one]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--hosts", "8 x (cpu + 8 h100)", "--batch", "8"], "names no network"),
        (["--hosts", "2 x cpu over ib-400", "--batch", "8", "--optimizer", "lion"], "give one of none"),
        (["--hosts", "2 x cpu over ib-400", "--batch", "8", "--dtype", "int8"], "bfloat16, float16"),
        (["--hosts", "2 x cpu over ib-400", "--batch", "8", "--json", "/nowhere/x.json"], "folder"),
        (
            ["--hosts", "2 x cpu over ib-400", "--batch", "8", "--json", "."],
            "cannot be written: it is a folder",
        ),
    ],
)
def test_the_command_says_what_to_type(words, says, capsys):
    assert main(["whatif", "layered_models:numbered", *words]) == 2
    assert says in capsys.readouterr().err
