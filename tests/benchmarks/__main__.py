"""`python -m tests.benchmarks`: the planner against rivals and bounds, every plan judged by `verify`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from autopar.bench import machine
from autopar.errors import AutoparError

from . import PARTS, run


def main(argv: Sequence[str] | None = None) -> int:
    """Run the parts asked for and print their figures; 2 for bad input."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"which (default all): {', '.join(PARTS)}")
    parser.add_argument("--graphs", type=Path, metavar="FOLDER", help="graphs from the literature")
    parser.add_argument(
        "--seeds", type=int, default=0, help="instances of each part (default: a reduced number)"
    )
    parser.add_argument("--json", type=Path, help="file for all figures")
    chosen = parser.parse_args(argv)
    print(machine())
    try:
        found = run(chosen.parts, chosen.graphs, chosen.seeds)
    except AutoparError as error:
        print(error, file=sys.stderr)
        return 2
    if chosen.json:
        chosen.json.write_text(json.dumps({"machine": machine(), **found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
