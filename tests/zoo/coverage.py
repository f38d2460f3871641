"""docs/coverage.md: what of the zoo is placed, and whether it gives eager's answer on each route."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from .routes import Found

PATH = Path(__file__).parents[2] / "docs" / "coverage.md"
WHOLE = ("task by task", "cpu", "round robin", "adversarial")
STRICT = "strict accelerator"
ROUTES = (*WHOLE, "batch in two", STRICT)

LONGEST = 200
"""Characters of a remark."""

HEAD = """\
# What is covered

`pytest -m zoo` writes this page; do not edit it. Every model is built from its config with random
weights and called twice. After each call, its answers, caches, parameters, buffers and arguments
are compared with eager's.

- `exact`: bit-equal (NaN equals NaN)
- a number: the largest max|Δ| ÷ max|reference| of a tensor
- anything else: what went wrong

Every column goes through `autopar.compile`, and so through `torch.compile`. "Graphs" are the graphs
that `torch.compile` captured in the two calls. "As written" are those of them that ran eagerly, for
the reason in the last column. Decoders are called with their caches, which are compared too.

| column | how each graph runs |
|---|---|
| task by task | one task after the other |
| cpu | on one CPU lane, including the check of the first call |
| round robin | on a CPU and two emulated accelerators, each task on the next device: the hardest placement |
| adversarial | as round robin, with the steps in a seeded adversarial order, and memory poisoned and reused at once |
| batch in two | round robin, with the batch split into two parts where possible |
| strict accelerator | round robin over a CPU and two stand-ins as asynchronous as GPUs: [strict.md](strict.md) |

Random numbers that strict accelerators draw themselves are compared with another run of the same
seed.
"""


@dataclass
class Row:
    """One model: what was captured of it, and the verdict on each route."""

    name: str
    family: str
    found: Found | None = None
    verdicts: dict[str, str] = field(default_factory=dict)
    reason: str = ""

    @property
    def written(self) -> str:
        """Why some of it runs as written, "" where all of it is placed."""
        if self.found is None:
            return "it does not run"
        return " ".join("; ".join(self.found.reasons).split())

    def cells(self) -> list[str]:
        """The row as text, in the order of the table's columns."""
        verdicts = [self.verdicts.get(route, "-") for route in ROUTES]
        tasks = str(self.found.tasks or "-") if self.found else "-"
        remark = "; ".join(filter(None, (self.reason, self.written)))
        return [self.name, self.family, tasks, str(self.found or "-"), *verdicts, _short(remark)]


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def write(rows: Iterable[Row], path: Path = PATH) -> None:
    """Write the table, models in the order of the registry."""
    rows = list(rows)
    names = ["model", "family", "tasks", "captured as", *ROUTES, "remark"]
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row.cells()) + " |" for row in rows]
    equal = sum(all(row.verdicts.get(route) == "exact" for route in WHOLE) for row in rows)
    single = sum(str(row.found) == "1 graph" for row in rows)
    written = sum(bool(row.written) for row in rows)
    total = (
        f"{len(rows)} models: {equal} are exact in {', '.join(WHOLE)}; {single} are one graph; {written} have parts "
        "that run as written.\n"
    )
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
