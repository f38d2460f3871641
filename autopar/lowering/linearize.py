"""A topological order of a plan's clusters and transfers, by planned start."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TypeAlias

from ..errors import PlanError
from ..ir.plan import Plan
from ..ir.timeline import Placed, Transfer
from ..planner.model.toposort import topological

Item: TypeAlias = Placed | Transfer
_At: TypeAlias = tuple[int, int]


def sequence(plan: Plan, there: Collection[str], results: Collection[str]) -> Iterator[tuple[int, Item]]:
    """Yield (index of the lane in `plan.orders`, cluster or transfer), each after its inputs and its lane's earlier
    items.

    `there`: buffers that exist before the call. `results`: buffers that must be made. Raises PlanError for a value
    that never reaches its reader or is sent twice, and for a deadlock.
    """
    costed, graph = plan.costed, plan.costed.graph
    lanes = [(name.rsplit("/", 1)[0], items) for name, items in plan.orders.items()]
    key: dict[_At, tuple[float, float, int, int]] = {}
    makes: dict[str, _At] = {}
    clusters: dict[str, _At] = {}
    needs: dict[_At, list[str]] = {}
    after: dict[_At, list[str]] = {}
    for lane, (device, items) in enumerate(lanes):
        for position, item in enumerate(items):
            here = (lane, position)
            key[here] = (item.start, item.end, lane, position)
            if isinstance(item, Transfer):
                made = [f"{item.value}@{item.dst}"]
                needs[here] = [f"{item.value}@{item.src}"]
                after[here] = []
            else:
                clusters[item.cluster] = here
                tasks = [graph.task[name] for name in costed.cluster[item.cluster].tasks]
                own = {value for task in tasks for value in task.outputs}
                made = [f"{value}@{device}" for task in tasks for value in task.outputs]
                needs[here] = [f"{value}@{device}" for t in tasks for value in t.inputs if value not in own]
                after[here] = [name for task in tasks for name in task.after]
            for name in made:
                if name in makes or name in there:
                    raise PlanError(f"the plan makes {name} twice; one cluster or transfer is enough")
                makes[name] = here
    for name in results:
        if name not in makes and name not in there:
            value, device = name.rsplit("@", 1)
            raise PlanError(
                f"the plan never brings the result {value!r} to {device}; add a Transfer that does"
            )

    def earlier(here: _At) -> dict[_At, None]:
        """Return the items that must end before an item, each once."""
        lane, position = here
        found: dict[_At, None] = {(lane, position - 1): None} if position else {}
        for name in needs[here]:
            if name in makes:
                found[makes[name]] = None
            elif name not in there:
                raise PlanError(_absent(lanes[lane][1][position], name))
        for task in after[here]:
            cluster = costed.cluster_of.get(task, "")
            if cluster not in clusters:
                raise PlanError(f"the plan places no cluster with the task {task!r}")
            found[clusters[cluster]] = None
        found.pop(here, None)
        return found

    order = topological({key[here]: [key[before] for before in earlier(here)] for here in needs})
    if len(order) < len(needs):
        *_, lane, position = min(set(key.values()).difference(order))
        item = lanes[lane][1][position]
        what = item.cluster if isinstance(item, Placed) else f"the transfer of {item.value}"
        raise PlanError(
            f"the orders of the plan's lanes go round in a circle: {what!r} in {item.lane} and "
            f"{len(needs) - len(order) - 1} more wait for each other; each must come after what it reads"
        )
    for *_, lane, position in order:
        yield lane, lanes[lane][1][position]


def _absent(item: Item, name: str) -> str:
    value, device = name.rsplit("@", 1)
    if isinstance(item, Transfer):
        return f"the plan moves {value!r} from {device} to {item.dst}, but it never is on {device}"
    return f"cluster {item.cluster!r} on {device} reads {value!r}, which the plan never brings there; add a Transfer"
