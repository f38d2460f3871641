"""`python -m autopar bench --suite NAME`: rivals in the same run, interleaved; medians and ratios."""

from __future__ import annotations

import argparse
import importlib
import json
import platform
from collections.abc import Sequence
from pathlib import Path

SUITES = ("overhead", "first_call", "overlap", "planner", "training", "optimizers", "gpu")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the suites asked for, print a table of each, and save everything as JSON when `--json` says where."""
    parser = argparse.ArgumentParser(prog="python -m autopar bench", description=__doc__)
    parser.add_argument(
        "--suite", choices=SUITES, action="append", help="which (repeat for several; default overhead)"
    )
    parser.add_argument("--json", type=Path, help="file for all samples and medians")
    parser.add_argument(
        "--rounds", type=int, default=0, help="rounds of each contestant (default: the suite's own)"
    )
    planner = parser.add_argument_group("the planner suite")
    planner.add_argument("--part", action="append", help="which (repeat for several; default all)")
    planner.add_argument("--graphs", type=Path, metavar="FOLDER", help="graphs from the literature")
    planner.add_argument(
        "--seeds", type=int, default=0, help="instances of each part (default: a reduced number)"
    )
    chosen = parser.parse_args(argv)
    results: dict[str, object] = {"machine": machine()}
    print(machine())
    for suite in chosen.suite or ["overhead"]:
        module = importlib.import_module(f".{suite}", __name__)
        print(f"\n{suite}: {str(module.__doc__).splitlines()[0]}")
        results[suite] = (
            module.run(chosen.part or (), chosen.graphs, chosen.seeds)
            if suite == "planner"
            else module.run(chosen.rounds)
        )
        if chosen.json:
            chosen.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0


def machine() -> str:
    """One line that says what was measured on."""
    import torch

    gpus = (
        [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        if torch.cuda.is_available()
        else []
    )
    return (
        f"{platform.machine()}, {torch.get_num_threads()} threads, Python {platform.python_version()}, "
        f"torch {torch.__version__}, {', '.join(gpus) or 'no GPU'}"
    )
