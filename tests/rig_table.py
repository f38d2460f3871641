"""Every case of `rig` on the strict accelerator, for each delay and seed, as a table; fails if one is wrong.

python tests/rig_table.py --delays 300 2000 --seeds 1 2 --models mlp lstm
"""

from __future__ import annotations

import argparse
import os
import sys
import time

import strict
import torch


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--delays", nargs="+", type=int, default=[300, 2000], help="longest delay in microseconds"
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--models", nargs="+", default=None)
    asked = parser.parse_args()
    device = strict.load()
    import rig

    torch.set_num_threads(1)
    share = float(os.environ.get("STRICT_DELAY_SHARE") or 0.3)
    wrong = []
    print(
        "| delays up to | seed | way | right | wrong | largest error | seconds |\n|---|---|---|---|---|---|---|"
    )
    for delay in asked.delays:
        for seed in asked.seeds:
            for way in rig.WAYS:
                began, worst, right, bad = time.perf_counter(), 0.0, 0, []
                for case in rig.cases(asked.models or rig.MODELS):
                    if case.way != way:
                        continue
                    device.set_delay(delay, share)
                    device.set_seed(seed)
                    try:
                        found = case.run()
                        rig.synchronize()
                    except Exception as error:
                        bad.append(f"{delay} µs, seed {seed}, {case}: {type(error).__name__}: {error}")
                        continue
                    if found > rig.LIMIT:
                        bad.append(f"{delay} µs, seed {seed}, {case}: error {found:.2g}")
                    else:
                        right, worst = right + 1, max(worst, found)
                wrong += bad
                seconds = time.perf_counter() - began
                print(
                    f"| {delay} µs | {seed} | {way} | {right} | {len(bad)} | {worst:.1e} | {seconds:.0f} |",
                    flush=True,
                )
    print(
        f"\n{device.counts()[0]} kernels and copies were launched; the host waited for {device.host_waits()}."
    )
    print("Not launched, since what they return depends on the numbers:", device.told() or "none")
    print(*(" ".join(line.split())[:400] for line in wrong), sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
