"""Operations that need nothing of each other, after the exercises of d2l 13.2 and 13.3.

    python examples/independent_ops.py [--size 1024] [--tangle 2000]

1. eight independent operations, found in the graph and run on every device at once;
2. small operations on the two lanes of one CPU;
3. CPU, accelerator and the copies between them at work at the same time, by the recorded timeline;
4. autopar's names in torch.profiler (and, where there is CUDA, as NVTX ranges in Nsight Systems);
5. a random tangle of small operations, in place and through views too, bit-equal to eager.

With a GPU it uses that. Without one, worker threads emulate T4s on a slowed-down clock.
"""

import argparse
import random
import time

import networkx
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from wallclock import wall

import autopar


def machine(accelerators: int) -> autopar.Machine | list[str]:
    """The CPU and so many GPUs, or stand-ins for T4s where there are fewer."""
    if torch.cuda.device_count() >= accelerators:
        return ["cpu", *(f"cuda:{index}" for index in range(accelerators))]
    return autopar.Machine.emulate("cpu-16", *["t4"] * accelerators)


class Eight(nn.Module):
    """Eight products of one input, each with a weight of its own."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.ops = nn.ModuleList(nn.Linear(size, size, bias=False) for _ in range(8))

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [op(x) for op in self.ops]


def overlap(timeline: autopar.Timeline, lanes: list[str]) -> float:
    """Seconds in which all of these lanes were at work at once."""
    edges: list[tuple[float, int]] = []
    for lane in lanes:
        # Spans of a lane do not overlap, but for tasks inside their runs.
        for span in timeline.spans:
            if span.lane == lane and not span.cluster:
                edges += [(span.start, 1), (span.end, -1)]
    total, busy, since = 0.0, 0, 0.0
    for at, change in sorted(edges):
        if busy == len(lanes):
            total += at - since
        busy, since = busy + change, at
    return total


def least(function, *inputs: torch.Tensor) -> float:
    """Least seconds of three calls by the caller's clock until everything is there."""
    return min(wall(function, *inputs) for _ in range(3))


def eight(size: int) -> dict[str, float | str]:
    """How many independent operations there are, how many ran at once, and seconds against one device."""
    model, x = Eight(size).eval(), torch.randn(size, size)
    both = autopar.compile(model, machine(2), split=None, outputs="as_placed", example_inputs=(x,))
    machine_used = both.machine if both.machine.clock == "real" else both.plan.costed.machine
    alone = autopar.compile(
        model, machine_used, split=None, outputs="as_placed", policy=f"single {both.plan.best_single[0]}"
    )
    alone(x)
    y = both(x)
    with both.record() as timeline:
        both(x)
    graph = both.plan.costed.graph.networkx()
    spans = [span for span in timeline.last.spans if span.kind == "compute" and span.cluster]
    found = {
        "independent": networkx.number_weakly_connected_components(graph),
        "at once": max(sum(s.start <= t.start < s.end for s in spans) for t in spans),
        "devices": len({span.device for span in spans}),
        "one device s": least(alone, x),
        "all devices s": least(both, x),
        "equal": float(all(torch.allclose(a.cpu(), b) for a, b in zip(y, model(x)))),
        "label": both.plan.costed.machine.label,
    }
    alone.close(), both.close()
    return found


def small(count: int = 64, size: int = 128) -> dict[str, float]:
    """Seconds of `count` small products on the CPU as one lane with all threads, and as two with half of them each."""

    def products(x):
        return [torch.tanh(x[index] @ x[index]) for index in range(count)]

    x = torch.randn(count, size, size)
    one = autopar.compile(products, "cpu", split=None)
    two = autopar.compile(products, "cpu*2", policy="heft", split=None)
    one(x), two(x)
    with two.record() as timeline:
        two(x)
    found = {
        "one lane s": least(one, x),
        "two lanes s": least(two, x),
        "both lanes busy s": overlap(timeline.last, ["cpu/0", "cpu/1"]),
        "of s": timeline.last.makespan,
    }
    one.close(), two.close()
    return found


