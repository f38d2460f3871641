"""A server started twice, from the Python model and from a saved folder: seconds to the first answer, and memory.

python -m tests.benchmarks.serve [ROUNDS]
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

import autopar

WORKER = """
import json, os, sys, time
import torch
imported, used = time.perf_counter(), time.process_time()
torch.set_num_threads(1)
import autopar
if sys.argv[1] == "folder":
    fast = autopar.load(sys.argv[2])
else:
    model = torch.load(sys.argv[2] + ".model", weights_only=False)
    fast = autopar.compile(model, ["cpu"], kernels=sys.argv[1])
x = torch.ones(4, 2048)
with torch.no_grad():
    fast(x)
    answered, cpu = time.perf_counter() - imported, time.process_time() - used
    for _ in range(10):
        fast(x)
print(json.dumps([answered, cpu, time.time() - float(sys.argv[3])]), flush=True)
sys.stdin.read()
"""


def served(way: str, folder: Path, workers: int) -> tuple[list[float], float]:
    """Return what the slowest of some workers took: seconds from the import of torch, of its CPU, and from the start of
    the process; and the megabytes of all (PSS)."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, way, folder, str(time.time())],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for _ in range(workers)
    ]  # fmt: skip
    took = [json.loads(each.stdout.readline()) for each in processes]  # type: ignore[union-attr]
    texts = [Path(f"/proc/{each.pid}/smaps_rollup").read_text() for each in processes]
    memory = sum(int(text.partition("\nPss:")[2].split()[0]) for text in texts) / 1024
    for each in processes:
        each.communicate()
    return [max(column) for column in zip(*took)], memory


def main() -> None:
    rounds = int(sys.argv[1]) if sys.argv[1:] else 5
    layers = [part for _ in range(8) for part in (nn.Linear(2048, 2048), nn.ReLU())]
    model = nn.Sequential(*layers).eval().requires_grad_(False)
    libraries = ("eager", "onnxruntime", "openvino")
    with tempfile.TemporaryDirectory() as place:
        folders = {name: Path(place) / name for name in libraries}
        for name, folder in folders.items():
            torch.save(model, f"{folder}.model")
            fast = autopar.compile(model, ["cpu"], kernels=name)
            fast.prepare(torch.ones(4, 2048))
            fast.save(folder)
        for workers in (1, 2, 4):
            ways = [(name, way) for name in libraries for way in ("folder", name)]
            found: dict[tuple[str, str], list[tuple[list[float], float]]] = {each: [] for each in ways}
            for _ in range(rounds):
                for name, way in ways:
                    found[name, way].append(served(way, folders[name], workers))
            for (name, way), values in found.items():
                seconds = [statistics.median(column) for column in zip(*[took for took, _ in values])]
                memory = statistics.median(memory for _, memory in values)
                kind = "saved folder" if way == "folder" else "Python model"
                print(
                    f"{workers} workers, {name}, {kind}: {seconds[0]:.2f} s from import torch ({seconds[1]:.2f} s of "
                    f"CPU), {seconds[2]:.2f} s from the start, {memory:.0f} MB", flush=True,
                )  # fmt: skip


if __name__ == "__main__":
    main()
