"""Plans to draw, built by hand: a small list scheduler over named jobs, so that pictures need no planner."""

from __future__ import annotations

import random
from dataclasses import dataclass

from autopar.ir.costed import Cluster, CostedGraph, TaskCost
from autopar.ir.device import Device, Link
from autopar.ir.graph import Graph, Ref, Task, Value
from autopar.ir.machine import Machine
from autopar.ir.plan import Candidate, Plan
from autopar.ir.timeline import Memory, Placed, Span, Timeline, Transfer


@dataclass(frozen=True)
class Job:
    """A run of one task on `lane` for `seconds`, reading values, making `name` of `bytes`."""

    name: str
    lane: str
    seconds: float
    reads: tuple[str, ...] = ()
    bytes: int = 1000
    module: str = ""
    code: str = ""
    target: str = "aten.linear.default"


def machine(
    accelerators=2, *, kind="emulated", cpu_lanes=1, cap=None, rate=2e9, latency=2e-5, peers=True, **more
):
    """A CPU and some accelerators, one wire each way for all of them."""
    cpu = Device("cpu", "cpu", lanes=cpu_lanes)
    others = [Device(f"{kind}:{i}", kind, memory_bytes=cap, chip="t4") for i in range(accelerators)]
    links = []
    for other in others:
        links.append(Link("cpu", other.name, latency, rate, "bus down"))
        links.append(Link(other.name, "cpu", latency, rate, "bus up"))
        if peers:
            links += [
                Link(other.name, to.name, latency, rate, "bus peer") for to in others if to is not other
            ]
    return Machine((cpu, *others), tuple(links), **more)


