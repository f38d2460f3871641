"""The Standard Task Graph set: how often the planner is at the known optimum, b-level list scheduling beside it.

The set: Tobita and Kasahara, "A standard task graph set for fair evaluation of multiprocessor scheduling algorithms",
Journal of Scheduling 5(5), 2002.
"""

from __future__ import annotations

import csv
import heapq
from collections.abc import Iterable
from pathlib import Path

from autopar.errors import PlanError
from autopar.system.text import table

from .judging import Asked, Data, Goal, median, planned, verdict, worst

REDUCED = 60
CLOSE = 1e-9


def run(asked: Asked) -> Data:
    """Rows of `optima*.csv` anywhere in the folder of `--graphs`, evenly drawn; each row has the path of an .stg file
    beside it, a number of processors, and the optimum."""
    if asked.graphs is None:
        print("no graphs; give the folder that holds .stg files and their optima*.csv with --graphs FOLDER")
        return {}
    known = rows(asked.graphs)
    each: dict[str, Data] = {}
    for path, processors, optimum in evenly(known, asked.seeds or REDUCED):
        graph = read(path.read_text(), processors)
        ours = planned(graph)
        each[f"{path.name} on {processors}"] = {
            "gap": ours.makespan / optimum - 1,
            "bound": ours.bound / optimum - 1,
            "cost": ours.cost,
            "list": listed(graph, processors) / optimum - 1,
            "wrong": ours.wrong,
        }
    shown = [("", "at the optimum", "mean above", "worst above", "CPU s, median", "worst")]
    costs = [own["cost"] for own in each.values()]
    for name, key in (("autopar", "gap"), ("b-level list", "list")):
        gaps = [own[key] for own in each.values()]
        taken = (f"{median(costs):.2f}", f"{max(costs):.2f}") if key == "gap" else ("", "")
        shown.append((name, f"{hits(gaps):.1%}", f"{sum(gaps) / len(gaps):.3%}", f"{max(gaps):.2%}", *taken))
    print(table(shown, right=(1, 2, 3, 4, 5)))
    print(f"{len(each)} of {len(known)} rows")
    above = {name: own["gap"] for name, own in each.items() if own["gap"] > CLOSE}
    print("worst:", *(f"\n  {gap:.2%} {name}" for name, gap in worst(above, 10)))
    slow = worst({name: own["cost"] for name, own in each.items()}, 3)
    print("slowest:", *(f"\n  {cost:.2f} s {name}" for name, cost in slow))
    goals = [
        Goal("at the optimum", hits(own["gap"] for own in each.values()), 0.97, least=True),
        Goal("above the optimum, mean", sum(own["gap"] for own in each.values()) / len(each), 3e-4, form=".3%"),
        Goal("bounds above the optimum", sum(own["bound"] > CLOSE for own in each.values()), 0, form=".0f"),
        Goal("CPU seconds of planning, worst", max(costs), 1.0, form=".2f"),
        Goal("plans that cannot be carried out", sum(bool(own["wrong"]) for own in each.values()), 0, form=".0f"),
    ]  # fmt: skip
    return {"instances": each, "goals": verdict(goals)}


def read(text: str, processors: int) -> Data:
    """The graph file of an `.stg` file, on `processors` equal lanes of one device. Times have no unit in the set;
    here they are seconds.

    The first line has the number of tasks, which may leave out an empty first and last one. Each task has a line: its
    number, its time, how many tasks it waits for, and these. `#` begins remarks.
    """
    (count, *_), *lines = filter(None, (line.split("#")[0].split() for line in text.splitlines()))
    after: dict[str, list[str]] = {name: [] for name, *_ in lines}
    assert len(lines) == len(after) and len(after) - int(count) in (0, 2)
    for name, _, waits, *earlier in lines:
        assert len(earlier) == int(waits)
        for each in earlier:
            after[each].append(name)
    return {
        "tasks": [{"id": name, "seconds": {"cpu": float(seconds)}} for name, seconds, *_ in lines],
        "values": [
            {"id": f"{name} done", "producer": name, "consumers": later, "bytes": 0}
            for name, later in after.items()
            if later
        ],
        "devices": [{"name": "cpu", "lanes": processors, "memory_bytes": None}],
        "links": [],
    }


def rows(folder: Path) -> list[tuple[Path, int, float]]:
    """(file, processors, optimal makespan) of every row. Raises PlanError where the folder has none."""
    found = [
        (table.parent / row[0], int(row[1]), float(row[2]))
        for table in sorted(folder.rglob("optima*.csv"))
        for row in csv.reader(table.read_text().splitlines())
        if len(row) == 3 and row[1].isdigit()
    ]
    if not found:
        raise PlanError(
            f"{folder} has no optima*.csv with rows of file, processors, optimum; give another --graphs"
        )
    return found


def evenly(known: list[tuple[Path, int, float]], count: int) -> Iterable[tuple[Path, int, float]]:
    """So many of them, from the first on, as far from each other as can be."""
    count = min(count, len(known))
    return [known[index * len(known) // count] for index in range(count)]


def hits(gaps: Iterable[float]) -> float:
    """The share that is at the optimum."""
    gaps = [*gaps]
    return sum(gap <= CLOSE for gap in gaps) / len(gaps)


def listed(graph: Data, processors: int) -> float:
    """The makespan of list scheduling by the longest way to the end, without communication (Kasahara and Narita,
    "Practical multiprocessor scheduling algorithms for efficient parallel processing", IEEE ToC 33(11), 1984)."""
    seconds = {task["id"]: task["seconds"]["cpu"] for task in graph["tasks"]}
    after = {value["producer"]: value["consumers"] for value in graph["values"]}
    missing = dict.fromkeys(seconds, 0)
    for later in after.values():
        for name in later:
            missing[name] += 1
    order = [name for name, count in missing.items() if not count]
    waiting = dict(missing)
    for name in order:
        for later in after.get(name, ()):
            waiting[later] -= 1
            if not waiting[later]:
                order.append(later)
    level: dict[str, float] = {}
    for name in reversed(order):
        level[name] = seconds[name] + max((level[later] for later in after.get(name, ())), default=0.0)
    ready = [(-level[name], name) for name, count in missing.items() if not count]
    heapq.heapify(ready)
    running: list[tuple[float, str]] = []
    now = 0.0
    while ready or running:
        while ready and len(running) < processors:
            name = heapq.heappop(ready)[1]
            heapq.heappush(running, (now + seconds[name], name))
        now, ended = heapq.heappop(running)
        for later in after.get(ended, ()):
            missing[later] -= 1
            if not missing[later]:
                heapq.heappush(ready, (-level[later], later))
    return now
