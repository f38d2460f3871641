"""Random graphs with caps, pins and groups: every plan can be carried out, and is ever the same."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator

from autopar.errors import BoundWarning, MemoryCapError, PlanError
from autopar.planner import schedule
from autopar.system.text import table

from .judging import Data, Goal, described, verdict
from .replay import replay
from .varied import lacks_links, varied
from .verify import infeasibilities

REDUCED = 200
PROCESSES = 2
"""Each takes its share of the graphs, and hashes strings otherwise."""
REPEATED = 10
"""Every so manieth graph is planned in all processes."""
KEPT = 1.02
"""Times what it promised that a plan may take where wires serve first come, first served."""
WORKER = "import sys; from {package}.feasible import worker; worker(*map(int, sys.argv[1:]))"
BAD = {
    "infeasible": "plans that cannot be carried out",
    "above a cap": "plans above a cap",
    "below the bound": "plans below a lower bound",
    "late": f"plans that take more than {KEPT} times what they promised when replayed",
    "fails": "graphs that fail with anything but a sentence",
    "differs": "plans that differ the second time",
}


def run(seeds: int = 0) -> Data:
    """Print and return the outcomes of `seeds` random graphs; 20,000 is full size."""
    seeds = seeds or REDUCED
    kinds = dict.fromkeys(("planned", "nothing fits", "no way", *BAD), 0)
    bad: list[str] = []
    digests: dict[str, str] = {}
    again = 0
    for found in _shares(seeds):
        for name, (kind, digest, said) in found.items():
            if name in digests:
                again += 1
                if digest != digests[name]:
                    kinds["differs"] += 1
                    bad.append(f"{name}: another plan when strings are hashed otherwise")
                continue
            digests[name] = digest
            kinds[kind] += 1
            if said:
                bad.append(f"{name}: {said}")
    print(table([("outcome", "plans"), *((kind, str(count)) for kind, count in kinds.items())], right=(1,)))
    print(f"{again} of them planned a second time in another process", *(f"\n  {text}" for text in bad[:20]))
    goals = [Goal(what, kinds[kind], 0, form=".0f") for kind, what in BAD.items()]
    return {"kinds": kinds, "bad": bad, "goals": verdict(goals)}


def attempt(seed: int) -> tuple[str, str, str]:
    """Return the outcome of one graph, a digest of its plan, and the errors of the plan as text."""
    graph = varied(seed)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            plan = described(schedule(graph))
    except MemoryCapError as error:
        return "nothing fits", str(error), ""
    except PlanError as error:
        if lacks_links(seed) and str(error).endswith("add a link"):
            return "no way", str(error), ""
        return "fails", "", str(error)
    except BoundWarning as error:
        return "below the bound", "", str(error)
    except Exception as error:
        return "fails", "", f"{type(error).__name__}: {error}"
    digest = hashlib.sha256(json.dumps(plan).encode()).hexdigest()
    said = infeasibilities(graph, plan)
    if said:
        capped = any(" bytes at " in sentence for sentence in said)
        return "above a cap" if capped else "infeasible", digest, "; ".join(said[:2])
    makespan = plan["makespan_s"]
    taken = replay(graph, plan)["makespan_s"]
    if taken > makespan * KEPT:
        return "late", digest, f"{makespan} s promised, {taken} s taken"
    return "planned", digest, ""


def worker(share: int, seeds: int) -> None:
    """Print the outcomes of a share of the graphs as JSON."""
    found = {}
    for seed in range(seeds):
        if seed % PROCESSES == share or seed % REPEATED == 0:
            found[f"seed {seed}"] = attempt(seed)
    json.dump(found, sys.stdout)


def _shares(seeds: int) -> Iterator[dict[str, tuple[str, str, str]]]:
    working = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER.format(package=__package__), str(share), str(seeds)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": str(share + 1), "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        for share in range(PROCESSES)
    ]
    for process in working:
        told, _ = process.communicate()
        if process.returncode:
            raise RuntimeError(f"a process of this part ended with exit status {process.returncode}")
        yield json.loads(told)
