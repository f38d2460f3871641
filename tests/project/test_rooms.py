"""Rooms without torch load none, and imports keep the contracts of import-linter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import autopar

pytestmark = pytest.mark.slow

PACKAGE = Path(autopar.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
PURE = ("errors", "system", "ir", "transform", "planner", "lowering", "view")
"""Rooms that never load torch."""


def dotted(path: Path) -> str:
    """The name a module is imported by."""
    return ".".join(("autopar", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")


def loads_torch(names: list[str], *folders: Path) -> str:
    """The first of some modules, imported one after the other, with which torch is there; "" where none is. Modules are
    looked for in these folders first."""
    code = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(name)\n"
        "    if 'torch' in sys.modules: sys.exit(print(name))"
    )
    path = os.pathsep.join([*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", code, *names], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    return done.stdout.strip()


def pure() -> list[str]:
    """Every module of the rooms without torch."""
    rooms = {path: path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in FILES}
    return [dotted(path) for path, room in rooms.items() if room in PURE]


def test_torch_is_not_loaded() -> None:
    assert {name.split(".")[1] for name in pure()} == {*PURE}
    assert not loads_torch(pure())


def test_the_guard_against_torch_can_fail(tmp_path: Path) -> None:
    # An empty one, which takes no seconds to load.
    for name, text in (("torch", ""), ("reaches", "import torch"), ("around", "import reaches")):
        (tmp_path / f"{name}.py").write_text(text)
    assert loads_torch([*pure()[:3], "around", "reaches"], tmp_path) == "around"


def test_contracts_are_kept() -> None:
    pytest.importorskip("importlinter", reason="import-linter is in the extra [dev]")
    # In a process of its own: it switches off loggers that are there.
    code = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    done = subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
