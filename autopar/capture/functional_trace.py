"""Functional graph of a region from a single run, for calls without autograd that only change values of their own.

AOTAutograd runs its function twice, with every tensor wrapped: once to find in-place changes and shared
memory, once to write a graph without them. One run suffices if each operator makes a new value, or changes in
place a value that nothing else sees.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from .operators import BY_PARTS
from .symbols import is_open
from .torch_private import (
    FakeTensor,
    TorchDispatchMode,
    below_autograd,
    kept_whole,
    memory,
)

_aten = torch.ops.aten
_META = ("nn_module_stack", "stack_trace", "source_fn_stack")
_NUMBERS = (int, float, bool)
_UNTOLD = frozenset({
    _aten.bernoulli.p, _aten.normal_functional.default,
    _aten.cudnn_batch_norm.default, _aten.miopen_batch_norm.default,
})  # fmt: skip
"""Random draws for which autopar has its own operators, and operators that change running statistics although
their schema does not say so."""
_FACTORY = re.compile(
    "(new_)?(zeros|ones|full|empty|eye|arange|linspace|logspace|scalar_tensor|rand|randn|randint|randperm)(_like)?$"
)


class _Unfit(Exception):
    """Raised if one run does not suffice: it changes a tensor visible elsewhere, or a size is symbolic."""


class _Recorder(TorchDispatchMode):  # type: ignore[misc]
    """Recorder of the operators that run in the block, as a graph of operators that make new tensors.
    `current`: the node of Dynamo's graph that runs them."""

    def __init__(self, given: Sequence[Any]) -> None:
        super().__init__()
        self.graph = fx.Graph()
        self.current: fx.Node | None = None
        self.node: dict[int, fx.Node] = {}
        # A new tensor could reuse the `id` of a released one.
        self.kept: list[torch.Tensor] = []
        self.sharing: dict[int | None, int] = {}
        self.inputs: list[fx.Node] = []
        self.constants: list[tuple[fx.Node, torch.Tensor]] = []
        for number, item in enumerate(given):
            node = self.graph.placeholder(f"arg{number}")
            node.meta["val"] = item
            self.inputs.append(node)
            if isinstance(item, torch.Tensor):
                if not isinstance(item, FakeTensor) or is_open(item):
                    raise _Unfit
                # The caller holds it too.
                self.see(item, node, 2)
            elif not isinstance(item, _NUMBERS):
                raise _Unfit

    def enter(self, node: fx.Node) -> None:
        """Note the node of Dynamo's graph that runs next."""
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            raise _Unfit(str(node.target))
        self.current = node

    def see(self, tensor: torch.Tensor, node: fx.Node, holders: int = 1) -> None:
        """Associate a node with a tensor."""
        self.node[id(tensor)] = node
        self.kept.append(tensor)
        place = memory(tensor)
        self.sharing[place] = self.sharing.get(place, 0) + holders

    def __torch_dispatch__(
        self, target: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if target is torch.ops.prim.device.default:
            return target(*args)
        if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten" or target in _UNTOLD:
            raise _Unfit(str(target))
        if target in BY_PARTS:
            with self:
                made = BY_PARTS[target](*args, **kwargs)
            if made is not NotImplemented:
                return made
        if kept_whole(target) is False:
            with self:
                return target.decompose(*args, **kwargs)
        if target is _aten.detach_.default:
            return args[0]
        if target._schema.is_mutable:
            return self.in_place(target, args, kwargs)
        if target is _aten.native_batch_norm.default:
            *given, training, momentum, eps = args
            if training or None in given[3:]:
                raise _Unfit("running statistics change, which no schema says")
            target, args = _aten._native_batch_norm_legit_no_training.default, (*given, momentum, eps)
        if target is _aten.lift_fresh.default:
            return self.constant(args[0])
        if target is _aten.detach.default and self.just_made(args[0]):
            return self.renamed(args[0])
        return self.record(target, args, kwargs)

    def constant(self, held: torch.Tensor) -> torch.Tensor:
        """Record a tensor that the code makes from numbers; return a copy."""
        if isinstance(held, FakeTensor):
            raise _Unfit
        name = f"_tensor_constant{len(self.constants)}"
        node, made = self.graph.create_node("get_attr", name, name=name), _aten.lift_fresh_copy.default(held)
        node.meta["val"] = torch.empty_like(made)
        self.constants.append((node, held))
        self.node[id(held)] = node
        return self.named(made, self.written(_aten.lift_fresh_copy.default, (held,), {}, made))

    def just_made(self, tensor: torch.Tensor) -> bool:
        """Return True for a factory's result that nothing else holds; torch returns it as another object."""
        node, asked = self.node.get(id(tensor)), self.current
        if node is None or asked is None or getattr(asked.target, "__name__", asked.target) == "detach":
            return False
        return (
            isinstance(node.target, torch._ops.OpOverload) and _FACTORY.match(node.target._opname) is not None
        )

    def renamed(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return another object for a tensor that nothing holds any more."""
        other = _aten.detach.default(tensor)
        self.node[id(other)] = self.node[id(tensor)]
        self.kept.append(other)
        return other

    def record(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record a call of an operator without in-place changes."""
        made = target(*args, **kwargs)
        node = self.written(target, args, kwargs, made)
        if isinstance(made, torch.Tensor):
            return self.named(made, node)
        if not isinstance(made, (tuple, list)):
            raise _Unfit
        parts = []
        for index, part in enumerate(made):
            if isinstance(part, torch.Tensor):
                item = self.graph.call_function(operator.getitem, (node, index))
                item.meta["val"] = part
                part = self.named(part, item)
            parts.append(part)
        return type(made)(parts)

    def named(self, made: torch.Tensor, node: fx.Node) -> torch.Tensor:
        """Return the result of a call; a returned argument becomes another object."""
        if not isinstance(made, FakeTensor) or is_open(made):
            raise _Unfit
        if id(made) in self.node:
            made = _aten.alias.default(made)
        self.see(made, node)
        return made

    def written(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], made: Any) -> fx.Node:
        """Add the node of a call."""

        def known(item: Any) -> Any:
            if not isinstance(item, torch.Tensor):
                return item
            if id(item) not in self.node:
                raise _Unfit
            return self.node[id(item)]

        given = fx.node.map_aggregate((args, kwargs), known)
        name = target._opname.removeprefix("__").removesuffix("__")
        node = self.graph.create_node("call_function", target, *given, name=name)
        node.meta["val"] = made
        if self.current is not None:
            node.meta.update((key, self.current.meta[key]) for key in _META if key in self.current.meta)
        return node

    def in_place(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record a change in place as the operator that makes a new tensor, if nothing sees the old one."""
        tensor, twin = args[0] if args else None, _twin(target)
        if twin is None or not isinstance(tensor, torch.Tensor) or id(tensor) not in self.node:
            raise _Unfit
        if self.sharing[memory(tensor)] != 1:
            raise _Unfit
        made = twin(*args, **kwargs)
        alike = (made.shape, made.dtype, made.stride()) == (tensor.shape, tensor.dtype, tensor.stride())
        if not alike or id(made) in self.node or memory(made) in self.sharing:
            raise _Unfit
        self.node[id(tensor)] = self.written(twin, args, kwargs, made)
        return tensor


def _twin(target: Any) -> Any:
    """Return the out-of-place equivalent of an operator that changes its first argument; None if there is none."""
    schema, name = target._schema, target._opname
    written = [argument for argument in schema.arguments if argument.is_write]
    if target is _aten.copy_.default or not name.endswith("_") or written != [schema.arguments[0]]:
        return None
    if torch.Tag.inplace_view in target.tags or torch.Tag.nondeterministic_seeded in target.tags:
        return None
    twin = getattr(getattr(_aten, name[:-1], None), target._overloadname, None)
    if twin is None or kept_whole(twin) is False:
        return None
    ours, theirs = ([(each.name, each.kwarg_only) for each in op._schema.arguments] for op in (target, twin))
    return twin if ours == theirs else None


def record(
    given: Sequence[Any], run: Callable[[Callable[[fx.Node], None]], Sequence[Any]]
) -> tuple[fx.Graph, tuple[fx.Node, ...], tuple[fx.Node, ...], tuple[tuple[fx.Node, torch.Tensor], ...]]:
    """Trace `run` on these fake tensors; return the graph, its inputs, outputs and constants.

    `run` is called with a function that takes each node of Dynamo's graph before it runs. Raises an error if one run
    does not suffice, and torch's errors.
    """
    fakes = [item for item in given if isinstance(item, FakeTensor)]
    if not fakes:
        raise _Unfit
    recorder = _Recorder(given)
    with below_autograd(), fakes[0].fake_mode, recorder:
        found = run(recorder.enter)
    if not all(isinstance(item, torch.Tensor) and id(item) in recorder.node for item in found):
        raise _Unfit
    outputs = tuple(recorder.node[id(item)] for item in found)
    return recorder.graph, tuple(recorder.inputs), outputs, tuple(recorder.constants)