def busy(pieces: int = 12, size: int = 512) -> dict[str, float | str]:
    """Seconds in which the CPU, an accelerator and the queue of copies from it to the CPU were all at work."""

    def pipe(a, b):
        return [torch.tanh(a @ a) for _ in range(pieces)], [b @ b for _ in range(pieces)]

    devices = machine(1)
    accelerator = "cuda:0" if isinstance(devices, list) else "emulated:0"

    def by_input(costed) -> dict[str, str]:
        mine = set(costed.graph.readers[costed.graph.inputs[0]])
        place: dict[str, str] = {}
        for task in costed.graph.tasks:
            before = {costed.graph.producer.get(name) for name in task.inputs}
            here = task.name in mine or any(place.get(name or "") == "cpu" for name in before)
            place[task.name] = "cpu" if here else accelerator
        return place

    a, b = torch.randn(size // 2, size // 2), torch.randn(size, size)
    fast = autopar.compile(pipe, devices, policy=by_input, split=None)
    fast(a, b)
    with fast.record() as timeline:
        fast(a, b)
    lanes = ["cpu/0", f"{accelerator}/0", f"{accelerator}/out"]
    found = {lane: timeline.last.busy(lane) for lane in lanes}
    fast.close()
    return found | {
        "all three s": overlap(timeline.last, lanes),
        "of s": timeline.last.makespan,
        "label": timeline.last.label,
    }


def names(size: int = 64) -> tuple[list[str], list[str]]:
    """Autopar's names of a recorded call, and those of them that torch.profiler shows."""
    fast = autopar.compile(Eight(size).eval(), ["cpu", "emulated:0"], policy="round_robin", split=None)
    x = torch.randn(size, size)
    fast(x)
    # Without this torch.profiler sees the caller's thread alone, and each lane has its own.
    everywhere = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    with profile(activities=[ProfilerActivity.CPU], experimental_config=everywhere) as seen, fast.record():
        fast(x)
    ours = [f"{task.name} · {task.module}" for task in fast.plan.costed.graph.tasks]
    shown = {event.key for event in seen.key_averages()}
    fast.close()
    return ours, [name for name in ours if name in shown]


class Tangle(nn.Module):
    """`count` small operations, each of one to three of the last thirty results, some in place or through a view."""

    def __init__(self, count: int, seed: int) -> None:
        super().__init__()
        draw, made = random.Random(seed), 3
        self.steps: list[tuple[int, int, int, int]] = []
        for _ in range(count):
            a, b, c = (draw.randrange(max(0, made - 30), made) for _ in range(3))
            kind = draw.randrange(7)
            self.steps.append((kind, a, b, c))
            made += kind < 5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values = [x, x + 1, x * 0.5]
        for kind, i, j, k in self.steps:
            a, b, c = values[i], values[j], values[k]
            if kind == 0:
                values.append(a + b)
            elif kind == 1:
                values.append(torch.tanh(a * b))
            elif kind == 2:
                values.append(torch.where(a > b, b, c))
            elif kind == 3:
                values.append(torch.sin(a))
            elif kind == 4:
                values.append(torch.maximum(a, b) - c)
            elif kind == 5 and i:
                a.mul_(0.5)
            elif kind == 6 and i:
                a[2:5].copy_(torch.cos(b[1:4]))
        return torch.stack(values[-30:])


def tangle(count: int = 2000, seed: int = 0) -> dict[str, float]:
    """A random tangle on two CPU lanes and two accelerators, its runs wherever chance puts them.

    `equal` is 1 where five calls were bit-equal to eager."""
    model, x = Tangle(count, seed), torch.randn(8, 8)

    def anywhere(costed) -> dict[str, str]:
        draw = random.Random(seed)
        return {cluster.name: draw.choice([*costed.machine.device]) for cluster in costed.clusters}

    start = time.perf_counter()
    fast = autopar.compile(
        model, ["cpu*2", "emulated:0", "emulated:1"], policy=anywhere, split=None, example_inputs=(x,)
    )
    ready = time.perf_counter() - start
    eager = model(x)
    equal = all(torch.equal(fast(x), eager) for _ in range(5))
    found = {
        "tasks": len(fast.plan.costed.graph.tasks),
        "transfers": len(fast.plan.transfers),
        "planned s": ready,
        "equal": float(equal),
    }
    fast.close()
    return found


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--size", default=1024, type=int, help="of the eight products (default 1024)")
    options.add_argument("--tangle", default=2000, type=int, help="operations of the tangle (default 2000)")
    chosen = options.parse_args()
    torch.manual_seed(0)
    with torch.no_grad():
        one = eight(chosen.size)
        print(f"1. {one['label'] or 'real devices'}: {one['independent']} independent operations found, "
              f"{one['at once']} at once on {one['devices']} devices: {one['all devices s']:.4f} s, the best single "
              f"device {one['one device s']:.4f} s; equal to eager: {bool(one['equal'])}")  # fmt: skip
        two = small()
        print(f"2. 64 small products: one CPU lane {two['one lane s'] * 1e3:.2f} ms, two lanes "
              f"{two['two lanes s'] * 1e3:.2f} ms; in the recorded call both were busy "
              f"{two['both lanes busy s'] * 1e3:.2f} ms of {two['of s'] * 1e3:.2f} ms")  # fmt: skip
        three = busy()
        lanes = ", ".join(f"{name} {value:.3f} s" for name, value in three.items() if "/" in name)
        print(f"3. {three['label'] or 'real devices'}: busy {lanes}; all three at once {three['all three s']:.3f} s "
              f"of {three['of s']:.3f} s")  # fmt: skip
        ours, shown = names()
        print(
            f"4. torch.profiler shows {len(shown)} of {len(ours)} tasks under autopar's names: {', '.join(shown[:3])} …"
        )
        five = tangle(chosen.tangle)
        print(f"5. a tangle of {five['tasks']} tasks with {five['transfers']} transfers, captured and planned in "
              f"{five['planned s']:.1f} s: bit-equal to eager in five calls: {bool(five['equal'])}")  # fmt: skip


if __name__ == "__main__":
    main()
