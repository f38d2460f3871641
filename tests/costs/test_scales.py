"""Scales of families: fitted to what was measured, kept, and read with care."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from autopar.costs.detect import detect
from autopar.costs.scales import fitted, keep, stored


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOPAR_CACHE", str(tmp_path))
    return tmp_path


@given(st.floats(2e-6, 1e-4), st.floats(0.1, 20), st.integers(0, 7))
def test_launch_and_factor_are_found_beside_a_wrong_sample(launch, factor, wrong):
    works = [1e-8, 2e-8, 3e-8, 1e-5, 1e-4, 3e-4, 1e-3, 2e-3]
    took = [launch + factor * busy for busy in works]
    took[wrong] *= 30
    ((name, at_least, slope),) = fitted(("f", 1, *sample) for sample in zip(works, took))
    assert name == "f"
    errors = sorted(
        abs(at_least + slope * busy - launch - factor * busy) / (launch + factor * busy) for busy in works
    )
    assert errors[5] < 0.35


@given(st.lists(st.tuples(st.integers(1, 99), st.floats(0, 1), st.floats(1e-7, 10)), min_size=1, max_size=8))
@example([(1, 5e-324, 1.0), (1, 0.0, 0.5)])
def test_any_samples_have_a_scale_that_can_be_one(rows):
    ((_, launch, factor),) = fitted(("f", *row) for row in rows)
    assert 0 < launch < 11 and 0 < factor < float("inf")


def test_each_family_has_its_own():
    samples = [(name, 1, 1e-3, took) for name, took in (("a", 1e-3), ("b", 5e-3))]
    found = {name: factor for name, _, factor in fitted(samples)}
    assert found["b"] > 3 * found["a"]


def test_scales_are_kept_by_chip(folder):
    keep({"one": (("f", 1e-6, 2.0),)})
    keep({"other": (("f", 1e-6, 3.0),)})
    assert stored("one") == (("f", 1e-6, 2.0),) and stored("other") == (("f", 1e-6, 3.0),)
    assert stored("none") == ()


@pytest.mark.parametrize(
    "wrong", ["x", [["f", 1e-6]], [["f", -1.0, 2.0]], [[1, 1.0, 2.0]], [["f", 1.0, "2"]], {"f": 1}]
)
def test_invalid_scales_are_not_used(folder, wrong):
    keep({"one": (("f", 1e-6, 2.0),)})
    (file,) = folder.glob("scales-*.json")
    data = json.loads(file.read_text())
    data["entries"]["one"] = wrong
    file.write_text(json.dumps(data))
    assert stored("one") == ()


@pytest.mark.slow
def test_a_machine_is_found_with_the_scales_of_its_threads(folder):
    for names in (["cpu"], ["cpu*2"]):
        (device,) = detect(names).devices
        assert {name for name, _, _ in device.scales} >= {
            "elementwise",
            "lstm",
            "call",
        }
        assert detect(names).devices[0].scales == device.scales
