"""A topological order of a plan's clusters and transfers, by planned start."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TypeAlias

from ..errors import PlanError
from ..ir.plan import Plan
from ..ir.timeline import Placed, Transfer
from ..planner.model.toposort import topological

Item: TypeAlias = Placed | Transfer
_Key: TypeAlias = tuple[float, float, int, int]
"""Start, end, index of the lane, position in the lane."""


def sequence(plan: Plan, existing: Collection[str], results: Collection[str]) -> Iterator[tuple[int, Item]]:
    """Yield (index of the lane in `plan.orders`, cluster or transfer), each after its inputs and its lane's earlier
    items.

    `existing`: buffers that exist before the call. `results`: buffers that must be made. Raises PlanError for a value
    that never reaches its reader or is sent twice, and for a deadlock.
    """
    costed, graph = plan.costed, plan.costed.graph
    items: dict[_Key, Item] = {}
    makes: dict[str, _Key] = {}
    clusters: dict[str, _Key] = {}
    # What an item must follow: the one before it on its lane, the makers of buffers, and tasks.
    needs: dict[_Key, tuple[_Key | None, list[str], list[str]]] = {}
    for lane, (name, queue) in enumerate(plan.orders.items()):
        device, previous = name.rsplit("/", 1)[0], None
        for position, item in enumerate(queue):
            here = (item.start, item.end, lane, position)
            if isinstance(item, Transfer):
                outputs, needs[here] = (
                    [f"{item.value}@{item.dst}"],
                    (previous, [f"{item.value}@{item.src}"], []),
                )
            else:
                clusters[item.cluster] = here
                tasks = [graph.task[name] for name in costed.cluster[item.cluster].tasks]
                inner = {value for task in tasks for value in task.outputs}
                outputs = [f"{value}@{device}" for task in tasks for value in task.outputs]
                reads = [f"{value}@{device}" for t in tasks for value in t.inputs if value not in inner]
                needs[here] = previous, reads, [name for task in tasks for name in task.after]
            items[here], previous = item, here
            for buffer in outputs:
                if buffer in makes or buffer in existing:
                    raise PlanError(f"the plan makes {buffer} twice; one cluster or transfer is enough")
                makes[buffer] = here
    for name in results:
        if name not in makes and name not in existing:
            value, device = name.rsplit("@", 1)
            raise PlanError(
                f"the plan never brings the result {value!r} to {device}; add a Transfer that does"
            )

    def earlier(here: _Key) -> list[_Key]:
        """Return the items that must end before an item, each once."""
        previous, reads, after = needs[here]
        keys: dict[_Key, None] = {} if previous is None else {previous: None}
        for name in reads:
            if name in makes:
                keys[makes[name]] = None
            elif name not in existing:
                raise PlanError(_absent(items[here], name))
        for task in after:
            cluster = costed.cluster_of.get(task, "")
            if cluster not in clusters:
                raise PlanError(f"the plan places no cluster with the task {task!r}")
            keys[clusters[cluster]] = None
        keys.pop(here, None)
        return list(keys)

    order = topological({here: earlier(here) for here in needs})
    if len(order) < len(needs):
        item = items[min(set(needs).difference(order))]
        what = item.cluster if isinstance(item, Placed) else f"the transfer of {item.value}"
        raise PlanError(
            f"the orders of the plan's lanes go round in a circle: {what!r} in {item.lane} and "
            f"{len(needs) - len(order) - 1} more wait for each other; each must come after what it reads"
        )
    for here in order:
        yield here[2], items[here]


def _absent(item: Item, name: str) -> str:
    value, device = name.rsplit("@", 1)
    if isinstance(item, Transfer):
        return f"the plan moves {value!r} from {device} to {item.dst}, but it never is on {device}"
    return f"cluster {item.cluster!r} on {device} reads {value!r}, which the plan never brings there; add a Transfer"