def build(name, jobs, on, *, inputs=(("x", 64_000),), state=(), outputs=None, policy="heft", **more):
    """Schedule `jobs` in order (append, copies first come first served) and dress the result as a Plan."""
    home = {value: "cpu" for value, _ in (*inputs, *state)}
    values = [Value(v, (b // 4,), "float32", b, v, "input", v) for v, b in inputs]
    values += [Value(v, (b // 4,), "float32", b, v, "state", f"{v}.weight") for v, b in state]
    tasks, clusters, costs, placed, transfers = [], [], [], [], []
    free: dict[str, float] = {}
    there = {(v, "cpu"): 0.0 for v in home}
    for v, _ in state:
        there.update({(v, d.name): 0.0 for d in on.devices})
    made_on, size_of = dict(home), dict((*inputs, *state))

    def bring(value, device):
        if (value, device) in there:
            return there[value, device]
        src = made_on[value]
        link, lane, ready = on.link[src, device], on.copy_lane(src, device), there[value, src]
        start = max(ready, free.get(lane, 0.0), free.get(f"wire {link.wire}", 0.0))
        end = start + link.seconds(size_of[value])
        free[lane] = free[f"wire {link.wire}"] = there[value, device] = end
        transfers.append(Transfer(value, src, device, lane, start, end, ready, size_of[value]))
        return end

    for job in jobs:
        device = job.lane.rsplit("/", 1)[0]
        arrives = max((bring(value, device) for value in job.reads), default=0.0)
        start = max(arrives, free.get(job.lane, 0.0))
        end = start + job.seconds
        free[job.lane] = there[job.name, device] = end
        made_on[job.name], size_of[job.name] = device, job.bytes
        values.append(Value(job.name, (job.bytes // 4,), "float32", job.bytes, job.name))
        tasks.append(
            Task(job.name, job.target, tuple(map(Ref, job.reads)), outputs=(job.name,), module=job.module,
                 source=f"model.py:{10 + len(tasks) % 80}",
                 code=job.code or f"{job.name} = self.{job.module}(h)")
        )  # fmt: skip
        seconds = tuple(job.seconds * (8 if d.name == "cpu" and device != "cpu" else 1) for d in on.devices)
        clusters.append(Cluster(job.name, (job.name,), seconds, 5e-6, job.reads, (job.name,)))
        costs.append(TaskCost(job.name, seconds))
        placed.append(Placed(job.name, device, job.lane, start, end))
    outputs = outputs or (jobs[-1].name,)
    for value in outputs:
        bring(value, "cpu")
    made = sum(job.seconds for job in jobs)
    makespan = max((step.end for step in (*placed, *transfers)), default=0.0)
    graph = Graph(
        name, tuple(values), tuple(tasks), tuple(v for v, _ in inputs), tuple(v for v, _ in state), outputs
    )
    costed = CostedGraph(
        graph.check(),
        on,
        tuple(costs),
        tuple(clusters),
        tuple(home.items()),
        tuple((v, "cpu") for v in outputs),
    )
    accelerators = max(1, len(on.devices) - 1)
    singles = tuple((d.name, made * (8 if d.name == "cpu" else 1)) for d in on.devices)
    bound = min(makespan, made / accelerators * 0.9)
    plan = Plan(
        costed, policy, tuple(sorted(placed, key=lambda p: p.start)),
        tuple(sorted(transfers, key=lambda t: t.start)), (), (), makespan, bound, singles,
        (Candidate(policy, "2 parts", makespan, "chosen"),
         Candidate("round_robin", "2 parts", makespan * 1.4),
         Candidate("single cuda:9", "", None, "does not fit: needs 20 GB of 16 GB")),
    )  # fmt: skip
    fields = {**plan.__dict__, "memory": memories(plan, size_of), **more}
    return Plan(**{key: fields[key] for key in Plan.__dataclass_fields__})


def memories(plan, size_of):
    """A memory curve for each device: everything made or copied there stays."""
    found = []
    for device in plan.costed.machine.devices:
        changes = [(p.end, size_of[p.cluster]) for p in plan.placed if p.device == device.name]
        changes += [(t.end, t.bytes) for t in plan.transfers if t.dst == device.name]
        used, steps = 400_000, [(0.0, 400_000)]
        for when, count in sorted(changes):
            used += count
            steps.append((when, used))
        if len(steps) > 3:
            steps.append((plan.makespan, used // 2))
        found.append(Memory(device.name, tuple(steps), device.memory_bytes))
    return tuple(found)


def mlp(**more):
    """One training-like step of a two-layer MLP, its batch in two parts on two accelerators."""
    on = machine(cap=1_500_000, rate=1.0e9, latency=3.6e-5, clock="declared", slow_down=2.0, **more)
    jobs = [Job("split.0", "cpu/0", 1.5e-4, ("x",), 64_000), Job("split.1", "cpu/0", 1e-5, ("x",), 64_000)]
    for part in (0, 1):
        d = f"{on.devices[part + 1].name}/0"
        jobs += [
            Job(f"fc1.{part}", d, 5e-4, (f"split.{part}",), 51_000, "net.fc1"),
            Job(f"fc2.{part}", d, 3.5e-4, (f"fc1.{part}",), 32_000, "net.fc2"),
            Job(f"loss.{part}", d, 2.5e-4, (f"fc2.{part}",), 32_000, "loss"),
            Job(
                f"fc2_grad.{part}",
                d,
                6e-4,
                (f"loss.{part}", f"fc1.{part}"),
                164_000,
                "net.fc2",
                target="fc2_backward",
            ),
            Job(
                f"fc1_grad.{part}",
                d,
                1.15e-3,
                (f"fc2_grad.{part}",),
                329_000,
                "net.fc1",
                target="fc1_backward",
            ),
        ]
    for layer in ("fc2", "fc1"):
        jobs += [
            Job(
                f"{layer}_sum",
                "cpu/0",
                1.5e-4,
                (f"{layer}_grad.0", f"{layer}_grad.1"),
                164_000,
                f"net.{layer}",
            ),
            Job(f"{layer}_update", "cpu/0", 1.5e-4, (f"{layer}_sum",), 164_000, f"net.{layer}"),
        ]
    jobs += [
        Job(
            f"{layer}_new.{part}",
            f"{on.devices[part + 1].name}/0",
            5e-5,
            (f"{layer}_update",),
            16,
            f"net.{layer}",
        )
        for layer in ("fc2", "fc1")
        for part in (0, 1)
    ]
    return build("MLP", jobs, on)


def towers():
    """Two towers, one on each accelerator, joined on the first."""
    on = machine(kind="cuda", rate=6e9)
    jobs = []
    for index, tower in enumerate(("image", "text")):
        last = "x"
        for layer in range(4):
            name = f"{tower}_{layer}"
            jobs.append(
                Job(
                    name,
                    f"cuda:{index}/0",
                    (3 + layer + index) * 1e-3,
                    (last,),
                    4_000_000,
                    f"{tower}.layers.{layer}",
                )
            )
            last = name
    jobs.append(Job("concat", "cuda:0/0", 4e-4, ("image_3", "text_3"), 800_000, "join"))
    jobs.append(Job("head", "cuda:0/0", 2e-3, ("concat",), 40_000, "head"))
    return build("TwoTower", jobs, on, inputs=(("x", 3_000_000),))


def transformer(layers=12, unit=1e-4):
    """A chain of equal blocks over two accelerators, cut in the middle; about 17 runs a block."""
    on = machine(kind="cuda", rate=1e10)
    jobs = [Job("embed", "cuda:0/0", unit * 3, ("x",), 800_000, "embed")]
    ops = ("ln_1", "attn.q", "attn.k", "attn.v", "attn.scores", "attn.softmax", "attn.mix", "attn.out",
           "add_1",            "ln_2", "mlp.up", "mlp.gelu", "mlp.down", "add_2")  # fmt: skip
    last = "embed"
    for layer in range(layers):
        lane = f"cuda:{0 if layer < layers // 2 else 1}/0"
        for op in ops:
            name = f"{op.replace('.', '_')}_{layer}"
            long = {"mlp.up": 4, "mlp.down": 4, "attn.out": 2}.get(op, 0.5)
            module = f"model.layers.{layer}.{op}" if not op.startswith("add") else f"model.layers.{layer}"
            jobs.append(Job(name, lane, unit * long * (1.3 if layer == 3 else 1), (last,), 786_000, module))
            last = name
    jobs.append(Job("head", "cuda:1/0", unit * 6, (last,), 3_000_000, "lm_head"))
    return build("GPT", jobs, on)


def rough(clusters, seed=0, accelerators=2, cpu_lanes=1, scale=1e-3, long_names=False):
    """A random graph on random lanes."""
    draw = random.Random(seed)
    on = machine(accelerators, rate=1e6 / scale, latency=scale * 0.02, cpu_lanes=cpu_lanes)
    lanes = [lane for device in on.devices for lane in device.compute_lanes]
    jobs, names = [], ["x"]
    for index in range(clusters):
        name = f"op_{index}"
        if long_names:
            name = f"a_really_very_long_operator_name_that_goes_on_{index}_and_on_and_on"
        lane = draw.choice(lanes) if draw.random() < 0.3 or not jobs else jobs[-1].lane
        reads = tuple(dict.fromkeys(draw.choice(names[-12:]) for _ in range(draw.choice((1, 1, 2)))))
        long = scale * draw.choice((0.0, 0.1, 0.5, 1, 1, 2, 4))
        module = f"{'net_with_a_long_name.' * long_names}blocks.{index // 17}.{draw.choice('abc')}"
        jobs.append(Job(name, lane, long, reads, draw.choice((40, 4_000, 400_000)), module))
        names.append(name)
    return build(f"rough{seed}", jobs, on)


def lone():
    """Everything on one accelerator."""
    on = machine(1, kind="cuda", cpu_lanes=2)
    jobs, last = [], "x"
    for index in range(6):
        jobs.append(Job(f"layer_{index}", "cuda:0/0", 8e-4, (last,), 90_000, f"net.{index}"))
        last = f"layer_{index}"
    return build("small", jobs, on, policy="single cuda:0")


def measured(plan, seed=1):
    """A measurement of a plan: each step a little longer, its tasks nested in the runs."""
    draw = random.Random(seed)
    spans, shift = [], 1.05
    for span in plan.timeline().spans:
        start, end = span.start * shift, span.end * shift - span.seconds * draw.random() * 0.05
        ready = None if span.ready is None else span.ready * shift
        spans.append(
            Span(
                **{
                    **{f: getattr(span, f) for f in span.__slots__},
                    "start": start,
                    "end": end,
                    "ready": ready,
                }
            )
        )
        if span.kind == "compute" and span.seconds:
            middle = (start + end) / 2
            spans.append(
                Span(span.lane, span.device, "compute", f"{span.name}.a", start, middle, cluster=span.name)
            )
            spans.append(
                Span(span.lane, span.device, "compute", f"{span.name}.b", middle, end, cluster=span.name)
            )
    spans.sort(key=lambda span: (span.start, span.lane))
    base = plan.timeline()
    memory = tuple(Memory(m.device, tuple((t * shift, b) for t, b in m.steps), m.cap) for m in base.memory)
    return Timeline(
        base.title, base.lanes, tuple(spans), base.makespan * shift, memory, base.label, 0.01, base
    )


ALL = {
    "mlp": mlp,
    "towers": towers,
    "transformer": transformer,
    "rough200": lambda: rough(200),
    "lone": lone,
    "four": lambda: rough(40, 3, accelerators=4, cpu_lanes=2),
    "micro": lambda: rough(12, 5, scale=1e-5),
    "slow": lambda: rough(12, 5, scale=10.0),
    "long": lambda: rough(14, 7, long_names=True),
}
