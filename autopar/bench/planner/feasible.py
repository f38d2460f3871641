"""Random graphs with caps, pins, groups and moldable tasks: every plan can be carried out, and is ever the same."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys

from ...errors import MemoryCapError, PlanError
from ...formats import described
from ...placement import OBJECTIVES
from ...scheduling import schedule
from ...tables import table
from ...verify import infeasibilities
from .judging import Asked, Data, Goal, verdict
from .varied import varied

REDUCED = 200
REPEATED = 4
"""Every so manieth graph is planned again, in a process where strings are hashed otherwise."""
WORKER = "import sys; from autopar.bench.planner.feasible import worker; worker(*sys.argv[1:])"


def run(asked: Asked) -> Data:
    """So many seeds; 20,000 is full size."""
    seeds = asked.seeds or REDUCED
    kinds = dict.fromkeys(("planned", "nothing fits", "infeasible", "above a cap", "fails", "differs"), 0)
    bad: list[str] = []
    digests: dict[str, str] = {}
    for seed in range(seeds):
        for objective in OBJECTIVES:
            kind, digest, said = attempt(seed, objective)
            kinds[kind] += 1
            if said:
                bad.append(f"seed {seed}, {objective}: {said}")
            if seed % REPEATED == 0:
                digests[f"{seed} {objective}"] = digest
    for name, digest in _again(seeds).items():
        if digest != digests[name]:
            kinds["differs"] += 1
            bad.append(f"{name}: another plan when strings are hashed otherwise")
    print(table([("outcome", "plans"), *((kind, str(count)) for kind, count in kinds.items())], right=(1,)))
    print(
        f"{len(digests)} of them planned a second time in another process",
        *(f"\n  {text}" for text in bad[:20]),
    )
    goals = [
        Goal(what, kinds[kind], 0, form=".0f")
        for what, kind in (
            ("plans that cannot be carried out", "infeasible"),
            ("plans above a cap", "above a cap"),
            ("graphs that fail with anything but a sentence", "fails"),
            ("plans that differ the second time", "differs"),
        )
    ]
    return {"kinds": kinds, "bad": bad, "goals": verdict(goals)}


def attempt(seed: int, objective: str) -> tuple[str, str, str]:
    """What becomes of one graph, a digest of its plan, and what is wrong with it."""
    graph = varied(seed)
    try:
        plan = described(schedule(graph, objective=objective))
    except MemoryCapError as error:
        return "nothing fits", str(error), ""
    except PlanError as error:
        return "fails", "", str(error)
    except Exception as error:
        return "fails", "", f"{type(error).__name__}: {error}"
    digest = hashlib.sha256(json.dumps(plan).encode()).hexdigest()
    said = infeasibilities(graph, plan)
    capped = any(" bytes at " in sentence for sentence in said)
    return ("above a cap" if capped else "infeasible") if said else "planned", digest, "; ".join(said[:2])


def worker(seeds: str) -> None:
    """Print the digests of every `REPEATED`th graph as JSON."""
    found = {
        f"{seed} {objective}": attempt(seed, objective)[1]
        for seed in range(0, int(seeds), REPEATED)
        for objective in OBJECTIVES
    }
    json.dump(found, sys.stdout)


def _again(seeds: int) -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", WORKER, str(seeds)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "4711"},
    )
    return json.loads(done.stdout)
