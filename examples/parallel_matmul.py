"""d2l 13.3, first half: fifty independent products on each of two devices, both at once against one alone.

    python examples/parallel_matmul.py [--pieces 50] [--size N] [--rounds 3]

Prints parallel ÷ one device alone by the caller's wall clock: 1 is perfect, 2 is no overlap at all. One lock round
all lanes must bring it to about 2, else the figure would measure nothing; that is printed too.
"""

import argparse
import statistics
from dataclasses import replace

import torch
from wallclock import in_time, one_lock, wall

import autopar


def two_devices() -> tuple[autopar.Machine | list[str], int]:
    """Two GPUs and 4000 × 4000 products, or two stand-ins for T4s and smaller ones."""
    if torch.cuda.device_count() >= 2:
        return ["cpu", "cuda:0", "cuda:1"], 4000
    return autopar.Machine.emulate("cpu-16", "t4", "t4"), 512


def by_input(costed) -> dict[str, str]:
    """The textbook's placement: products of the first input on one device, of the second on the other."""
    accelerators = [d.name for d in costed.machine.devices if d.kind != "cpu"]
    place = dict(zip(costed.graph.inputs, accelerators))
    return {task.name: place[task.inputs[0]] for task in costed.graph.tasks}


def measure(pieces: int = 50, size: int = 0, rounds: int = 3, slower: float = 1.0) -> dict[str, float]:
    """Median seconds of one device alone, of both, of both under one lock, and the two ratios; the declared clock runs
    `slower` times as slow as this machine is expected to need."""
    machine, usual = two_devices()
    a, b = torch.randn(size or usual, size or usual), torch.randn(size or usual, size or usual)

    def alone(a):
        return [a @ a for _ in range(pieces)]

    def both(a, b):
        return [a @ a for _ in range(pieces)], [b @ b for _ in range(pieces)]

    if isinstance(machine, autopar.Machine):
        # One clock for all that is compared: that of the plan which keeps this machine busiest.
        slow_down = autopar.plan(
            both, machine, example_inputs=(a, b), policy=by_input
        ).costed.machine.slow_down
        machine = replace(machine, slow_down=slower * slow_down)
    one = autopar.compile(alone, machine, policy=by_input, split=None, outputs="as_placed")
    two = autopar.compile(
        both, machine, policy=by_input, split=None, outputs="as_placed", example_inputs=(a, b)
    )
    one(a), two(a, b)
    samples: dict[str, list[float]] = {"one": [], "two": [], "locked": []}
    for _ in range(rounds):
        samples["one"].append(wall(one, a))
        samples["two"].append(wall(two, a, b))
        with one_lock(two):
            samples["locked"].append(wall(two, a, b))
    found = {name: statistics.median(times) for name, times in samples.items()}
    return found | {"parallel": found["two"] / found["one"], "under one lock": found["locked"] / found["one"],
                    "label": one.plan.costed.machine.label}  # fmt: skip


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--pieces", default=50, type=int)
    options.add_argument("--size", default=0, type=int)
    options.add_argument("--rounds", default=3, type=int)
    chosen = vars(options.parse_args())
    found = in_time(measure, **chosen)
    print(found["label"])
    print(
        f"one device alone {found['one']:.4f} s, both at once {found['two']:.4f} s, "
        f"under one lock {found['locked']:.4f} s"
    )
    print(
        f"parallel ÷ one device alone: {found['parallel']:.3f}   under one lock: {found['under one lock']:.3f}"
    )


if __name__ == "__main__":
    main()
