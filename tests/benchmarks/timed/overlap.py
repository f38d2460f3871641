"""d2l 13.3: two devices at once, and copies behind compute, by the caller's wall clock; then under one lock.

Runs examples/parallel_matmul.py and examples/overlap_copy.py of this clone.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import torch

from autopar.system.text import table

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def run(rounds: int = 0) -> dict[str, Any]:
    """Print and return the ratios of both, `rounds` (default 3) calls of each contestant, interleaved."""
    rows = [("figure", "goal", "found", "under one lock", "machine")]
    data: dict[str, Any] = {}
    sys.path.append(str(EXAMPLES))
    with torch.no_grad():
        for name, key, goal in (
            ("parallel_matmul", "parallel", "≤ 1.02"),
            ("overlap_copy", "ratio", "≤ 1.05"),
        ):
            data[name] = found = runpy.run_path(str(EXAMPLES / f"{name}.py"))["measure"](rounds=rounds or 3)
            locked = f"{found['under one lock']:.3f}"
            rows.append((name, goal, f"{found[key]:.3f}", locked, found["label"] or "real devices"))
            if "overlap fraction" in found:
                rows.append(("overlap fraction", "≥ 0.95", f"{found['overlap fraction']:.3f}", "", ""))
    print(table(rows, right=(1, 2, 3)))
    return data
