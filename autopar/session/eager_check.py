"""Comparison of a run with eager: equal outputs, updates and gradients, or an error that names the task."""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import fx

from ..capture import Captured
from ..capture import autocast as casting
from ..capture.captured import Strides, alike, laid, strides_of
from ..capture.eager_form import unprinted
from ..capture.refusals import fails_alone
from ..capture.torch_private import pytree
from ..errors import DifferenceError
from ..ir.graph import LOCAL
from ..ir.machine import Machine
from ..ir.plan import Plan
from ..system.text import seconds
from .compare import (
    LIMIT,
    Snapshot,
    coarse,
    detached_copy,
    difference,
    distance,
    error,
    generators,
    interpret,
    largest,
    limit,
    no_worse,
    restore,
    rounded,
    widen,
)
from .options import Options
from .rounding import spread

log = logging.getLogger("autopar")

FLOOR = 1e-3
"""The error of a gradient, or of a buffer's new value in training, is relative to its own largest entry, but at least
to this share of the largest entry of all. A value that is zero in exact arithmetic (the bias gradient in
front of a BatchNorm, the mean of its result) consists of rounding alone."""

ROUNDINGS = 8
"""Factor on the change of a result by other roundings; a difference from eager up to it is rounding."""

LONGEST_S = 10.0
"""Predicted seconds on one device above which the first check does not run eager."""

_EMPTY = re.compile(r"aten\.(new_)?empty(_\w+)?\.")
"""Operators that allocate memory without writing to it."""

REMEDY = 'Pass check="never" to run anyway, or report the model with this message'


