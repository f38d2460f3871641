"""Small graphs of real operators with a plan each, and inputs for them."""

from __future__ import annotations

from dataclasses import replace

import torch
from naive import machine, plan, value

from autopar.ir.graph import JOIN, PART, Graph, Ref, Task, Value
from autopar.ir.plan import Plan
from autopar.ops import resolve as bind


def R(*names: str) -> tuple[Ref, ...]:  # noqa: N802 - short, in a table
    return tuple(Ref(name) for name in names)


def op(name: str, target: str, args: tuple, outputs: tuple[str, ...] | None = None, **more: object) -> Task:
    """A task that makes the value of its own name unless told otherwise."""
    return Task(name, target, args, (), outputs if outputs is not None else (f"{name}_",), **more)  # type: ignore[arg-type]


def graph(name: str, values: list[Value], tasks: list[Task], outputs: tuple[str, ...], updates=()) -> Graph:
    inputs = tuple(v.name for v in values if v.kind == "input")
    state = tuple(v.name for v in values if v.kind == "state")
    made = {v.name for v in values}
    values = values + [value(o) for t in tasks for o in t.outputs if o not in made]
    return Graph(name, tuple(values), tuple(tasks), inputs, state, outputs, tuple(updates)).check()


def mlp() -> Plan:
    """Two layers over two parts of the batch, each on its own accelerator."""
    weights = [value("w1", (8, 4), kind="state"), value("w2", (3, 8), kind="state")]
    values = [value("x", (6, 4), kind="input"), *weights, value("y", (6, 3))]
    tasks = []
    for part in "01":
        rows = (0, 3) if part == "0" else (3, 6)
        shapes = {"p": (3, 4), "h": (3, 8), "r": (3, 8), "o": (3, 3)}
        values += [
            value(key + part, shape, storage="x" if key == "p" else "") for key, shape in shapes.items()
        ]
        tasks += [
            op(f"part{part}", PART, (Ref("x"), 0, *rows, 6), (f"p{part}",), free=True),
            op(f"first{part}", "aten.linear.default", R(f"p{part}", "w1"), (f"h{part}",)),
            op(f"relu{part}", "aten.relu.default", R(f"h{part}"), (f"r{part}",)),
            op(f"second{part}", "aten.linear.default", R(f"r{part}", "w2"), (f"o{part}",)),
        ]
    tasks.append(op("join", JOIN, (R("o0", "o1"), 0), ("y",)))
    where = {t.name: "cpu" if t.name[:4] in ("part", "join") else f"emulated:{t.name[-1]}" for t in tasks}
    return plan(graph("mlp", values, tasks, ("y",)), machine(), where)


def diamond() -> Plan:
    """One value read on three devices, joined on the first."""
    tasks = [
        op("a", "aten.sin.default", R("x")),
        op("b", "aten.exp.default", R("a_")),
        op("c", "aten.cos.default", R("a_")),
        op("d", "aten.add.Tensor", R("b_", "c_")),
        op("e", "aten.mul.Tensor", R("d_", "a_")),
    ]
    where = ["cpu", "emulated:0", "emulated:1", "emulated:0", "cpu"]
    return plan(graph("diamond", [value("x", kind="input")], tasks, ("e_",)), machine(), where)


def towers(caps: dict[str, int] | None = None) -> Plan:
    """Two chains of ten products, each on its accelerator, added on the CPU."""
    values = [value("x", kind="input"), value("w", kind="state")]
    tasks = []
    for tower in "01":
        last = "x"
        for step in range(10):
            name = f"t{tower}_{step}"
            target = "aten.mm.default" if step % 2 else "aten.tanh.default"
            tasks.append(op(name, target, R(last, "w") if step % 2 else R(last)))
            last = f"{name}_"
    tasks.append(op("sum", "aten.add.Tensor", R("t0_9_", "t1_9_")))
    where = {t.name: "cpu" if t.name == "sum" else f"emulated:{t.name[1]}" for t in tasks}
    return plan(graph("towers", values, tasks, ("sum_", "t0_3_")), machine(caps=caps), where)


