"""The examples of several processes run under torchrun, and are one process."""

from __future__ import annotations

import re

import pytest
from helpers.torchrun import torchrun
from test_examples_training import EXAMPLES

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("ddp_toy", ("--devices", "cpu", "emulated:0")), ("ddp_two_devices", ())],
)
def test_the_tutorials_of_ddp_are_one_process(name, arguments):
    found = torchrun(2, EXAMPLES / f"{name}.py", "--steps", "4", *arguments)
    assert found.returncode == 0, found.stderr[-2000:]
    errors = [float(number) for number in re.findall(r"with all rows: (\S+?e[-+]\d\d)", found.stdout)]
    assert len(errors) == 2 and max(errors) <= 1e-5
    if name == "ddp_two_devices":
        assert len(re.findall(r"'net1': '(\S+)', 'net2': '(?!\1)", found.stdout)) == 2


def test_the_pipeline_is_one_process():
    options = ("--steps", "3", "--layers", "2", "--stages", "2", "--replicas", "1")
    found = torchrun(2, EXAMPLES / "pipeline.py", *options)
    assert found.returncode == 0, found.stderr[-2000:]
    apart = re.search(r"whole batch: (\S+) of the loss", found.stdout)
    assert apart and float(apart[1]) < 1e-5
    assert "2 stages × 1 replicas" in found.stdout


def test_layers_split_over_ranks_are_those_of_one():
    found = torchrun(2, EXAMPLES / "tensor_parallel.py", "--width", "64", "--rows", "8", "--times", "1")
    assert found.returncode == 0, found.stderr[-2000:]
    losses = re.search(r"losses \[(\S+), (\S+)\]", found.stdout)
    assert losses, found.stdout
    plain, split = map(float, losses.groups())
    assert split == pytest.approx(plain, rel=1e-5)
    assert "2 layers split" in found.stdout and re.search(r"^split +\d", found.stdout, re.MULTILINE)


def test_one_line_differs_from_the_tutorial():
    for name in ("ddp_toy", "ddp_two_devices"):
        lines = (EXAMPLES / f"{name}.py").read_text().splitlines()
        assert sum("the line that changes" in line.lower() for line in lines) == 1
        assert sum("autopar." in line.partition("#")[0] for line in lines if '"""' not in line) <= 2
