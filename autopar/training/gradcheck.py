"""Hold a joint graph against eager: the same outputs, updates and gradients for one set of tangents."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..capture import Captured, fails_alone
from ..capture.rng_state import generators, restore
from ..capture.strides import strides_of
from ..errors import DifferenceError
from ..ir.graph import Graph
from ..pipeline.compare import LIMIT, difference, error, limit, no_worse, widen
from ..pipeline.eager_check import tell, widened
from ..pipeline.snapshot import Snapshot, apart

log = logging.getLogger("autopar")

FLOOR = 1e-3
"""The error of a gradient, or of a buffer's new value, is judged against its own largest entry, or this share of the
largest of all: one that is zero in exact arithmetic (the gradient of a bias in front of a BatchNorm, the mean of what
comes from one) is nothing but rounding."""


SHAKEN = 64
"""What is no farther from eager than this many times what a change in the last bits of the weights makes of it
differs by rounding alone."""


class Eager(Snapshot):
    """What eager answers for one call and gives as gradients; afterwards nothing of the caller's has changed.

    The `model` has no state of its own: `weights`, by path, are among its arguments.

    `tangents` are random unless given, by name of the graph's input; `gradients` by the path of the parameter, or of
    the argument, for all that require grad: None where eager has none.
    """

    def __init__(
        self,
        captured: Captured,
        model: Callable[..., Any],
        args: Any,
        kwargs: Any,
        weights: Mapping[str, Any],
        tangents: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        super().__init__(captured, args, kwargs)
        self.model, self.arguments, self.given = model, (args, kwargs), tangents or {}
        graph = captured.graph
        given = {graph.value[name].path: tensor for name, tensor in zip(graph.inputs, self.tensors)}
        # A weight that is an argument too is one leaf, and has one gradient.
        own = {graph.value[name].path for name, _ in captured.gradients}
        found = sorted({**given, **weights}.items(), key=lambda leaf: leaf[0] not in own)
        once = {id(tensor): path for path, tensor in reversed(found)}
        self.leaves = {p: t for p, t in found if t.requires_grad and once[id(t)] == p}
        with self.restored():
            outputs, self.gradients = self._run(model, args, kwargs, self.leaves)
            self.outputs = [apart(leaf) for leaf in outputs]
            self.strides = [strides_of(leaf) for leaf in outputs]
            live = self.live()
            self.updates = {target: live[target].detach().clone() for _, target in graph.updates}

    def _run(
        self, model: Callable[..., Any], args: Any, kwargs: Any, leaves: Mapping[str, torch.Tensor]
    ) -> tuple[list[Any], dict[str, torch.Tensor | None]]:
        # What the caller computed from a weight is no part of the call, nor is its gradient.
        cut = {id(t): t.detach().requires_grad_() for t in leaves.values() if t.grad_fn is not None}
        args, kwargs = pytree.tree_map(lambda leaf: cut.get(id(leaf), leaf), (args, kwargs))
        leaves = {path: cut.get(id(leaf), leaf) for path, leaf in leaves.items()}
        with torch.enable_grad():
            try:
                flat = pytree.tree_leaves(model(*args, **kwargs))
            except Exception as failure:
                raise fails_alone(self.captured.graph.name, failure) from failure
        outputs = [leaf for leaf in flat if isinstance(leaf, torch.Tensor)]
        roots = [outputs[index] for _, index in self.captured.tangents]
        random = torch.Generator().manual_seed(0)
        self.tangents = {}
        for (name, _), root in zip(self.captured.tangents, roots):
            if not root.requires_grad:
                raise DifferenceError(
                    f"an output of {self.captured.graph.name} requires grad in the captured graph, not in eager; "
                    "report the model with this message"
                )
            drawn = torch.randn(root.shape, generator=random, dtype=torch.float64)
            self.tangents[name] = self.given.get(name, drawn).to(root)
        with _unhooked(leaves.values()):
            found = torch.autograd.grad(
                roots, list(leaves.values()), list(self.tangents.values()), allow_unused=True
            )
        return outputs, dict(zip(leaves, found))

    def judge(self, outputs: Sequence[Any], gradients: Sequence[torch.Tensor | None]) -> None:
        """Compare a run (outputs of the graph, gradients in the order of `Captured.gradients`, and the updates it
        left in the live tensors) or raise DifferenceError. The capture is told eager's strides."""
        tell(self.captured, list(outputs), self.strides)
        graph = self.captured.graph
        paths = [graph.value[name].path for name, _ in self.captured.gradients]
        makers = dict(zip(paths, (graph.producer.get(name, "") for _, name in self.captured.gradients)))
        found = dict(zip(paths, gradients))
        for path, reference in self.gradients.items():
            ours, maker = found.get(path), makers.get(path, "")
            by = f" (made by {graph.task[maker].where})" if maker else ""
            if (ours is None) != (reference is None):
                which = (
                    "has no gradient in eager"
                    if reference is None
                    else "gets no gradient from the captured graph"
                )
                raise DifferenceError(
                    f"{path} {which}{by}: the model does something that capture does not see. "
                    'Pass check="never" to run anyway, or report the model with this message'
                )
        live = self.live()
        largest, kept = _largest(self.gradients.values()), _largest(self.updates.values())
        pairs: list[tuple[str, Any, Any, float]] = [
            (f"output {index}", a, b, 0.0) for index, (a, b) in enumerate(zip(outputs, self.outputs))
        ]
        pairs += [(graph.value[name].path, live[name], b, FLOOR * kept) for name, b in self.updates.items()]
        pairs += [
            (f"the gradient of {path}", found.get(path), b, FLOOR * largest)
            for path, b in self.gradients.items()
        ]
        loose = _loosest(graph)
        wrong = [
            (what, a, b, floor)
            for what, a, b, floor in pairs
            if b is not None and not error(a, b, floor) <= _allowed(b, loose)
        ]
        if not wrong:
            return
        wide = self.in_double()
        rounded: dict[str, Any] | None = None
        named = {f"output {i}": graph.producer.get(name, "") for i, name in enumerate(graph.outputs)}
        for what, a, b, floor in wrong:
            if what in wide and no_worse(a, b, wide[what], floor):
                continue
            rounded = self.shaken() if rounded is None else rounded
            if what in rounded and error(a, b, floor) <= SHAKEN * error(rounded[what], b, floor):
                continue
            by = named.get(what) or makers.get(what.removeprefix("the gradient of "), "")
            where = f" It is made by {graph.task[by].where}." if by else ""
            raise DifferenceError(
                f"{what} is not eager's: {difference(a, b, _allowed(b, loose))}.{where} "
                'Pass check="never" to run anyway, or report the model with this message'
            )

    def in_double(self) -> dict[str, Any]:
        """The same outputs and gradients by a copy of the model in float64; empty when there can be none."""
        if any(task.random for task in self.captured.graph.tasks):
            return {}
        return self._retold("in float64", lambda path, leaf: _alike(widen(apart(leaf)), leaf), widened)

    def shaken(self) -> dict[str, Any]:
        """The same with weights that differ in their last bits: as far as this, rounding alone takes the model from
        eager. Empty when there can be none."""
        draw = torch.Generator().manual_seed(0)

        def shaken(path: str, leaf: Any) -> Any:
            made = apart(leaf)
            if path and made.is_floating_point():
                _shaken(made, draw)
            return _alike(made, leaf)

        return self._retold("of its rounding", shaken, lambda model: model)

    def _retold(
        self, what: str, leaf: Callable[[str, Any], Any], make: Callable[[Any], Any]
    ) -> dict[str, Any]:
        """The same by the model as `make` makes it, with other arguments: `leaf(path, argument)`, the path "" for what
        has no gradient."""
        graph, now = self.captured.graph, generators()
        live = self.live()
        saved = {id(live[name]): tensor for name, tensor in self.before.items()}
        paths = {id(tensor): path for path, tensor in self.leaves.items()}
        made: dict[int, Any] = {}

        def told(item: Any) -> Any:
            if id(item) not in made:
                made[id(item)] = leaf(paths.get(id(item), ""), saved.get(id(item), item))
            return made[id(item)]

        restore(self.random)
        try:
            args, kwargs = pytree.tree_map(told, self.arguments)
            leaves = {path: made[id(tensor)] for path, tensor in self.leaves.items()}
            outputs, gradients = self._run(make(self.model), args, kwargs, leaves)
        except Exception as failure:
            log.info("no second opinion %s: %s", what, failure)
            return {}
        finally:
            restore(now)
        found = {f"output {index}": result.detach() for index, result in enumerate(outputs)}
        updates = {graph.value[name].path: made[id(live[name])].detach() for name in self.updates}
        return {**found, **updates, **{f"the gradient of {path}": g for path, g in gradients.items()}}


