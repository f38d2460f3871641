"""`python -m autopar bench --suite NAME`: rivals in the same run, interleaved; medians and ratios."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from ..errors import AutoparError

SUITES = ("overhead", "first_call", "overlap", "training", "optimizers", "predictions", "gpu")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the suites asked for, print a table of each, and save everything as JSON when `--json` says where.

    They need torch: AutoparError where it is not installed.
    """
    parser = argparse.ArgumentParser(prog="python -m autopar bench", description=__doc__)
    parser.add_argument(
        "--suite", choices=SUITES, action="append", help="which (repeat for several; default overhead)"
    )
    parser.add_argument("--json", type=Path, help="file for all samples and medians")
    parser.add_argument(
        "--rounds", type=int, default=0, help="rounds of each contestant (default: the suite's own)"
    )
    chosen = parser.parse_args(argv)
    suites = chosen.suite or ["overhead"]
    if not find_spec("torch"):
        raise AutoparError(f"torch is not installed, and the suite {suites[0]} measures it; install torch")
    results: dict[str, object] = {"machine": machine()}
    print(machine())
    for suite in suites:
        module = importlib.import_module(f".{suite}", __name__)
        print(f"\n{suite}: {str(module.__doc__).splitlines()[0]}")
        results[suite] = module.run(chosen.rounds)
        if chosen.json:
            chosen.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0


def machine() -> str:
    """One line that says what was measured on."""
    own = f"{platform.machine()}, Python {platform.python_version()}"
    if not find_spec("torch"):
        return f"{own}, {os.cpu_count()} cores, no torch"
    import torch

    gpus = (
        [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        if torch.cuda.is_available()
        else []
    )
    return (
        f"{own}, {torch.get_num_threads()} threads, torch {torch.__version__}, {', '.join(gpus) or 'no GPU'}"
    )
