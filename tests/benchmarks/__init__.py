"""The planner's benchmarks: a part for each claim, rivals in the same process, every plan judged by `verify`."""

from __future__ import annotations

import importlib
import importlib.util
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autopar.errors import PlanError

from .judging import Asked

PARTS = {
    "small": ".small",
    "planted": ".planted",
    "stg": ".stg",
    "scale": ".scale",
    "feasible": ".feasible",
}
"""The module of each part."""


def run(parts: Sequence[str] = (), graphs: Path | None = None, seeds: int = 0) -> dict[str, Any]:
    """Print and return every figure of `parts` (default: all).

    Each part takes a minute or two in its reduced size, which `seeds` 0 asks for; with `seeds` it has so many
    instances, or seeds of each kind. `graphs` is a folder with graphs from the literature. Raises PlanError for a part
    that there is not.
    """
    for part in parts:
        if part not in PARTS:
            raise PlanError(f"there is no part {part}; give one of {', '.join(PARTS)}")
    found: dict[str, Any] = {}
    for part in parts or PARTS:
        if importlib.util.find_spec(PARTS[part], __name__) is None:
            print(f"\n{part}: not there")
            continue
        module = importlib.import_module(PARTS[part], __name__)
        print(f"\n{part}: {str(module.__doc__).splitlines()[0]}")
        start = time.process_time()
        found[part] = module.run(Asked(graphs, seeds))
        print(f"{time.process_time() - start:.0f} CPU seconds in all")
    return found
