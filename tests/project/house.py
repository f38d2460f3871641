"""The house in figures: `python tests/project/house.py`. import-linter has the arrows (`lint-imports`)."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import networkx

PACKAGE = Path(__file__).parents[2] / "autopar"
LONG = 80
"""Lines above which a function counts as long."""


@functools.cache
def parsed(path: Path) -> ast.Module:
    """A file of Python, parsed once for all figures."""
    return ast.parse(path.read_text())


def imports() -> networkx.DiGraph:
    """Files and the files they import, within functions and for types too; a package is its `__init__`."""
    paths = {path.relative_to(PACKAGE.parent).with_suffix("").parts: path for path in PACKAGE.rglob("*.py")}
    files = {parts[:-1] if parts[-1] == "__init__" else parts: path for parts, path in paths.items()}
    graph = networkx.DiGraph()
    for name, path in files.items():
        package = name if path.name == "__init__.py" else name[:-1]
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ImportFrom) and node.level:
                base = package[: len(package) - node.level + 1]
                base += tuple(node.module.split(".")) if node.module else ()
                for alias in node.names:
                    target = (*base, alias.name) if (*base, alias.name) in files else base
                    if target != name:
                        graph.add_edge(name, target)
    return graph


def figures() -> dict[str, int]:
    """Counts of the package's source, Python and C."""
    python = sorted(PACKAGE.rglob("*.py"))
    lines = {path: len(path.read_text().splitlines()) for path in (*python, *PACKAGE.rglob("*.[ch]"))}
    nodes = [node for path in python for node in ast.walk(parsed(path))]
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    spans = [(node.end_lineno or node.lineno) - node.lineno + 1 for node in functions]
    classes = [node for node in nodes if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
    return {
        "rooms and files at the top": len(
            {path.relative_to(PACKAGE).parts[0] for path in python} - {"__init__.py"}
        ),
        "files in circles": sum(
            len(part) for part in networkx.strongly_connected_components(imports()) if len(part) > 1
        ),
        "lines": sum(lines.values()),
        "files": len(lines),
        "lines of the longest file": max(lines.values()),
        f"functions over {LONG} lines": sum(span > LONG for span in spans),
        "public classes": len(classes),
    }


if __name__ == "__main__":
    for name, number in figures().items():
        print(f"{name:<28}{number:>8,}")
