"""Whether values can come from where they may be made to where they are wanted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ...errors import DeviceError, PlanError
from ...ir.machine import Machine


class Placeable(Protocol):
    """A task with what it reads and makes; its seconds are None on devices that cannot run it."""

    name: str
    seconds: tuple[float | None, ...]
    reads: list[str]
    makes: list[str]


def check_reach(
    on: Machine,
    tasks: Sequence[Placeable],
    deliver: Sequence[tuple[str, str]],
    homes: Sequence[tuple[str, str]],
) -> None:
    """Raise PlanError for a value that no route, of two links at most, brings from any device that may make it to
    any that may read it."""
    names = [device.name for device in on.devices]
    reach = [[_leads(on, src, dst) for dst in names] for src in names]
    if all(map(all, reach)):
        return
    index = {name: d for d, name in enumerate(names)}
    whereabouts: dict[str, tuple[int, ...]] = {value: (index[device],) for value, device in homes}
    able = {task.name: tuple(d for d, s in enumerate(task.seconds) if s is not None) for task in tasks}
    for task in tasks:
        for value in task.makes:
            whereabouts[value] = able[task.name]
    wanted = [(value, able[task.name], f"task {task.name!r}") for task in tasks for value in task.reads]
    wanted += [(value, (index[device],), "its delivery") for value, device in deliver]
    known: dict[tuple[tuple[int, ...], tuple[int, ...]], bool] = {}
    for value, there, what in wanted:
        key = whereabouts[value], there
        if key not in known:
            known[key] = any(reach[s][d] for s in key[0] for d in key[1])
        if not known[key]:
            sources, targets = (" or ".join(names[d] for d in side) for side in key)
            raise PlanError(
                f"no link, nor two in a row, brings value {value!r} from {sources} to {targets} "
                f"for {what}; add a link"
            )


def _leads(on: Machine, src: str, dst: str) -> bool:
    try:
        on.route(src, dst)
    except DeviceError:
        return False
    return True
