"""Hold a run against eager: the same outputs, the same updates, or an error that names the task."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from ..capture import Captured, fails_alone
from ..capture import autocast as casting
from ..capture.rng_state import restore
from ..capture.strides import Strides, alike, laid, strides_of
from ..errors import DifferenceError
from ..ir.graph import LOCAL
from ..ir.plan import Plan
from ..runtime.interpreter import interpret
from ..text.tables import seconds
from .compare import difference, error, limit, no_worse, widen
from .snapshot import Snapshot, apart

log = logging.getLogger("autopar")

LONGEST_S = 10.0
"""Predicted seconds on one device above which the eager run of the first check is not worth its time."""


class Reference(Snapshot):
    """What eager answers for one call, computed on snapshots: afterwards nothing of the caller's has changed."""

    def __init__(self, captured: Captured, model: Callable[..., Any], args: Any, kwargs: Any) -> None:
        super().__init__(captured, args, kwargs)
        self.model, self.args, self.kwargs = model, args, kwargs
        versions = {
            name: tensor._version for name, tensor in self.live().items() if not tensor.is_inference()
        }
        with self.restored():
            with torch.no_grad():
                try:
                    flat = pytree.tree_leaves(model(*args, **kwargs))
                except Exception as error:
                    raise fails_alone(captured.graph.name, error) from error
            self.outputs = [apart(leaf) for leaf in flat]
            self.strides = [strides_of(leaf) for leaf in flat]
            live = self.live()
            self.updates = {target: apart(live[target]) for _, target in captured.graph.updates}
            for name, version in versions.items():
                if live[name]._version != version and name not in captured.graph.mutated:
                    path = captured.graph.value[name].path
                    raise DifferenceError(
                        f"eager changes {path!r} in place, which the captured graph does not; "
                        "use torch operations on the tensor itself (not .data or numpy), or keep this part out of it"
                    )

    def judge(self, output: Any) -> None:
        """Compare what a run gave (its output, and the updates it wrote) or raise DifferenceError."""
        found = pytree.tree_leaves(output)
        live = self.live()
        pairs = [(f"output {i}", a, b) for i, (a, b) in enumerate(zip(found, self.outputs))]
        pairs += [(self.captured.graph.value[name].path, live[name], b) for name, b in self.updates.items()]
        if len(found) != len(self.outputs):
            raise DifferenceError(f"the run returned {len(found)} values, eager {len(self.outputs)}")
        wrong = [(name, a, b) for name, a, b in pairs if not error(a, b) <= limit(b)]
        if not wrong:
            return
        wide = self.in_double()
        for position, (name, a, b) in enumerate(pairs):
            if not error(a, b) <= limit(b) and not no_worse(
                a, b, wide[position] if position < len(wide) else None
            ):
                raise DifferenceError(
                    f"{name} is not eager's: {difference(a, b, limit(b))}. {self.culprit()} "
                    'Pass check="never" to run anyway, or report the model with this message'
                )

    def settled(self, output: Any) -> Any:
        """The output of a run with eager's strides, of which the capture is told what its fake tensors had not."""
        leaves, spec = pytree.tree_flatten(output)
        told = tell(self.captured, leaves, self.strides)
        return pytree.tree_unflatten(leaves, spec) if told else output

    def in_double(self) -> list[Any]:
        """The same call by a copy of the model in float64: outputs then updates, empty when there can be none.

        The captured graph would not do: what is wrong with it would be wrong in float64 too.
        """
        graph, live = self.captured.graph, self.live()
        if not isinstance(self.model, nn.Module) or any(task.random for task in graph.tasks):
            return []
        saved = {id(live[name]): tensor for name, tensor in self.before.items()}
        made: dict[int, Any] = {}

        def wide(item: Any) -> Any:
            if id(item) not in made:
                made[id(item)] = widen(apart(saved.get(id(item), item)))
            return made[id(item)]

        try:
            twin = widened(self.model)
            tensors = dict(twin.state_dict(keep_vars=True))
            for name, before in self.before.items():
                if graph.value[name].path in tensors:
                    tensors[graph.value[name].path].data.copy_(before)
            args, kwargs = pytree.tree_map(wide, (self.args, self.kwargs))
            with torch.no_grad():
                flat = pytree.tree_leaves(twin(*args, **kwargs))
        except Exception as error:
            log.info("no second opinion in float64: %s", error)
            return []
        return flat + [
            made.get(id(live[target]), tensors.get(graph.value[target].path)) for _, target in graph.updates
        ]

    def culprit(self) -> str:
        """One sentence on where the captured graph leaves eager, or that it does not and the placed run does."""
        graph, captured = self.captured.graph, self.captured
        values: dict[str, Any] = {name: self.before.get(name, tensor) for name, tensor in self.live().items()}
        restore(self.random)
        with torch.no_grad(), casting.off(("cpu", captured.home.type)):
            for task in interpret(graph, captured.calls, values, captured.home):
                for name in task.outputs:
                    value = values[name]
                    if (
                        isinstance(value, torch.Tensor)
                        and value.is_floating_point()
                        and bool(value.isnan().any())
                    ):
                        return f"The first NaN is made by {task.where}."
        flat = pytree.tree_leaves(captured.rebuild([values[name] for name in graph.outputs]))
        makers = [graph.producer.get(name) for name in graph.outputs]
        for value, reference, maker in zip(flat, self.outputs, makers):
            if not error(value, reference) <= limit(reference):
                at = f" (made by {graph.task[maker].where})" if maker else ""
                return f"The captured graph itself differs{at}: the model does something that capture does not see."
        return "The captured graph is right task by task, so its placed execution is at fault."


