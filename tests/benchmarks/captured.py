"""Planning time against the number of tasks, capture excluded: chains and random graphs on CPU + 2 accelerators."""

from __future__ import annotations

import random
import time
from typing import Any

from autopar.costs.roofline import cost
from autopar.ir.costed import CostedGraph
from autopar.ir.graph import Graph, Ref, Task, Value
from autopar.ir.machine import Machine
from autopar.planner import place
from autopar.system.text import table

from .judging import Asked


def run(asked: Asked) -> dict[str, Any]:
    """Print and return seconds of cost + place for 1k and 10k tasks; full size (any `seeds`) has 100k too."""
    sizes = (1_000, 10_000, 100_000) if asked.seeds else (1_000, 10_000)
    rows = [("graph", "tasks", "runs", "cost s", "place s", "µs a task", "predicted ÷ bound")]
    data: dict[str, Any] = {}
    for shape in (chain, tangle):
        for tasks in sizes:
            graph = shape(tasks)
            start = time.perf_counter()
            costed = price(graph)
            middle = time.perf_counter()
            plan = place(costed)
            end = time.perf_counter()
            data[f"{shape.__name__} {tasks}"] = {
                "cost_s": middle - start,
                "place_s": end - middle,
                "gap": plan.gap,
            }
            rows.append((
                shape.__name__, str(tasks), str(len(costed.clusters)), f"{middle - start:.2f}", f"{end - middle:.2f}",
                f"{(end - start) / tasks * 1e6:.0f}", f"{1 + plan.gap:.2f}",
            ))  # fmt: skip
    print(table(rows, right=(1, 2, 3, 4, 5, 6)))
    return data


def price(graph: Graph) -> CostedGraph:
    """The graph costed on a 16-core CPU and two H100s."""
    return cost(graph, Machine.declare("cpu-16", "h100-sxm", "h100-sxm"), homes={})


def chain(tasks: int) -> Graph:
    """Tasks one after the other, each long enough to be a run of its own."""
    return _graph("chain", [(index,) for index in range(tasks)])


def tangle(tasks: int) -> Graph:
    """Tasks that read one to three of the hundred values before them."""
    draw = random.Random(0)
    reads = [
        tuple(sorted({draw.randrange(max(0, index - 100), index + 1) for _ in range(draw.randint(1, 3))}))
        for index in range(tasks)
    ]
    return _graph("tangle", reads)


def _graph(name: str, reads: list[tuple[int, ...]]) -> Graph:
    side = 1024
    values = [Value("v0", (side, side), "float32", side * side * 4, "v0", "input", "x")]
    made = []
    for index, sources in enumerate(reads, 1):
        values.append(Value(f"v{index}", (side, side), "float32", side * side * 4, f"v{index}"))
        made.append(
            Task(f"t{index}", "aten.mm.default", tuple(Ref(f"v{source}") for source in sources),
                 outputs=(f"v{index}",), flops=100 * side**3)
        )  # fmt: skip
    read = {source for sources in reads for source in sources}
    outputs = tuple(f"v{index}" for index in range(1, len(reads) + 1) if index not in read)
    return Graph(name, tuple(values), tuple(made), ("v0",), (), outputs).check()
