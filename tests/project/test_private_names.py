"""Private names of torch are in named files only, each with what it buys."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import autopar

pytestmark = pytest.mark.slow

PACKAGE = Path(autopar.__file__).parent

NAMED = {
    "capture/torch_private.py": "the state of torch that captures read and restore",
    "capture/dynamo_private.py": "Dynamo's entry, settings and guards, and the graphs of AOTAutograd",
}
"""Files that may use any, as they check torch's version and fail loudly."""
REASONS = {
    "bench/rivals.py": "a rival's own options",
    "ops/composites/define.py": "defines operators, below capture: keys of autocast, and kernels in Python for a trace",
    "runtime/kernels/cuda_graphs.py": "memory of a recorded graph",
    "runtime/kernels/inductor.py": "a kernel library",
}
"""Other files that use some, and what for. Shorten it where that is cheap, and do not make it longer."""
KNOWN = ("torch._ops", "torch._foreach_", "torch.ops.", "torch.utils._pytree")
"""Private only by name: types of operators, kernels of many tensors, operators, and trees of arguments."""
FIELDS = {"_cdata", "py_kernels", "_dispatch_cache", "_op_dk"}


def private(text: str) -> bool:
    return re.match(r"torch\.(\w+\.)*_(?!_)", text) is not None and not text.startswith(KNOWN)


def names(path: Path) -> set[str]:
    """The private names of torch in a file: imported, by attributes of `torch`, or fields of its objects."""
    found = set[str]()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if private(alias.name)}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {text for alias in node.names if private(text := f"{node.module}.{alias.name}")}
        elif isinstance(node, ast.Attribute):
            if node.attr in FIELDS:
                found.add(node.attr)
            if private(text := ast.unparse(node)):
                found.add(text)
    return found


def test_private_names_of_torch_are_in_named_files_only() -> None:
    used = {path.relative_to(PACKAGE).as_posix(): names(path) for path in PACKAGE.rglob("*.py")}
    others = {file: sorted(used) for file, used in used.items() if used and file not in NAMED}
    assert others.keys() == REASONS.keys(), others
    assert all(used[file] for file in NAMED)