def widened(model: nn.Module) -> nn.Module:
    """A copy of a model in float64; of one that Dynamo captured the dtypes that it names are widened too."""
    twin = copy.deepcopy(model).double()
    for part in twin.modules():
        if isinstance(part, fx.GraphModule):
            for node in part.graph.nodes:
                node.args, node.kwargs = fx.node.map_aggregate((node.args, node.kwargs), _wide)
                if node.op == "call_method" and node.target in ("float", "half", "bfloat16"):
                    node.target = "double"
            part.recompile()
    return twin


def _wide(item: Any) -> Any:
    return torch.float64 if isinstance(item, torch.dtype) and item.is_floating_point else item


def tell(captured: Captured, leaves: list[Any], strides: Sequence[Strides | None]) -> bool:
    """Let the outputs of a run, on the kind of device that eager ran on, have eager's strides, and those of later
    calls; whether any had others."""
    graph, told = captured.graph, False
    outputs = iter(
        [i for i in range(len(captured.strides)) if graph.value[graph.outputs[i]].dtype != "object"]
    )
    for place, (leaf, wanted) in enumerate(zip(leaves, strides)):
        if not isinstance(leaf, torch.Tensor):
            continue
        index = next(outputs, None)
        if index is None or wanted is None or leaf.device.type != captured.home.type:
            continue
        if not alike(leaf, wanted):
            log.info("output %d has the strides %s in eager, %s as traced", place, wanted, leaf.stride())
            captured.strides[index], leaves[place], told = wanted, laid(leaf, wanted), True
    return told


def unwanted(plan: Plan) -> bool:
    """Whether the first run need not, or cannot well, be held against eager; says which in one log line."""
    single, home = dict(plan.singles), plan.costed.machine.host
    if home in single and single[home] is None:
        log.info('check skipped: eager does not fit on %s alone; check="always" insists', home)
        return True
    best = single.get(home)
    if plan.costed.machine.clock == "real" and best is not None and best > LONGEST_S:
        log.info('check skipped: eager would take about %s; check="always" insists', seconds(best))
        return True
    return False


def by_parts(plan: Plan, batch_norm: str) -> bool:
    """Whether each part of the batch has statistics of its own, as the user wished, where eager's are of all of it."""
    wished = batch_norm == "per_part" and bool(plan.costed.graph.split)
    if wished:
        log.info(
            'check skipped: eager\'s BatchNorm is that of the full batch; batch_norm="full" can be checked'
        )
    return wished


def drawn_elsewhere(plans: Sequence[Plan], captured: Captured) -> bool:
    """Whether the random numbers of any of these plans are not eager's: other generators than the caller's, parts that
    draw for themselves, or another order. Says so in one log line."""
    for plan in plans:
        costed, home = plan.costed, str(captured.home)
        drawing = [task.name for task in costed.graph.tasks if task.random == LOCAL]
        order = [name for placed in plan.placed for name in costed.cluster[placed.cluster].tasks]
        place = costed.machine.device
        devices = {place[plan.place[costed.cluster_of[name]].device].torch_device for name in drawing}
        parts = any(costed.graph.task[name].part for name in drawing)
        wanted = set(drawing)
        if parts or devices - {home} or [name for name in order if name in wanted] != drawing:
            log.info(
                "check skipped: random numbers come from the generators of %s, in the order of the plan; eager's are "
                "those of %s",
                ", ".join(sorted(devices)),
                home,
            )
            return True
    return False
