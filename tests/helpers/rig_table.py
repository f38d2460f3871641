"""All of `rig_cases` on the strict accelerator, for each delay and seed, as a table; fails if one is wrong.

PYTHONPATH=tests python tests/helpers/rig_table.py --delays 300 2000 --seeds 1 2 --models mlp lstm
"""

from __future__ import annotations

import argparse
import os
import sys
import time

import strict
import torch

COLUMNS = ("delays up to", "seed", "way", "right", "wrong", "largest error", "seconds")


def main() -> int:
    shown = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shown)
    parser.add_argument("--delays", nargs="+", type=int, default=[300, 2000], help="microseconds")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2], help="of the delays")
    parser.add_argument("--models", nargs="+", help="some of those of rig.py; all without")
    asked = parser.parse_args()
    device = strict.load()
    import rig
    import rig_cases

    def wrong(case: rig_cases.Case, delay: int, seed: int) -> tuple[float, str]:
        """The error of a case, and what is wrong with it, if anything."""
        device.set_delay(delay, float(os.environ["STRICT_DELAY_SHARE"]))
        device.set_seed(seed)
        try:
            error = case.run()
            rig.synchronize()
        except Exception as raised:
            return 0.0, f"{type(raised).__name__}: {raised}"
        return error, "" if error <= rig.LIMIT else f"error {error:.2g}"

    torch.set_num_threads(1)
    complaints = []
    print("| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS), sep="\n")
    for delay in asked.delays:
        for seed in asked.seeds:
            for way in rig_cases.WAYS:
                began, worst, right, bad = time.perf_counter(), 0.0, 0, 0
                for case in rig_cases.cases(asked.models or rig.MODELS):
                    if case.way != way:
                        continue
                    error, complaint = wrong(case, delay, seed)
                    if complaint:
                        bad += 1
                        complaints.append(f"{case}, {delay} µs, seed {seed}: {' '.join(complaint.split())}")
                    else:
                        right, worst = right + 1, max(worst, error)
                seconds = f"{time.perf_counter() - began:.0f}"
                row = (f"{delay} µs", str(seed), way, str(right), str(bad), f"{worst:.1e}", seconds)
                print("| " + " | ".join(row) + " |", flush=True)
    waits = device.host_waits()
    print(f"\nThe host launched {device.counts()[0]} kernels and copies and waited {waits} times for them.")
    print("Operators that were not launched, since their results depend on numbers:", device.told() or "none")
    for complaint in complaints:
        print(complaint[:500])
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
