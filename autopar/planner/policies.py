"""Policies that a user can ask for, by name or as a function."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TypeAlias

from ..errors import PlanError
from ..ir.costed import CostedGraph
from .candidates import Entry, Race
from .lists.heft import heft, list_schedule, lookahead, placed_first
from .lists.memory_first import fill_devices, follow_data
from .lists.single import is_single
from .model.instance import Instance
from .model.simulator import Schedule, in_order

Policy: TypeAlias = str | Callable[[CostedGraph], Schedule | Mapping[str, str]]
"""`auto`, a policy's name, or a function that returns a schedule, or the device of some clusters or tasks by name."""


def round_robin(instance: Instance, room: float = 1.0) -> Schedule:
    """Place each cluster, in graph order, on the next queue that it may use; a colocate group counts as one cluster.

    It causes the most transfers, which tests a runtime. `room` is ignored.
    """
    queues = [(d, lane) for d, lanes in enumerate(instance.widths) for lane in range(lanes)]
    chosen: dict[int, tuple[int, int]] = {}
    for r in range(instance.clusters):
        if r not in chosen:
            at = next(k for k, (d, _) in enumerate(queues) if d in instance.allowed[r])
            chosen |= dict.fromkeys(instance.together(r), queues[at])
            queues = [*queues[at + 1 :], *queues[: at + 1]]
    placed = ((r, d, lane) for r, (d, lane) in sorted(chosen.items()))
    return in_order(instance, "round_robin", placed)


POLICIES: dict[str, Callable[..., Schedule]] = {
    "heft": heft,
    "heft+lookahead": lookahead,
    "fill": fill_devices,
    "follow": follow_data,
    "round_robin": round_robin,
}
"""Policies by name, in addition to `auto` and `single`. Each is a function of a problem and of `room`, the share of
the caps to plan for."""

TIGHTER = (0.9, 0.75, 0.5, 0.4, 0.3, 0.2)
"""Shares of the caps to plan for, in turn, if a schedule does not fit: list schedules estimate memory without final
times, and spread saved values by the free memory."""
HOPELESS = 8
"""Factor on a cap above which no tighter plan is tried: less room would not make this order fit."""


def enter_fitting(race: Race, policy: Callable[..., Schedule]) -> Entry | None:
    """Enter a policy's schedule, planned for less room until it fits or none helps; return the entry."""
    entry = race.enter(policy(race.instance, room=1.0))
    for room in TIGHTER:
        if entry is None or not entry.over or any(peak > HOPELESS * cap for _, peak, cap in entry.over):
            break
        schedule, before = policy(race.instance, room=room), entry.simulation.schedule
        if (schedule.lanes, schedule.copies) != (before.lanes, before.copies):
            entry = race.enter(schedule) or entry
    return entry


def require_policy(policy: Policy, devices: Collection[str]) -> None:
    """Raise PlanError if there is no such policy on these devices."""
    known = ("auto", "single", *(f"single {name}" for name in devices), *POLICIES)
    if isinstance(policy, str) and policy not in known:
        raise PlanError(
            f"policy={policy!r} is not known; give one of {', '.join(known)}, or a function of the costed graph"
        )


def enter_policy(race: Race, policy: Policy, singles: dict[int, list[Entry]]) -> list[Entry]:
    """Enter the schedules of one policy and return the entries; `singles` are those of single devices."""
    instance = race.instance
    if isinstance(policy, str):
        require_policy(policy, instance.devices)
        if policy == "single":
            strict = [entry for d, entries in singles.items() if is_single(instance, d) for entry in entries]
            return strict or [entry for entries in singles.values() for entry in entries]
        if policy not in POLICIES:
            return singles[instance.devices.index(policy.removeprefix("single "))]
        first = enter_fitting(race, POLICIES[policy])
    else:
        answer = policy(instance.costed)
        if isinstance(answer, Schedule):
            first = race.enter(answer)
        elif isinstance(answer, Mapping):
            title = getattr(policy, "title", "the policy given")
            first = enter_fitting(race, _placing(instance, answer, title))
        else:
            raise PlanError(
                f"policy= returned {answer!r}; a policy returns {{name of a task or cluster: device}} or a Schedule"
            )
    if first is None:
        raise race.errors[-1]
    name = first.simulation.schedule.policy
    return [entry for entry in race.entries if entry.simulation.schedule.policy == name]


def _placing(instance: Instance, devices: Mapping[str, str], name: str) -> Callable[..., Schedule]:
    """Return the policy that places some clusters or tasks on these devices, and the rest by earliest finish."""
    costed = instance.costed
    allowed = list(instance.allowed)
    by: dict[int, str] = {}
    for placed, device in devices.items():
        costed.machine.require(device)
        r = instance.number.get(placed, instance.number.get(costed.cluster_of.get(placed, ""), -1))
        if r < 0:
            raise PlanError(
                f"the policy places {placed!r}, which is not a cluster or task of {costed.graph.name!r}"
            )
        d = costed.index[device]
        if d not in instance.allowed[r]:
            raise PlanError(f"the policy puts {placed!r} on {device}; it can only run on {instance.where(r)}")
        for member in instance.together(r):
            if allowed[member] != (d,) and member in by:
                raise PlanError(
                    f"the policy puts {placed!r} on {device} and {by[member]!r} elsewhere, but they are "
                    "executed together; give both the same device"
                )
            allowed[member] = (d,)
            by[member] = placed
    order = placed_first(instance, allowed)
    return partial(list_schedule, policy=name, order=order, allowed=allowed)