class Eager(Snapshot):
    """Eager's outputs of one call, and its gradients if the graph has a backward; computed on snapshots, so
    none of the caller's tensors change.

    model: has no state of its own.
    weights: by path; they are among the model's arguments.
    tangents: by name of the graph's input; random unless given.
    machine: the machine of the run that is compared.
    gradients: by path, for all parameters and arguments that require grad; None if eager has none.
    """

    def __init__(
        self,
        captured: Captured,
        model: Callable[..., Any],
        args: Sequence[Any],
        weights: Mapping[str, Any] | None = None,
        tangents: Mapping[str, torch.Tensor] | None = None,
        machine: Machine | None = None,
    ) -> None:
        super().__init__(captured, args)
        self.coarse = coarse(machine, captured.graph)
        self.model, self.args, self.asked = model, tuple(args), tangents or {}
        self.differentiated = bool(captured.tangents)
        graph = captured.graph
        inputs = {graph.value[name].path: tensor for name, tensor in zip(graph.inputs, self.tensors)}
        # A weight that is also an argument is one leaf with one gradient.
        differentiated = {graph.value[name].path for name, _ in captured.gradients}
        tensors = sorted(
            {**inputs, **(weights or {})}.items(), key=lambda leaf: leaf[0] not in differentiated
        )
        path_of = {id(tensor): path for path, tensor in reversed(tensors)}
        candidates = tensors if self.differentiated else []
        self.leaves = {p: t for p, t in candidates if t.requires_grad and path_of[id(t)] == p}
        versions = {name: t._version for name, t in self.live().items() if not t.is_inference()}
        with self.restored():
            outputs, self.gradients, self.tangents = self._called(model, self.args, self.leaves)
            self.outputs = [detached_copy(leaf) for leaf in outputs]
            self.strides = [strides_of(leaf) for leaf in outputs]
            live = self.live()
            self.updates = {target: detached_copy(live[target]) for _, target in graph.updates}
            for name, version in versions.items():
                if live[name]._version != version and name not in graph.mutated:
                    raise DifferenceError(
                        f"eager changes {graph.value[name].path!r} in place, which the captured graph does not; "
                        "use torch operations on the tensor itself (not .data or numpy), or keep this part out of it"
                    )

    def _called(
        self, model: Callable[..., Any], args: Any, leaves: Mapping[str, torch.Tensor]
    ) -> tuple[list[Any], dict[str, torch.Tensor | None], dict[str, torch.Tensor]]:
        """Return the outputs of a call, and if it is differentiated the gradients of leaves and the tangents."""
        # The caller's computation of an argument is not part of the call, so the backward stops there.
        cut = {id(t): t.detach().requires_grad_() for t in leaves.values() if t.grad_fn is not None}
        args = pytree.tree_map(lambda leaf: cut.get(id(leaf), leaf), args)
        leaves = {path: cut.get(id(leaf), leaf) for path, leaf in leaves.items()}
        # Without a backward, the caller's mode: `torch.func.grad` within the model depends on it.
        with torch.enable_grad() if self.differentiated else nullcontext():
            try:
                flat = pytree.tree_leaves(unprinted(model)(*args))
            except Exception as failure:
                raise fails_alone(self.captured.graph.name, failure) from failure
        if not self.differentiated:
            return flat, {}, {}
        outputs = [leaf for leaf in flat if isinstance(leaf, torch.Tensor)]
        roots = [outputs[index] for _, index in self.captured.tangents]
        random = torch.Generator().manual_seed(0)
        tangents: dict[str, torch.Tensor] = {}
        for (name, _), root in zip(self.captured.tangents, roots):
            if not root.requires_grad:
                raise DifferenceError(
                    f"an output of {self.captured.graph.name} requires grad in the captured graph, not in eager; "
                    "report the model with this message"
                )
            drawn = torch.randn(root.shape, generator=random, dtype=torch.float64, device="cpu")
            tangents[name] = self.asked.get(name, drawn).to(root)
        with _unhooked(leaves.values()), casting.off({"cpu", *(root.device.type for root in roots)}):
            gradients = torch.autograd.grad(
                roots, list(leaves.values()), list(tangents.values()), allow_unused=True
            )
        return outputs, dict(zip(leaves, gradients)), tangents

    def judge(self, outputs: Sequence[Any], gradients: Sequence[torch.Tensor | None] = ()) -> None:
        """Compare a run with eager: outputs, gradients in the order of `Captured.gradients`, and the live
        tensors. Raises DifferenceError. In training, records eager's strides in the capture."""
        graph, live = self.captured.graph, self.live()
        if len(outputs) != len(self.outputs):
            raise DifferenceError(f"the run returned {len(outputs)} values, eager {len(self.outputs)}")
        paths = [graph.value[name].path for name, _ in self.captured.gradients]
        makers = dict(zip(paths, (graph.producer.get(name, "") for _, name in self.captured.gradients)))
        gradient_of = dict(zip(paths, gradients))
        floors = floor = 0.0
        if self.differentiated:
            _give_eager_strides(self.captured, list(outputs), self.strides)
            self._require_gradients(gradient_of, makers)
            floor, floors = FLOOR * largest(self.gradients.values()), FLOOR * largest(self.updates.values())
        blank = self._uninitialised()
        pairs: list[tuple[str, Any, Any, float]] = [
            (f"output {index}", a, b, 0.0)
            for index, (a, b) in enumerate(zip(outputs, self.outputs))
            if index not in blank
        ]
        pairs += [(graph.value[name].path, live[name], b, floors) for name, b in self.updates.items()]
        pairs += [
            (f"the gradient of {p}", gradient_of.get(p), b, floor)
            for p, b in self.gradients.items()
            if b is not None
        ]
        # Under autocast, gradients are float32 but only as precise as the least precise dtype, and so are outputs that
        # were converted. Without random numbers, float64 tells how precise these are.
        drawn = any(task.random for task in graph.tasks)
        dtypes = rounded(graph) if self.differentiated or drawn else ()
        loose = max([self.coarse, *(LIMIT[dtype] for dtype in dtypes)])
        wrong = [pair for pair in pairs if not error(*pair[1:]) <= _allowed(pair[2], loose)]
        if not wrong:
            return
        wide, noise = self.in_double(), dict[str, float]()
        named = {f"output {i}": graph.producer.get(name, "") for i, name in enumerate(graph.outputs)}
        for what, a, b, least in wrong:
            if no_worse(a, b, wide.get(what), least):
                continue
            noise = noise or self.rounding()
            if distance(a, b) <= ROUNDINGS * noise.get(what, 0.0) < float("inf"):
                continue
            if self.differentiated:
                maker = named.get(what) or makers.get(what.removeprefix("the gradient of "), "")
                where = f"It is made by {graph.task[maker].where}. " if maker else ""
            else:
                where = f"{self.culprit()} "
            raise DifferenceError(
                f"{what} is not eager's: {difference(a, b, _allowed(b, loose))}. {where}{REMEDY}"
            )

    def _uninitialised(self) -> set[int]:
        """Return the indices of outputs with uninitialised memory, which code after a graph break fills."""
        graph = self.captured.graph
        allocating = (task for task in graph.tasks if _EMPTY.match(task.target))
        storages = {graph.value[name].storage for task in allocating for name in task.outputs}
        tensors = (index for index, leaf in enumerate(self.outputs) if isinstance(leaf, torch.Tensor))
        return {index for index, name in zip(tensors, graph.outputs) if graph.value[name].storage in storages}

    def _require_gradients(self, gradient_of: Mapping[str, Any], makers: Mapping[str, str]) -> None:
        """Raise DifferenceError if only one of eager and the run has a gradient."""
        for path, reference in self.gradients.items():
            if (gradient_of.get(path) is None) == (reference is None):
                continue
            maker = makers.get(path, "")
            by = f" (made by {self.captured.graph.task[maker].where})" if maker else ""
            which = (
                "gets no gradient from the captured graph"
                if reference is not None
                else "has no gradient in eager"
            )
            raise DifferenceError(
                f"{path} {which}{by}: the model does something that capture does not see. {REMEDY}"
            )

    def with_eager_strides(self, output: Any) -> Any:
        """Return an output with eager's strides; record those that fake tensors did not know."""
        leaves, spec = pytree.tree_flatten(output)
        changed = _give_eager_strides(self.captured, leaves, self.strides)
        return pytree.tree_unflatten(leaves, spec) if changed else output

    def in_double(self) -> dict[str, Any]:
        """Return outputs, updates and gradients of a copy of the model in float64; empty if there can be none."""
        graph, now, live = self.captured.graph, generators(), self.live()
        if any(task.random for task in graph.tasks):
            return {}
        saved = {id(live[name]): tensor for name, tensor in self.before.items()}
        wide: dict[int, Any] = {}

        def widened(item: Any) -> Any:
            if id(item) not in wide:
                wide[id(item)] = _alike(widen(detached_copy(saved.get(id(item), item))), item)
            return wide[id(item)]

        restore(self.random)
        try:
            args = pytree.tree_map(widened, self.args)
            leaves = {path: wide[id(tensor)] for path, tensor in self.leaves.items()}
            outputs, gradients, _ = self._called(_widened(self.model), args, leaves)
        except Exception as failure:
            log.info("no second opinion in float64: %s", failure)
            return {}
        finally:
            restore(now)
        results = {f"output {index}": detached_copy(result) for index, result in enumerate(outputs)}
        updates = {graph.value[name].path: wide[id(live[name])].detach() for name in self.updates}
        return {**results, **updates, **{f"the gradient of {path}": g for path, g in gradients.items()}}

    def rounding(self) -> dict[str, float]:
        """Return the largest change of each result by other roundings; empty if it cannot be told."""
        graph = self.captured.graph
        names = {f"output {index}": name for index, name in enumerate(self._compared()) if name}
        names |= {graph.value[target].path: made for made, target in graph.updates}
        names |= {f"the gradient of {graph.value[leaf].path}": name for leaf, name in self.captured.gradients}
        start = {name: self.before.get(name, tensor) for name, tensor in self.live().items()}
        start |= self.tangents if self.differentiated else {}
        now = generators()
        try:
            moved = spread(self.captured, start, names.values(), lambda: restore(self.random))
        except Exception as failure:
            log.info("no estimate of rounding: %s", failure)
            return {}
        finally:
            restore(now)
        return {what: moved[name] for what, name in names.items()}

    def _compared(self) -> list[str]:
        """Return the values of the graph that are compared as outputs, in order."""
        graph = self.captured.graph
        names = graph.outputs[: len(graph.outputs) - len(self.captured.gradients)]
        unread = iter(names)
        if self.differentiated:
            return [name for name in names if graph.value[name].dtype != "object"]
        return [next(unread) if isinstance(leaf, torch.Tensor) else "" for leaf in self.outputs]

    def culprit(self) -> str:
        """Return a sentence on where the captured graph differs from eager, or that only its run does."""
        graph, captured = self.captured.graph, self.captured
        values: dict[str, Any] = {name: self.before.get(name, tensor) for name, tensor in self.live().items()}
        restore(self.random)
        for task in interpret(graph, captured.calls, values, captured.home):
            for name in task.outputs:
                value = values[name]
                floating = isinstance(value, torch.Tensor) and value.is_floating_point()
                if floating and bool(value.isnan().any()):
                    return f"The first NaN is made by {task.where}."
        flat = pytree.tree_leaves(captured.rebuild([values[name] for name in graph.outputs]))
        makers = [graph.producer.get(name) for name in graph.outputs]
        for value, reference, maker in zip(flat, self.outputs, makers):
            if not error(value, reference) <= limit(reference):
                at = f" (made by {graph.task[maker].where})" if maker else ""
                return f"The captured graph itself differs{at}: the model does something that capture does not see."
        return "The captured graph is right task by task, so its placed execution is at fault."


