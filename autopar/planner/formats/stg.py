"""Graphs of the Standard Task Graph set as graph files.

Tobita and Kasahara, "A standard task graph set for fair evaluation of multiprocessor scheduling algorithms", Journal of
Scheduling 5(5), 2002. The first line has the number of tasks; then a line a task: its number, its processing time, how
many tasks it waits for, and which. `#` begins the remarks at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...errors import PlanError


def described(text: str, processors: int) -> dict[str, Any]:
    """The graph of an `.stg` file on so many identical processors, the lanes of one device, as a graph file.

    The set gives times without a unit; they are seconds here. Tasks that only mark the beginning or the end are
    kept, as tasks of no time. Raises PlanError naming the line that is wrong.
    """
    lines = [line.split("#")[0].split() for line in text.splitlines()]
    numbered = [(number, words) for number, words in enumerate(lines, 1) if words]
    if not numbered:
        raise PlanError("the .stg file is empty; its first line has the number of tasks")
    (first, head), *rest = numbered
    declared = _whole(head[:1], first)[0]
    tasks: dict[int, list[int]] = {}
    seconds: dict[int, float] = {}
    for number, words in rest:
        name, *_ = _whole(words[:1], number)
        waits = _whole(words[2:], number)
        if len(words) < 3 or waits[0] != len(waits) - 1:
            raise PlanError(
                f"line {number} of the .stg file has {max(0, len(words) - 3)} predecessors but does not say so; a line "
                "has the task, its time, how many tasks it waits for, and which"
            )
        if name in tasks:
            raise PlanError(f"line {number} of the .stg file has task {name} a second time")
        tasks[name], seconds[name] = waits[1:], _time(words[1], number)
    if len(tasks) not in (declared, declared + 2):
        raise PlanError(
            f"the .stg file says that it has {declared} tasks and has {len(tasks)}; two more, for the beginning and "
            "the end, are all there may be"
        )
    for name, waits in tasks.items():
        for earlier in waits:
            if earlier not in tasks:
                raise PlanError(f"task {name} of the .stg file waits for {earlier}, which it does not have")
    after: dict[int, list[str]] = {name: [] for name in tasks}
    for name, waits in tasks.items():
        for earlier in waits:
            after[earlier].append(str(name))
    return {
        "tasks": [{"id": str(name), "seconds": {"cpu": seconds[name]}} for name in tasks],
        "values": [
            {"id": f"{name} done", "producer": str(name), "consumers": later, "bytes": 0}
            for name, later in after.items()
            if later
        ],
        "devices": [{"name": "cpu", "lanes": processors, "memory_bytes": None}],
        "links": [],
    }


def _whole(words: Sequence[str], line: int) -> list[int]:
    try:
        return [int(word) for word in words]
    except ValueError as error:
        raise PlanError(f"line {line} of the .stg file: {error}; it must be a whole number") from None


def _time(word: str, line: int) -> float:
    try:
        return float(word)
    except ValueError:
        raise PlanError(f"line {line} of the .stg file has the time {word!r}; it must be a number") from None
