"""docs/coverage.md: what of the zoo is captured, and whether it gives eager's answer on each route."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

PATH = Path(__file__).parents[2] / "docs" / "coverage.md"
WHOLE = ("task by task", "cpu", "round robin", "adversarial")
STRICT = "strict accelerator"
ROUTES = (*WHOLE, "batch in two", STRICT)

LONGEST = 200
"""Characters of a remark."""

HEAD = """\
# What is covered

Made by `pytest -m zoo`; do not edit. Every model is built from its config with random weights and called
twice; answers, parameters, buffers and arguments are held against eager after each call. `exact` is bit-equal
(NaN to NaN), a number the largest max|Δ| ÷ max|reference| of a tensor, anything else what went wrong.

- task by task: the captured graph, one task after the other
- cpu: `autopar.compile` on one CPU lane, its own check against eager included
- round robin: a CPU and two emulated accelerators, each task on the next device: the nastiest placement
- adversarial: the same program, its steps in seeded adversarial order, memory poisoned and reused at once
- batch in two: round robin with the batch cut into two parts, where it can be
- strict accelerator: round robin over a CPU and two stand-ins for GPUs as asynchronous as those are (docs/strict.md)
"""


@dataclass
class Row:
    """One model: how it was captured, how many tasks it has, and the verdict on each route."""

    name: str
    family: str
    how: str = ""
    tasks: int = 0
    verdicts: dict[str, str] = field(default_factory=dict)
    reason: str = ""

    def cells(self) -> list[str]:
        """The row as text, in the order of the table's columns."""
        verdicts = [self.verdicts.get(route, "-") for route in ROUTES]
        return [
            self.name,
            self.family,
            str(self.tasks or "-"),
            self.how or "refused",
            *verdicts,
            _short(self.reason),
        ]


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def write(rows: Iterable[Row], path: Path = PATH) -> None:
    """Write the table, models in the order of the registry."""
    rows = list(rows)
    names = ["model", "family", "tasks", "captured by", *ROUTES, "remark"]
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row.cells()) + " |" for row in rows]
    equal = sum(bool(row.how) and all(row.verdicts.get(r, "exact") == "exact" for r in WHOLE) for row in rows)
    refused = sum(not row.how for row in rows)
    total = f"{len(rows)} models: {equal} exact on {', '.join(WHOLE)}; {refused} refused.\n"
    path.write_text("\n".join([HEAD, where(), "", total, *lines, ""]))


def where() -> str:
    """One line on what it ran with."""
    found = [f"torch {torch.__version__}"]
    for package in ("transformers", "timm", "torchvision"):
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            found.append(f"{package} not installed")
    return (
        f"Python {platform.python_version()}, {', '.join(found)}; {platform.system()} {platform.machine()}."
    )
