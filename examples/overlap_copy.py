"""d2l 13.3, second half: results are copied to the CPU while the rest is still being computed.

    python examples/overlap_copy.py [--pieces 100] [--size N] [--rounds 3]

Prints overlapped ÷ max(compute, copy) by the caller's wall clock: a perfect pipe of n pieces is 1 + 1/n. One lock
round all lanes must bring it to about 2 where compute and copy last alike; that is printed too.
"""

import argparse
import statistics
from dataclasses import replace

import torch
from wallclock import in_time, one_lock, wall

import autopar


def device() -> tuple[autopar.Machine | list[str], str, int]:
    """A GPU, or a stand-in for a T4 on PCIe 3, and a size at which product and copy last about alike."""
    if torch.cuda.is_available():
        return ["cpu", "cuda:0"], "cuda:0", 4000
    return autopar.Machine.emulate("cpu-16", "t4"), "emulated:0", 768


def measure(pieces: int = 100, size: int = 0, rounds: int = 3, slower: float = 1.0) -> dict[str, float]:
    """Median seconds of compute alone, copy alone, both overlapped, and under one lock, and the ratios; the declared
    clock runs `slower` times as slow as this machine is expected to need."""
    machine, accelerator, usual = device()
    x = torch.randn(size or usual, size or usual)

    def products(x):
        return [x @ x for _ in range(pieces)]

    def there(costed) -> dict[str, str]:
        return {task.name: accelerator for task in costed.graph.tasks}

    if isinstance(machine, autopar.Machine):
        # One clock for all that is compared.
        slow_down = autopar.plan(
            products, machine, example_inputs=(x,), policy=there
        ).costed.machine.slow_down
        machine = replace(machine, slow_down=slower * slow_down)
    compute = autopar.compile(products, machine, policy=there, split=None, outputs="as_placed")
    overlapped = autopar.compile(products, machine, policy=there, split=None)
    compute(x), overlapped(x)
    samples: dict[str, list[float]] = {"compute": [], "copy": [], "overlapped": [], "locked": []}
    for _ in range(rounds):
        samples["compute"].append(wall(compute, x))
        with overlapped.record() as timeline:
            overlapped(x)
        samples["copy"].append(timeline.last.on_time().busy(f"{accelerator}/out"))
        samples["overlapped"].append(wall(overlapped, x))
        with one_lock(overlapped):
            samples["locked"].append(wall(overlapped, x))
    found = {name: statistics.median(times) for name, times in samples.items()}
    longer, both = max(found["compute"], found["copy"]), found["compute"] + found["copy"]
    shorter = both - longer
    return found | {
        "ratio": found["overlapped"] / longer,
        "under one lock": found["locked"] / longer,
        "overlap fraction": (both - found["overlapped"]) / shorter if shorter else 1.0,
        "label": overlapped.plan.costed.machine.label,
    }


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--pieces", default=100, type=int)
    options.add_argument("--size", default=0, type=int)
    options.add_argument("--rounds", default=3, type=int)
    chosen = vars(options.parse_args())
    found = in_time(measure, **chosen)
    print(found["label"])
    print(f"compute {found['compute']:.4f} s, copy {found['copy']:.4f} s, overlapped {found['overlapped']:.4f} s, "
          f"under one lock {found['locked']:.4f} s")  # fmt: skip
    print(f"overlapped ÷ max(compute, copy): {found['ratio']:.3f}   under one lock: {found['under one lock']:.3f}   "
          f"overlap fraction: {found['overlap fraction']:.3f}")  # fmt: skip


if __name__ == "__main__":
    main()