def _alike(made: Any, leaf: Any) -> Any:
    """A copy that requires grad where its original does."""
    return made.requires_grad_(leaf.requires_grad) if isinstance(made, torch.Tensor) else made


def _shaken(weight: torch.Tensor, draw: torch.Generator) -> None:
    """Change the last bits of a weight."""
    noise = torch.rand(weight.shape, generator=draw).to(weight) * 2 - 1
    with torch.no_grad():
        weight.addcmul_(weight, noise, value=4 * torch.finfo(weight.dtype).eps)


@contextmanager
def _unhooked(leaves: Iterable[torch.Tensor]) -> Iterator[None]:
    """Without the user's hooks of leaves, which are for the gradients of his own calls, not for those of a check."""
    held = [(hooks, dict(hooks)) for leaf in leaves if (hooks := leaf._backward_hooks)]
    try:
        for hooks, _ in held:
            hooks.clear()
        yield
    finally:
        for hooks, own in held:
            hooks.update(own)


def _largest(tensors: Iterable[torch.Tensor | None]) -> float:
    """The largest entry of all floating tensors."""
    return max((_scale(t) for t in tensors if t is not None and t.is_floating_point()), default=0.0)


def _scale(tensor: torch.Tensor) -> float:
    """The largest finite entry."""
    entries = tensor.detach().abs()
    return float(entries.nan_to_num(0.0, 0.0).max()) if tensor.numel() else 0.0


def _loosest(graph: Graph) -> float:
    """The error that the least precise dtype of a graph allows: autocast's gradients are float32, but no finer."""
    dtypes = {getattr(torch, value.dtype, None) for value in graph.values}
    return max((LIMIT[dtype] for dtype in dtypes if dtype in LIMIT), default=0.0)


def _allowed(reference: torch.Tensor, loose: float) -> float:
    """The largest error allowed against `reference`."""
    return max(limit(reference), loose) if reference.dtype in LIMIT else 0.0
