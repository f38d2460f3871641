"""`python -m tests.benchmarks.timed SUITE …`: the suites behind docs/benchmarks.md that time calls."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from autopar.bench import machine
from autopar.errors import AutoparError

from . import SUITES


def main(argv: Sequence[str] | None = None) -> int:
    """Run the suites asked for and print their figures; 2 where one cannot run here."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.timed", description=__doc__)
    parser.add_argument("suites", nargs="+", choices=SUITES, metavar="SUITE", help=", ".join(SUITES))
    parser.add_argument("--rounds", type=int, default=0, help="of each contestant (default: the suite's own)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="file for all samples and medians")
    chosen = parser.parse_args(argv)
    print(machine(), flush=True)
    results: dict[str, object] = {"machine": machine()}
    for suite in chosen.suites:
        module = importlib.import_module(f".{suite}", __package__)
        print(f"\n{suite}: {str(module.__doc__).splitlines()[0]}")
        try:
            results[suite] = module.run(chosen.rounds)
        except AutoparError as error:
            print(error, file=sys.stderr)
            return 2
        if chosen.json:
            chosen.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
