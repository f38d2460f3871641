"""Round robin over a CPU and two strict accelerators, in a process of its own: the stand-in changes `torch.accelerator`
for all that runs beside it.

    cd tests && PYTHONPATH=helpers:.. python -m zoo.strict_route NAME …

prints {name: verdict} as JSON, of all of the zoo without names.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path

from autopar.errors import AutoparError, PlanError

from . import routes
from .compare import verdict
from .entry import REGISTRY, Entry
from .models import MODELS
from .traps import TRAPS

DEVICES = ("cpu", "strict:0", "strict:1")
ERRORS = (AutoparError, RuntimeError, TypeError, ValueError, LookupError, AttributeError)
REFUSED = "-"


def shown(entry: Entry) -> tuple[str, str]:
    """The result of an entry, its batch whole and in two: exact, a number, what went wrong; REFUSED where it cannot be
    cut."""
    reference = routes.eager(entry)
    found = routes.routes(DEVICES)

    def once(name: str) -> str:
        try:
            answer, captured = routes.placed(entry, found[name])
            # What accelerators draw is not what the CPU draws in eager, but the same at each run.
            wanted = routes.placed(entry, found[name])[0] if captured.drawn else reference
            return verdict(wanted, answer)
        except PlanError as error:
            return REFUSED if "cannot be cut" in str(error) else f"PlanError: {error}"
        except ERRORS as error:
            return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"

    return once("round robin"), once("batch in two")


def verdicts(names: Iterable[str]) -> dict[str, str]:
    """The results of these entries run whole by another process. Raises RuntimeError with its output if it fails."""
    tests = Path(__file__).parents[1]
    environment = dict(
        os.environ, PYTHONPATH=os.pathsep.join(map(str, (tests, tests / "helpers", tests.parent)))
    )
    command = [sys.executable, "-m", "zoo.strict_route", *names]
    ran = subprocess.run(command, env=environment, cwd=tests, capture_output=True, text=True)
    if ran.returncode:
        raise RuntimeError(f"{' '.join(command[:3])} failed: {ran.stderr[-2000:]}")
    return json.loads(ran.stdout)


def main() -> None:
    import strict
    import torch

    strict.load()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    entries = [REGISTRY[name] for name in sys.argv[1:]] or [*MODELS, *TRAPS]
    print(json.dumps({entry.name: shown(entry)[0] for entry in entries}, indent=1))


if __name__ == "__main__":
    main()
