"""Graphs of 2,000 to 100,000 tasks on 8 devices, each in a process of its own: planning time, gap, peak memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autopar.errors import PlanError
from autopar.planner import schedule
from autopar.system.text import table

from . import instances
from .judging import Data, Goal, by_direction, judged, verdict

SIZES = (2_000, 10_000, 100_000)
REDUCED = (2_000, 10_000)
GOALS = {2_000: 0.5, 10_000: 3.0, 100_000: 30.0}
"""CPU seconds that planning may take, reading the graph included."""
DEVICES = 8
WIDE = 40
"""Chains of the chains."""

WORKER = "import sys; from {package}.scale import worker; worker(*sys.argv[1:])"


def run(seeds: int = 0) -> Data:
    """The reduced size leaves 100,000 tasks out."""
    rows = [("graph", "tasks", "CPU s", "µs a task", "above the bound", "peak MB", "of them before planning")]
    each: dict[str, Data] = {}
    for shape in SHAPES:
        for tasks in SIZES if seeds else REDUCED:
            own = _measured(shape, tasks)
            each[f"{shape} {tasks}"] = own
            rows.append((
                shape, str(tasks), f"{own['cost']:.2f}", f"{own['cost'] / tasks * 1e6:.0f}", f"{own['gap']:.2%}",
                f"{own['peak']:.0f}", f"{own['before']:.0f}",
            ))  # fmt: skip
    print(table(rows, right=range(1, 7)))
    goals = [
        Goal(f"CPU seconds of planning {tasks} tasks, worst", max(costs), GOALS[tasks], form=".2f")
        for tasks in SIZES
        if (costs := [own["cost"] for name, own in each.items() if name.split()[1] == str(tasks)])
    ]
    wrong = sum(own["wrong"] for own in each.values())
    goals.append(Goal("plans that cannot be carried out", wrong, 0, form=".0f"))
    return {"instances": each, "goals": verdict(goals)}


def _measured(shape: str, tasks: int) -> Data:
    """Return the figures of a fresh process, whose peak memory is that of this graph alone."""
    done = subprocess.run(
        [sys.executable, "-c", WORKER.format(package=__package__), shape, str(tasks)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    if done.returncode:
        raise PlanError(f"planning {shape} {tasks} failed: {done.stderr.strip().splitlines()[-1:]}")
    return json.loads(done.stdout)


def worker(shape: str, tasks: str) -> None:
    """Plan one graph in this process and print its figures as JSON: CPU seconds, megabytes, and the gap."""
    graph = SHAPES[shape](int(tasks))
    before = _peak()
    start = time.process_time()
    plan = schedule(graph)
    cost, peak = time.process_time() - start, _peak()
    ours = judged(graph, plan, cost)
    figures = {
        "cost": ours.cost,
        "gap": ours.makespan / ours.bound - 1,
        "before": before,
        "peak": peak,
        "wrong": len(ours.wrong),
    }
    json.dump(figures, sys.stdout)


def _peak() -> float:
    """Megabytes that this process has had in memory at most."""
    status = Path("/proc/self/status")
    if status.exists():
        # What the system says of resource usage includes the process that started this one.
        return int(status.read_text().split("VmHWM:")[1].split()[0]) * 1024 / 1e6
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used * (1 if sys.platform == "darwin" else 1024) / 1e6


def chains(tasks: int) -> Data:
    """Parallel chains of tasks on unrelated devices, nothing between them."""
    draw_of = instances.small(0, tasks=16, devices=DEVICES, ratio=1.0)
    devices, links = draw_of["devices"], by_direction(draw_of)["links"]
    listed: list[dict[str, Any]] = []
    values = []
    for t in range(tasks):
        work = 1e-3 * (0.5 + (t * 7919 % 1000) / 1000)
        speeds = {d["name"]: 1 + (t // WIDE * 31 + n * 17) % 10 / 5 for n, d in enumerate(devices)}
        listed.append({"id": f"t{t}", "seconds": {name: work * speed for name, speed in speeds.items()}})
        if t >= WIDE:
            values.append({
                "id": f"v{t - WIDE}", "producer": f"t{t - WIDE}", "consumers": [f"t{t}"], "bytes": 500_000,
            })  # fmt: skip
    return {"name": "chains", "tasks": listed, "values": values, "devices": devices, "links": links}


def planted(tasks: int) -> Data:
    """A planted optimum at ratio 1, with a wire for each direction of each link."""
    return by_direction(instances.planted(0, tasks, DEVICES, 1.0)[0])


def layers(tasks: int) -> Data:
    """Random layers on unrelated devices, with shared wires."""
    return _drawn("layered", tasks)


def tangle(tasks: int) -> Data:
    """Each task reads up to three of all before it."""
    return _drawn("scattered", tasks)


def _drawn(shape: str, tasks: int) -> Data:
    """The first small random graph of that shape, with so many tasks."""
    for seed in range(100):
        if instances.small(seed, tasks=16, devices=DEVICES, ratio=1.0)["name"].startswith(shape):
            return instances.small(seed, tasks=tasks, devices=DEVICES, ratio=1.0)
    raise ValueError(f"no shape {shape!r} among the first hundred seeds")


SHAPES: dict[str, Callable[[int], Data]] = {
    "chains": chains,
    "planted": planted,
    "layers": layers,
    "tangle": tangle,
}
