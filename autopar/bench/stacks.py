"""Models of several kinds with random weights: autopar beside eager and the compilers that are installed.

Each model is a process of its own, `python -m autopar bench autopar.bench.stack_models:NAME`, so that none finds
another's threads or compiled code.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..errors import AutoparError
from .row import Row, read

MODELS: dict[str, tuple[str, ...]] = {
    "mlp784": ("1", "8", "256"),
    "mlp2048": ("1", "8", "256"),
    "mlps": ("1", "8", "256"),
    "lstms": ("1", "8"),
    "moe": ("1", "8"),
    "dlrm": ("1", "8"),
    "bert_small": ("1", "8"),
    "clip": ("1", "8"),
    "googlenet": ("1", "8"),
    "inception_v3": ("1", "8"),
    "resnet18": ("1", "8"),
}
"""The batches of each."""
TRAINED = ("resnet18",)
"""Those that are timed in a training step."""


def run(only: Sequence[str], words: Sequence[str]) -> Iterator[tuple[str, list[Row], str]]:
    """The name of each model, or of those in `only`, its rows, and why there are none, each once it is done.

    words: options for each. Raises AutoparError for a name that none has.
    """
    for name in only:
        if name not in MODELS:
            raise AutoparError(f"no model of the suite is called {name!r}; there are {', '.join(MODELS)}")
    for name in only or MODELS:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "rows.json"
            command = [sys.executable, "-m", "autopar", "bench", f"{__package__}.stack_models:{name}"]
            command += [word for batch in MODELS[name] for word in ("--batch", batch)]
            command += [*words, "--json", str(path), *(["--train"] if name in TRAINED else [])]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            found = json.loads(path.read_text())["rows"] if path.exists() else []
        said = done.stderr.strip().splitlines() or [f"ended with status {done.returncode}"]
        yield name, [read(row) for row in found], said[-1] if done.returncode else ""
