"""Costed graphs built by hand, so that planning, simulating and lowering are tested without torch."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from autopar.costs.clustering import fuse
from autopar.ir.costed import CostedGraph, TaskCost
from autopar.ir.device import Device, Link
from autopar.ir.graph import JOIN, PART, Graph, Ref, Task, Value
from autopar.ir.machine import Machine

MS = 1e-3
KB = 1000


def machine(
    gpus: int = 2,
    *,
    cpu_lanes: int = 1,
    memory: Mapping[str, int] | None = None,
    latency_s: float = 10e-6,
    bytes_per_s: float = 10e9,
    wire: str | None = "own",
    peer: bool = True,
    dispatch_s: float = 0.0,
) -> Machine:
    """A CPU and `gpus` emulated accelerators `emulated:0`, …. `wire` "own" gives each link its own wire."""
    names = ["cpu"] + [f"emulated:{i}" for i in range(gpus)]
    caps = memory or {}
    devices = tuple(
        Device(
            name,
            "cpu" if name == "cpu" else "emulated",
            lanes=cpu_lanes if name == "cpu" else 1,
            memory_bytes=caps.get(name),
            flops=(("float32", 1e11 if name == "cpu" else 1e13),),
            dispatch_s=dispatch_s,
        )
        for name in names
    )
    links = tuple(
        Link(a, b, latency_s, bytes_per_s, f"{a}>{b}" if wire == "own" else wire)
        for a in names
        for b in names
        if a != b and (peer or "cpu" in (a, b))
    )
    return Machine(devices, links)


def build(
    tasks: Mapping[str, tuple[Iterable[str], float | Sequence[float | None]]],
    on: Machine,
    *,
    outputs: Sequence[str] | None = None,
    nbytes: int | Mapping[str, int] = KB,
    state: Mapping[str, tuple[int, Sequence[str]]] | None = None,
    deliver: str = "cpu",
    homes: Mapping[str, str] | None = None,
    colocate: Mapping[str, str] | None = None,
    workspace: Mapping[str, int] | None = None,
    shortest_s: float = 0.0,
) -> CostedGraph:
    """A costed graph from `{task: (tasks or inputs it reads, seconds)}` in topological order.

    Each task makes one value of its own name; a name that is no task is an input. `seconds` is one number for
    all devices or one for each. `nbytes` is for all values or by name, `state` is {name: (bytes, readers)}.
    All sinks are outputs unless `outputs` says otherwise. `shortest_s` 0 leaves each task a run of its own.
    """
    state = state or {}
    size = {} if isinstance(nbytes, int) else dict(nbytes)
    default = nbytes if isinstance(nbytes, int) else KB
    inputs = dict.fromkeys(name for reads, _ in tasks.values() for name in reads if name not in tasks)
    read = {name for reads, _ in tasks.values() for name in reads}
    sinks = tuple(name for name in tasks if name not in read) if outputs is None else tuple(outputs)
    values = [Value(n, (1,), "float32", size.get(n, default), n, "input", n) for n in inputs]
    values += [Value(n, (1,), "float32", held, n, "state", n) for n, (held, _) in state.items()]
    values += [Value(n, (1,), "float32", size.get(n, default), n) for n in tasks]
    made, costs = [], []
    for name, (reads, cost) in tasks.items():
        own = tuple(n for n, (_, readers) in state.items() if name in readers)
        args = tuple(Ref(n) for n in (*reads, *own))
        made.append(
            Task(
                name,
                "test.op",
                args,
                outputs=(name,),
                module=f"m.{name}",
            )
        )
        each = (float(cost),) * len(on.devices) if isinstance(cost, (int, float)) else tuple(cost)
        costs.append(TaskCost(name, each, (workspace or {}).get(name, 0)))
    graph = Graph("test", tuple(values), tuple(made), tuple(inputs), tuple(state), sinks).check()
    made_of = costed(graph, on, costs, deliver=deliver, homes=homes, shortest_s=shortest_s)
    grouped = (replace(cluster, colocate=(colocate or {}).get(cluster.name)) for cluster in made_of.clusters)
    return replace(made_of, clusters=tuple(grouped))


def costed(
    graph: Graph,
    on: Machine,
    costs: Sequence[TaskCost],
    *,
    deliver: str = "cpu",
    homes: Mapping[str, str] | None = None,
    shortest_s: float = 0.0,
) -> CostedGraph:
    """The graph fused and given homes; outputs come to `deliver` ("": where they are made)."""
    home = {name: (homes or {}).get(name, on.host) for name in (*graph.inputs, *graph.state)}
    wanted = [(name, deliver) for name in graph.outputs] + [
        (name, home[target]) for name, target in graph.updates
    ]
    clusters = fuse(graph, on, costs, shortest_s=shortest_s)
    return CostedGraph(graph, on, tuple(costs), clusters, tuple(home.items()), tuple(wanted))


def chain(
    n: int, on: Machine | None = None, seconds: float | Sequence[float | None] = MS, **more
) -> CostedGraph:
    """X → t0 → t1 → … → t(n-1)."""
    return build({f"t{i}": ([f"t{i - 1}" if i else "x"], seconds) for i in range(n)}, on or machine(), **more)


def diamond(on: Machine | None = None, seconds: float | Sequence[float | None] = MS, **more) -> CostedGraph:
    """X → a → (b, c) → d."""
    tasks = {"a": (["x"], seconds), "b": (["a"], seconds), "c": (["a"], seconds), "d": (["b", "c"], seconds)}
    return build(tasks, on or machine(), **more)


def two_towers(
    n: int, on: Machine | None = None, seconds: float | Sequence[float | None] = MS, **more
) -> CostedGraph:
    """Two chains of n tasks, a0 … and b0 …, from two inputs, joined by `sum`."""
    tasks: dict = {}
    for tower in "ab":
        tasks |= {f"{tower}{i}": ([f"{tower}{i - 1}" if i else f"x{tower}"], seconds) for i in range(n)}
    tasks["sum"] = ([f"a{n - 1}", f"b{n - 1}"], seconds)
    return build(tasks, on or machine(), **more)


def fork_join(
    width: int, on: Machine | None = None, seconds: float | Sequence[float | None] = MS, **more
) -> CostedGraph:
    """X → fork → w0 … w(width-1) → join."""
    tasks: dict = {"fork": (["x"], seconds)}
    tasks |= {f"w{i}": (["fork"], seconds) for i in range(width)}
    tasks["join"] = ([f"w{i}" for i in range(width)], seconds)
    return build(tasks, on or machine(), **more)


def random_dag(seed: int, tasks: int = 20, devices: int = 3, ccr: float = 1.0, **more) -> CostedGraph:
    """A random graph with unrelated devices; `ccr` is the mean time of a transfer over that of a task."""
    draw = random.Random(seed)
    on = more.pop("on", None) or machine(
        devices - 1,
        cpu_lanes=draw.choice((1, 1, 2)),
        wire=draw.choice(("own", "one", None)),
        peer=draw.random() < 0.7,
        dispatch_s=draw.choice((0.0, 50e-6)),
    )
    made: dict = {}
    for i in range(tasks):
        before = [f"t{j}" for j in draw.sample(range(i), min(i, draw.choice((0, 1, 1, 2, 3))))]
        cost: list[float | None] = [draw.uniform(0.5, 1.5) * MS * draw.choice((1, 1, 3)) for _ in on.devices]
        if draw.random() < 0.1:
            cost = [s if k == (keep := draw.randrange(len(cost))) else None for k, s in enumerate(cost)]
            if all(s is None for s in cost):
                cost[keep] = MS
        made[f"t{i}"] = (before or [f"x{i % 3}"], cost)
    sizes = {name: int(draw.uniform(0.5, 1.5) * ccr * 1.6 * MS * 10e9) for name in made}
    sizes |= {f"x{k}": int(ccr * MS * 10e9) for k in range(3)}
    state = {f"w{i}": (draw.randrange(1, 10) * 10**6, (f"t{i}",)) for i in range(0, tasks, 4)}
    workspace = {f"t{i}": draw.randrange(10**6) for i in range(0, tasks, 3)}
    return build(made, on, nbytes=sizes, state=state, workspace=workspace, **more)


def parts_of_mlp(
    parts: int, on: Machine | None = None, seconds: Sequence[float] = (8 * MS, MS, MS)
) -> CostedGraph:
    """A batch cut into `parts`: x → (part → linear → linear) … → join, weights resident where they are
    read."""
    on = on or machine()
    whole, weight = 4_000_000, 1_000_000
    values = [Value("x", (parts, 1000), "float32", whole, "x", "input", "x")]
    values += [Value(w, (1000, 250), "float32", weight, w, "state", w) for w in ("w0", "w1")]
    tasks: list[Task] = []
    costs: list[TaskCost] = []
    each = (*seconds, *([seconds[-1]] * len(on.devices)))[: len(on.devices)]
    for k in range(parts):
        label = f"{k}/{parts}"
        values.append(Value(f"p{k}", (1, 1000), "float32", whole // parts, "x"))
        args = (Ref("x"), 0, k, k + 1, parts)
        tasks.append(Task(f"p{k}", PART, args, outputs=(f"p{k}",), free=True, part=label))
        costs.append(TaskCost(f"p{k}", (0.0,) * len(on.devices)))
        source = f"p{k}"
        for layer in (0, 1):
            name = f"l{layer}_{k}"
            values.append(Value(name, (1, 1000), "float32", whole // parts, name))
            tasks.append(
                Task(name, "test.linear", (Ref(source), Ref(f"w{layer}")), outputs=(name,), part=label)
            )
            costs.append(TaskCost(name, tuple(s / parts for s in each)))
            source = name
    values.append(Value("y", (parts, 1000), "float32", whole, "y"))
    tasks.append(Task("y", JOIN, (tuple(Ref(f"l1_{k}") for k in range(parts)), 0), outputs=("y",)))
    costs.append(TaskCost("y", (100e-6,) * len(on.devices)))
    split = f"{parts} parts: " + " + ".join(["1"] * parts)
    graph = Graph("mlp", tuple(values), tuple(tasks), ("x",), ("w0", "w1"), ("y",), split=split).check()
    return costed(graph, on, costs)
