"""Random graphs of real operators: element-wise, products, views, several outputs."""

from __future__ import annotations

import random
from dataclasses import replace

from naive import value

from autopar.ir.graph import Graph, Ref, Task


def random_graph(rng: random.Random, tasks: int, *, window: int = 8) -> Graph:
    """4 × 4 tensors; each task reads among the last `window` values, what none reads is a result."""
    values = [value("x", kind="input"), value("w", kind="state"), value("v", kind="state")]
    about = {v.name: v for v in values}
    names, made = ["x", "w", "v"], []
    for index in range(tasks):
        kind = rng.choice(["one", "one", "two", "two", "mm", "view", "split", "both"])
        a, b = (rng.choice(names[-window:]) for _ in range(2))
        out, more = f"v{index}", f"v{index}b"
        if kind == "one":
            task = Task(
                f"t{index}", rng.choice(["aten.sin.default", "aten.tanh.default"]), (Ref(a),), (), (out,)
            )
            outs = [value(out)]
        elif kind in ("two", "mm"):
            target = "aten.mm.default" if kind == "mm" else rng.choice(["aten.add.Tensor", "aten.sub.Tensor"])
            task, outs = Task(f"t{index}", target, (Ref(a), Ref(b)), (), (out,)), [value(out)]
        elif kind == "view":
            task = Task(f"t{index}", "aten.t.default", (Ref(a),), (), (out,), free=True)
            outs = [value(out, storage=about[a].storage)]
        elif kind == "split":
            args = (Ref(a), rng.choice([0, 1]))
            task = Task(f"t{index}", "aten.sort.default", args, (), (out, more), unpack=True)
            outs = [value(out), value(more, dtype="int64")]
        else:
            task = Task(f"t{index}", "aten.frexp.Tensor", (Ref(a),), (), (out, more), unpack=True)
            outs = [value(out), value(more, dtype="int32")]
        made.append(task)
        for v in outs:
            values.append(v)
            about[v.name] = v
            if v.dtype == "float32":
                names.append(v.name)
    read = {name for task in made for name in task.inputs}
    ends = [v.name for v in values if v.name not in read and v.kind == "made"]
    outputs = tuple(dict.fromkeys([*ends, *(rng.choice(names) for _ in range(2))]))
    state = ("w", "v")
    return Graph("random", tuple(values), tuple(made), ("x",), state, outputs).check()


def training(rng: random.Random, tasks: int) -> Graph:
    """A random graph whose state is carried, changing, updated in the plain way, or left alone."""
    made = random_graph(rng, tasks)
    ends = [v.name for v in made.values if v.kind == "made" and v.dtype == "float32"]
    more, values, updates = [], [], []
    kinds = {
        state: rng.choice(("carried", "carried", "changing", "updated", "plain")) for state in made.state
    }
    for state, kind in kinds.items():
        if kind in ("carried", "updated"):
            reads = (Ref(state), Ref(rng.choice(ends or ["x"])))
            more.append(Task(f"new {state}", "aten.sub.Tensor", reads, (), (f"{state}'",)))
            values.append(value(f"{state}'"))
            updates.append((f"{state}'", state))
    names = {kind: tuple(s for s, k in kinds.items() if k == kind) for kind in ("carried", "changing")}
    outputs = made.outputs + tuple(m for m, _ in updates if rng.random() < 0.3)
    return replace(
        made,
        values=made.values + tuple(values),
        tasks=made.tasks + tuple(more),
        outputs=outputs,
        updates=tuple(updates),
        **names,
    ).check()


def random_places(rng: random.Random, graph: Graph, lanes: list[str]) -> dict[str, str]:
    """A lane for each task."""
    return {task.name: rng.choice(lanes) for task in graph.tasks}
