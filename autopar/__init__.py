"""Make an ordinary PyTorch model use every device of the machine it is on.

    fast = autopar.compile(model, ["cpu", "cuda:0", "cuda:1"])
    y = fast(x)

Nothing is imported until it is used, so that planning alone never loads torch. The public names and their modules are
those of the stub `__init__.pyi`.
"""

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

from .system import VERSION

__version__ = VERSION

_MODULE = {
    name.name: node.module
    for node in ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")).body
    if isinstance(node, ast.ImportFrom)
    for name in node.names
}

__all__ = sorted(_MODULE)


def __getattr__(name: str) -> Any:
    if name not in _MODULE:
        raise AttributeError(f"module 'autopar' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(f".{_MODULE[name]}", __name__), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
