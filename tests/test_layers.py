"""Who may know whom: a lower layer never imports a higher one, and what plans never loads torch."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "autopar"

LAYERS = [
    [
        "cache",
        "cores",
        "errors",
        "garbage",
        "jsonfile",
        "kept",
        "replay",
        "sound",
        "tables",
        "topological",
        "verify",
        "versions",
    ],
    ["graph"],
    ["saving", "rewrites"],
    ["machine", "pins"],
    ["cost", "reduction", "wording", "device_map"],
    ["fuse", "plans", "critical", "timeline", "narrow", "problem", "steps"],
    ["plan_check", "roofline", "programs", "simulate", "events", "liveness", "recording"],
    ["placement", "formats", "lowering", "hardware", "casting"],
    [
        "planning",
        "moved",
        "homes",
        "scheduling",
        "progress",
        "probe",
        "equal",
        "strides",
        "composites",
        "capture",
    ],
    ["detect", "doctor", "runtime", "snapshot"],
    ["measure", "checking", "forms", "view"],
    ["propagate", "options"],
    ["stages"],
    ["dynamo", "training"],
    ["classes"],
    ["compiled"],
    ["api", "bench"],
    ["plan_command"],
    ["parallel", "entry"],
    ["__init__", "__main__"],
]
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
TORCH = {"capture", "casting", "runtime", "bench", "detect", "doctor", "probe", "measure", "checking",
         "equal", "stages", "forms", "propagate", "snapshot", "composites", "dynamo", "training",
         "parallel", "entry", "options", "classes", "compiled", "api",
         "plan_command", "__main__", "strides"}  # fmt: skip
LATER = {
    ("timeline", "view"),
    ("machine", "view"),
    ("plans", "view"),
    ("plans", "plan_check"),
    ("machine", "hardware"),
    ("detect", "doctor"),
    ("programs", "lowering"),
}
"""Methods that load what they need when called: `Timeline.save`, `Plan.draw`, `Machine.declare`, `Program.check`."""


def layer(path: Path) -> str:
    """The name of a module or package directly below autopar."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """Layers that a file imports, wherever in it."""
    found: set[str] = set()
    up = len(path.relative_to(PACKAGE).parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == up:
            names = {alias.name for alias in node.names} - {"__version__"}
            found |= {node.module.split(".")[0]} if node.module else names
        elif (
            isinstance(node, ast.ImportFrom)
            and node.level == 0
            and (node.module or "").split(".")[0] == "torch"
        ):
            found.add("torch")
        elif isinstance(node, ast.Import):
            found |= {"torch" for alias in node.names if alias.name.split(".")[0] == "torch"}
    return found


FILES = sorted(PACKAGE.rglob("*.py"))


def test_every_module_has_a_layer():
    assert {layer(path) for path in FILES} <= set(RANK)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_down(path):
    own = layer(path)
    for other in imports(path) - {own}:
        if other == "torch":
            assert own in TORCH, f"{path.name} imports torch"
        elif (own, other) not in LATER and own != "__init__":
            assert RANK[other] <= RANK[own], f"{path.name} imports {other}, which is above it"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_files_are_short(path):
    assert len(path.read_text().splitlines()) <= 400


def dotted(path: Path) -> str:
    """The name a module is imported by."""
    return ".".join(("autopar", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")


PURE = [dotted(path) for path in FILES if layer(path) not in TORCH]


def loads_torch(names: list[str]) -> str:
    """The first of some modules, imported one after the other, with which torch is there; "" where none is."""
    code = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(name)\n"
        "    if 'torch' in sys.modules: sys.exit(print(name))"
    )
    done = subprocess.run([sys.executable, "-c", code, *names], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_torch_is_not_loaded():
    assert len(PURE) > 100 and not loads_torch(PURE)


def test_the_guard_against_torch_can_fail():
    assert loads_torch([*PURE[:3], "autopar.equal", "autopar.api"]) == "autopar.equal"