def fork(lanes: int = 1, caps: dict[str, int] | None = None) -> Plan:
    """Rounds of a value shared with all devices, worked on there and gathered."""
    tasks, last = [], "x"
    where = {}
    for turn in range(4):
        tasks.append(op(f"s{turn}", "aten.sin.default", R(last)))
        where[f"s{turn}"] = "cpu"
        for arm, device in enumerate(("cpu", "emulated:0", "emulated:1", "cpu/1" if lanes > 1 else "cpu")):
            name = f"a{turn}_{arm}"
            reads = R(f"s{turn}_", f"a{turn - 1}_{(arm + 1) % 4}_") if turn else R(f"s{turn}_", "x")
            tasks.append(op(name, "aten.add.Tensor" if arm % 2 else "aten.mul.Tensor", reads))
            where[name] = device
        tasks.append(
            op(
                f"g{turn}",
                "aten.stack.default",
                (R(*(f"a{turn}_{arm}_" for arm in range(4))),),
                (f"g{turn}_",),
            )
        )
        tasks.append(op(f"m{turn}", "aten.mean.dim", (Ref(f"g{turn}_"), (0,))))
        where[f"g{turn}"] = where[f"m{turn}"] = ("cpu", "emulated:1")[turn % 2]
        last = f"m{turn}_"
    values = [value("x", kind="input"), *(value(f"g{turn}_", (4, 4, 4)) for turn in range(4))]
    name = "fork" + ("" if lanes == 1 else f", {lanes} lanes") + (", capped" if caps else "")
    return plan(graph(name, values, tasks, (last, "s0_")), machine(lanes, caps=caps), where)


def views(lanes: int = 1) -> Plan:
    """Views of a value, of a view, of an input and of a copy, read far from where their storage was
    allocated.
    """
    values = [
        value("x", kind="input"),
        value("xt", storage="x"),
        value("at", storage="a_"),
        value("u0", (2, 4), storage="a_"),
        value("u1", (2, 4), storage="a_"),
        value("ut", (4, 2), storage="a_"),
        value("p", (2, 2)),
        value("q", (4, 4)),
        value("r_", (4,)),
        value("n_", (4,), dtype="int64"),
        value("z", (4, 4), storage="q"),
    ]
    tasks = [
        op("xt", "aten.t.default", R("x"), ("xt",), free=True),
        op("a", "aten.exp.default", R("xt")),
        op("at", "aten.t.default", R("a_"), ("at",), free=True),
        op("u", "aten.split.Tensor", (Ref("a_"), 2), ("u0", "u1"), unpack=True, free=True),
        op("ut", "aten.t.default", R("u1"), ("ut",), free=True),
        op("p", "aten.mm.default", R("u0", "ut"), ("p",)),
        op("k", "aten.cos.default", R("at")),
        op("m", "aten.max.dim", (Ref("k_"), 0), ("r_", "n_"), unpack=True),
        op("q", "aten.add.Tensor", R("k_", "r_"), ("q",)),
        op("z", "aten.t.default", R("q"), ("z",), free=True),
    ]
    where = {
        "xt": "emulated:0",
        "a": "emulated:0",
        "p": "emulated:1",
        "k": "emulated:0",
        "m": "cpu",
        "q": "emulated:1",
    }
    where |= {"at": "emulated:0", "u": "emulated:0", "ut": "emulated:0", "z": "emulated:1"}
    if lanes > 1:
        order = ["xt", "a", "at", "u", "ut", "p", "k", "m", "q", "z"]
        where = {name: f"cpu/{index % lanes}" for index, name in enumerate(order)}
    name = "views" if lanes == 1 else f"views, {lanes} lanes"
    outputs = ("p", "z", "n_", "x")
    return plan(graph(name, values, tasks, outputs), machine(lanes), where)


def orders() -> Plan:
    """Tasks that must come after others though no value says so, on the same lane and on others."""
    values = [value("x", kind="input"), value("b"), value("c")]
    tasks = [
        op("a", "aten.sin.default", R("x")),
        op("r0", "aten.exp.default", R("a_")),
        op("w0", "aten.add_.Tensor", R("a_", "x"), ("b",), after=("r0",)),
        op("r1", "aten.cos.default", R("a_"), after=("w0",)),
        op("far", "aten.cos.default", R("b"), after=("w0",)),
        op(
            "w1",
            "aten.mul_.Tensor",
            R("b", "x"),
            ("c",),
            after=("r1", "w0", "far"),
        ),
        op("r2", "aten.tanh.default", R("a_"), after=("w1",)),
        op("sum", "aten.add.Tensor", R("r0_", "r1_")),
        op("end", "aten.add.Tensor", R("sum_", "r2_")),
        op("all", "aten.add.Tensor", R("end_", "far_")),
    ]
    where = {
        "far": "emulated:0",
        "all": "emulated:1",
        "end": "cpu/1",
        "sum": "cpu/0",
        "a": "cpu/0",
        "r0": "cpu/1",
    }
    where |= {"w0": "cpu/0", "r1": "cpu/1", "w1": "cpu/0", "r2": "cpu/1"}
    return plan(graph("orders", values, tasks, ("all_", "c")), machine(2), where)


