"""Graphs of the dnn-partitioning set: latency and largest load beside the best known, in their model and in ours."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from autopar.errors import PlanError
from autopar.ir.plan import Plan
from autopar.planner import schedule
from autopar.planner.formats.read import is_dnn_partitioning
from autopar.system.text import table

from .judging import Asked
from .strict_model import OBJECTIVES, named, strict_latency, strict_load
from .strict_model.partitioning import Partitioning, partitioning

LATENCY = {
    "bert24_inference": (100.218, "proven"),
    "gnmt_inference": (225.651, "proven"),
    "resnet50_inference": (1330.665, "feasible"),
    "op_bert_l-3_inference": (408.471, "proven"),
    "op_resnet50_inference": (839.536, "greedy"),
}
"""Milliseconds of one sample: by the integer program of the paper restated for CP-SAT with whole microseconds, which is
why one may end in another thousandth here, or by the paper's greedy rule."""
LOAD = {
    "bert24_inference": (17.7899, "contiguous optimum"),
    "bert24_training": (41.7458, "contiguous optimum"),
    "gnmt_inference": (32.9107, "contiguous optimum"),
    "gnmt_training": (107.004, "contiguous optimum"),
    "inceptionv3_inference": (60.417, "PipeDream"),
    "op_bert_l-3_inference": (27.9186, "contiguous optimum"),
    "op_bert_l-3_training": (65.3031, "contiguous optimum"),
    "op_resnet50_inference": (124.349, "contiguous optimum"),
}
"""Milliseconds of the largest load, by the paper's dynamic program over ideals or its version of PipeDream's method."""


def run(asked: Asked) -> dict[str, Any]:
    """Print and return both tables for the graphs in folders `latency` and `throughput` below that of `--graphs`.

    Every plan is judged by `strict_model.check`, from the devices of its tasks alone. `machine` is the same graph
    with the host's own cores, copies beside computing and several calls for an accelerator.
    """
    if asked.graphs is None:
        print("no graphs; give the folder that holds latency/ and throughput/ with --graphs FOLDER")
        return {}
    return {
        "latency": _table(asked.graphs, "latency", LATENCY, _latency),
        "throughput": _table(asked.graphs, "throughput", LOAD, _throughput),
    }


def _table(
    folder: Path,
    objective: str,
    known: Mapping[str, tuple[float, str]],
    judged: Callable[[Partitioning, Plan], float],
) -> dict[str, Any]:
    head = ["CPU cores only"] if objective == "latency" else []
    rows = [
        (objective, "nodes", *head, "best known", "", "ours", "ours ÷ known", "bound", "CPU s", "machine")
    ]
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob(f"{objective}/*.json")):
        data = json.loads(path.read_text())
        if not is_dnn_partitioning(data):
            continue
        graph = partitioning(data)
        began = time.process_time()
        plan = OBJECTIVES[objective](graph, path.stem)
        took = time.process_time() - began
        ours = judged(graph, plan) * 1e3
        told = (plan.makespan if plan.period is None else plan.period) * 1e3
        if not math.isclose(ours, told, rel_tol=1e-9, abs_tol=1e-9):
            raise PlanError(f"the plan of {path.name} promises {told} ms and takes {ours} ms")
        free = _free(path, objective)
        best, how = known.get(path.stem, (math.nan, ""))
        simple = [strict_latency(graph, [0] * len(graph.nodes)) * 1e3] if head else []
        found[path.stem] = {
            "ours_ms": ours,
            "known_ms": None if math.isnan(best) else best,
            "bound_ms": plan.lower_bound * 1e3,
            "cpu_s": took,
            "machine_ms": free,
        }
        rows.append((
            path.stem, str(len(graph.nodes)), *(f"{value:.3f}" for value in simple), f"{best:.3f}", how,
            f"{ours:.3f}", f"{ours / best:.4f}", f"{plan.lower_bound * 1e3:.3f}", f"{took:.2f}",
            "does not fit" if free is None else f"{free:.3f}",
        ))  # fmt: skip
    print(table(rows, right=[column for column, cell in enumerate(rows[0]) if column and cell]))
    return found


def _free(path: Path, objective: str) -> float | None:
    try:
        plan = schedule(path, objective=objective)
    except PlanError:
        return None
    return 1e3 * (plan.makespan if plan.period is None else plan.period)


def _latency(graph: Partitioning, plan: Plan) -> float:
    devices = [device.name for device in plan.costed.machine.devices]
    return strict_latency(graph, named(graph, {step.cluster: step.device for step in plan.placed}, devices))


def _throughput(graph: Partitioning, plan: Plan) -> float:
    host, *rest = plan.costed.machine.devices
    lanes = [*host.compute_lanes[: graph.cpus], *(device.compute_lanes[0] for device in rest)]
    return strict_load(graph, named(graph, {step.cluster: step.lane for step in plan.placed}, lanes))