def _alike(twin: Any, leaf: Any) -> Any:
    """Return a copy that requires grad if the original does."""
    return twin.requires_grad_(leaf.requires_grad) if isinstance(twin, torch.Tensor) else twin


@contextmanager
def _unhooked(leaves: Iterable[torch.Tensor]) -> Iterator[None]:
    """Within the block, disable the user's hooks of leaves: they are not for the gradients of a check."""
    saved = [(hooks, dict(hooks)) for leaf in leaves if (hooks := leaf._backward_hooks)]
    try:
        for hooks, _ in saved:
            hooks.clear()
        yield
    finally:
        for hooks, kept_hooks in saved:
            hooks.update(kept_hooks)


def _allowed(reference: Any, loose: float) -> float:
    """Return the tolerance for `reference` in a graph whose least precise dtype allows `loose`."""
    allowed = limit(reference)
    return max(allowed, loose) if allowed else 0.0


def _widened(model: Any) -> Any:
    """Return a copy of a model in float64, with the dtypes that it names if it was captured by Dynamo."""

    def wide(item: Any) -> Any:
        return torch.float64 if isinstance(item, torch.dtype) and item.is_floating_point else item

    twin = copy.deepcopy(model).double()
    for part in twin.modules():
        if isinstance(part, fx.GraphModule):
            for node in part.graph.nodes:
                node.args, node.kwargs = fx.node.map_aggregate((node.args, node.kwargs), wide)
                if node.op == "call_method" and node.target in ("float", "half", "bfloat16"):
                    node.target = "double"
            part.recompile()
    return twin