def updates() -> Plan:
    """State that changes in the call: moved in from home, written back to it."""
    values = [value("x", kind="input"), value("mean", kind="state")]
    tasks = [
        op("d", "aten.sub.Tensor", R("x", "mean")),
        op("n", "aten.add.Tensor", R("mean", "d_")),
        op("y", "aten.mul.Tensor", R("d_", "n_")),
    ]
    made = graph("updates", values, tasks, ("y_",), [("n_", "mean")])
    return plan(made, machine(), ["emulated:0", "emulated:1", "emulated:0"])


def step(carried: tuple[str, ...] = ("w",), changing: tuple[str, ...] = ()) -> Graph:
    """y0 = sin(x w), y1 = tanh(x w), w' = w - (y0 + y1)."""
    tasks = [
        op("a", "aten.mm.default", R("x", "w")),
        op("y0", "aten.sin.default", R("a_")),
        op("b", "aten.mm.default", R("x", "w")),
        op("y1", "aten.tanh.default", R("b_")),
        op("g", "aten.add.Tensor", R("y0_", "y1_")),
        op("n", "aten.sub.Tensor", R("w", "g_")),
    ]
    values = [value("x", kind="input"), value("w", kind="state")]
    updates = [("n_", "w")] if carried else ()
    name = f"step, {'carried' if carried else 'changing'}"
    made = graph(name, values, tasks, ("g_",), updates)
    return replace(made, carried=carried, changing=changing).check()


def on(where: str) -> dict[str, str]:
    """The two branches of a step on two accelerators, the update as told."""
    first, second = "emulated:0", "emulated:1"
    return {"a": first, "y0": first, "b": second, "y1": second, "g": where, "n": where}


def every() -> list[Plan]:
    """One of each, capped ones too."""
    tight = {"emulated:0": 64 * 7, "emulated:1": 64 * 12}
    return [
        mlp(), diamond(), towers(), towers({"emulated:0": 64 * 4, "emulated:1": 64 * 4}), fork(), fork(2),
        fork(2, tight), views(), views(3), orders(), updates(),
        *(plan(step(), machine(), on(where)) for where in ("cpu", "emulated:1")),
        plan(step((), ("w",)), machine(), on("cpu")),
    ]  # fmt: skip


def given(graph: Graph, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random inputs and state."""
    generator = torch.Generator().manual_seed(seed)
    return {n: torch.randn(graph.value[n].shape, generator=generator) for n in (*graph.inputs, *graph.state)}


def sequential(graph: Graph, given: dict[str, torch.Tensor], turns: int = 1) -> tuple[list, list]:
    """The graph run in its own order on one device: what every program of it must give."""
    held = {name: tensor.clone() for name, tensor in given.items()}
    here = torch.device("cpu")
    with torch.no_grad():
        for turn in range(turns):
            if turn:
                held.update([(target, held[made]) for made, target in graph.updates])
            for task in graph.tasks:
                args = [bind.argument(item, held.__getitem__, here) for item in task.args]
                kwargs = {name: bind.argument(item, held.__getitem__, here) for name, item in task.kwargs}
                found = bind.target(task.target)(*args, **kwargs)
                held.update(zip(task.outputs, found if task.unpack else [found]))
    return [held[name] for name in graph.outputs], [held[made] for made, _ in graph.updates]


def same(ours: tuple[list, list], theirs: tuple[list, list]) -> bool:
    """Bit for bit."""
    return all(
        a.shape == b.shape and a.dtype == b.dtype and torch.equal(a, b)
        for mine, other in zip(ours, theirs)
        for a, b in zip(mine, other, strict=True)
    )
