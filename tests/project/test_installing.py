"""Installing builds the native search; without a compiler it works too, and plans then say what they lack."""

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

pytest.importorskip("setuptools", minversion="77")

ROOT = Path(__file__).parents[2]
PLAN = """
from benchmarks.instances import small
from autopar.planner import native, place
from autopar.planner.formats import read
for seed in (3, 9):
    place(read(small(seed, tasks=16)))
print(native.LIBRARY is not None)
"""


def built(folder: Path, compiler: str) -> subprocess.CompletedProcess:
    """What planning says with a copy of the package for which setuptools has looked for a compiler."""
    copied(folder)
    own = {**os.environ, "CC": compiler, "PYTHONPATH": os.pathsep.join((str(folder), str(ROOT / "tests")))}
    call = [sys.executable, "-c", "from setuptools import setup; setup()", "-q", "build_ext", "--inplace"]
    done = subprocess.run(call, cwd=folder, env=own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return subprocess.run(
        [sys.executable, "-c", PLAN], cwd=folder, env=own, capture_output=True, text=True, check=True
    )


def copied(folder: Path) -> None:
    """What an install is made from, without what was built here."""
    without = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(ROOT / "autopar", folder / "autopar", ignore=without)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)


@pytest.mark.slow
def test_what_is_not_python_is_installed_and_shipped(tmp_path):
    copied(tmp_path)
    written = (".c", ".h", ".html", ".css", ".js", ".json", ".csv", ".pyi")
    data = {
        path.relative_to(ROOT).as_posix() for path in (ROOT / "autopar").rglob("*") if path.suffix in written
    }
    assert {Path(name).parent.name for name in data} == {"native", "drawing", "pages", "hardware", "autopar"}
    code = "from setuptools import setup; setup()"
    for command in (["build_py", "--build-lib", "built"], ["sdist", "--formats", "tar"]):
        subprocess.run([sys.executable, "-W", "ignore", "-c", code, "-q", *command], cwd=tmp_path, check=True)
    built = {path.relative_to(tmp_path / "built").as_posix() for path in (tmp_path / "built").rglob("*")}
    with tarfile.open(next((tmp_path / "dist").glob("*.tar"))) as archive:
        shipped = {name.partition("/")[2] for name in archive.getnames()}
    assert data <= built and data <= shipped


@pytest.mark.slow
def test_without_a_compiler_plans_come_from_lists(tmp_path):
    said = built(tmp_path, "false")
    assert said.stdout == "False\n"
    (line,) = [line for line in said.stderr.splitlines() if "native search" in line]
    assert "was not built when autopar was installed" in line
    assert line.endswith(f"type: pip install -e {tmp_path}")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler is here")
def test_with_a_compiler_they_are_searched_for(tmp_path):
    said = built(tmp_path, "cc")
    assert said.stdout == "True\n" and not said.stderr
    assert len([*(tmp_path / "autopar" / "planner" / "native").glob("_search.*")]) == 1
