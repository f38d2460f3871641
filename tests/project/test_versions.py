"""The releases that are named in one place are those of every other, and an error for another one names them."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

from autopar import system

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINS = dict(
    line.lower().split("==")
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if line and not line.startswith("#")
)


def names(requirements):
    """Distributions that these requirements name, extras of our own followed."""
    for requirement in requirements:
        name = re.match(r"[\w.-]+", requirement)[0]
        if name == PROJECT["name"]:
            for extra in re.search(r"\[(.*)\]", requirement)[1].split(","):
                yield from names(PROJECT["optional-dependencies"][extra])
        else:
            yield name


def test_the_requirement_is_the_supported_range():
    assert f"pip install '{PROJECT['dependencies'][0]}'" == system.TO_TYPE
    assert system.supported(torch.__version__) and system.supported(PINS["torch"])


@pytest.mark.parametrize(
    ("version", "answer"),
    [("2.11.0", True), ("2.15.3+cu132", True), ("2.16.0a0+git", False), ("2.10.1", False), ("3.12.0", False),
     ("2.2", False), ("unknown", False)],
)  # fmt: skip
def test_releases_are_compared_as_numbers(version, answer):
    assert system.supported(version) is answer


def test_everything_that_is_installed_by_name_is_pinned():
    extras = ",".join(PROJECT["optional-dependencies"])
    wanted = {*names(PROJECT["dependencies"]), *names([f"{PROJECT['name']}[{extras}]"])}
    assert wanted <= set(PINS), f"constraints.txt lacks {sorted(wanted - set(PINS))}"


UNKNOWN = """
import sys
import torch

sys.modules["torch.utils.flop_counter"] = None
try:
    import autopar.capture.torch_private
except Exception as error:
    print(error)
del sys.modules["torch.utils.flop_counter"]
torch.__version__ = "2.99.0"
import autopar.capture.torch_private
import autopar.cli.doctor

autopar.cli.doctor.main(["cpu"])
"""


@pytest.mark.slow
def test_a_torch_that_lacks_something_is_told_the_range_and_an_unknown_one_is_warned_of(tmp_path):
    """By doctor, too."""
    environment = {"PYTHONPATH": str(ROOT), "AUTOPAR_CACHE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", UNKNOWN], capture_output=True, text=True, env=environment)
    assert f"which capture needs; autopar supports {system.SUPPORTED}: pip install" in done.stdout
    assert f"torch 2.99.0 was never tested with autopar, which supports {system.SUPPORTED}" in done.stderr
    assert f"{system.SUPPORTED} are supported; this one is not: pip install" in done.stdout
