"""`python -m tests.benchmarks`: plans beside rivals and optima, each judged by `verify`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autopar.bench import machine
from autopar.errors import AutoparError

from . import feasible, planted, scale, small

PARTS = {"small": small, "planted": planted, "scale": scale, "feasible": feasible}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the parts asked for and print their figures; 2 for bad input. A part takes a minute or two by default."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"which (default all): {', '.join(PARTS)}")
    parser.add_argument("--seeds", type=int, default=0, help="instances of each part (default: a few)")
    parser.add_argument("--json", type=Path, help="file for all figures")
    chosen = parser.parse_args(argv)
    for part in chosen.parts:
        if part not in PARTS:
            parser.error(f"there is no part {part}; give one of {', '.join(PARTS)}")
    print(machine())
    figures: dict[str, Any] = {"machine": machine()}
    try:
        for part in chosen.parts or PARTS:
            print(f"\n{part}: {str(PARTS[part].__doc__).splitlines()[0]}")
            start = time.process_time()
            figures[part] = PARTS[part].run(chosen.seeds)
            print(f"{time.process_time() - start:.0f} CPU seconds in all")
    except AutoparError as error:
        print(error, file=sys.stderr)
        return 2
    if chosen.json:
        chosen.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