def _give_eager_strides(captured: Captured, leaves: list[Any], strides: Sequence[Strides | None]) -> bool:
    """Give outputs that are on the capture's device type eager's strides, now and in later calls; return
    whether any had others."""
    graph, changed = captured.graph, False
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
            captured.strides[index], leaves[place], changed = wanted, laid(leaf, wanted), True
    return changed


def wanted(plan: Plan, runs: Plan, captured: Captured, options: Options) -> bool:
    """Return True if a first run can, and by its options should, be compared with eager; else log why not.
    `runs`: the plan that runs for `plan`, such as that of its forward."""
    machine = plan.costed.machine
    alone_s = dict(plan.singles).get(machine.host, 0.0)
    devices = _drawn_elsewhere(runs, str(captured.home))
    if options.batch_norm == "per_part" and plan.costed.graph.split:
        why = 'eager\'s BatchNorm is that of the full batch; batch_norm="full" can be checked'
    elif devices:
        generators = f"the generators of {', '.join(sorted(devices))}"
        why = f"random numbers come from {generators}, in the order of the plan; eager's are those of {captured.home}"
    elif options.check == "always":
        return True
    elif alone_s is None:
        why = f'eager does not fit on {machine.host} alone; check="always" insists'
    elif machine.clock == "real" and alone_s > LONGEST_S:
        why = f'eager would take about {seconds(alone_s)}; check="always" insists'
    else:
        return True
    log.info("check skipped: %s", why)
    return False


def _drawn_elsewhere(plan: Plan, home: str) -> set[str]:
    """Return the torch devices that draw random numbers if these numbers differ from eager's on `home`:
    because of other generators, parts that draw independently, or another order."""
    costed = plan.costed
    drawing = [task.name for task in costed.graph.tasks if task.random == LOCAL]
    order = [name for placed in plan.placed for name in costed.cluster[placed.cluster].tasks]
    place = costed.machine.device
    devices = {place[plan.place[costed.cluster_of[name]].device].torch_device for name in drawing}
    parts = any(costed.graph.task[name].part for name in drawing)
    drawn = set(drawing)
    alike = not parts and devices <= {home} and [name for name in order if name in drawn] == drawing
    return set() if alike else devices
