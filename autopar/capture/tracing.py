"""Tracing of Dynamo's graph to one functional graph of ATen operators, with or without its backward.

Without: it runs once and is recorded, composite operators kept whole (`functional_trace`); if one run does not
suffice, AOTAutograd flattens it to the same. With: AOTAutograd differentiates it, with composites for operators that a
CPU would decompose (`ops.composites.rules`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from ..ops.composites.rules import DRAWN, FUNCTIONS, IN_PLACE, RULES, standing_in
from .autocast import enabled
from .dynamo_private import autograd_keys, differentiated, flattened
from .functional_trace import Recorder, Unfit, record
from .refusals import Untraceable

_aten = torch.ops.aten
log = logging.getLogger("autopar")


@dataclass(frozen=True)
class Traced:
    """A functional graph of n inputs and m outputs.

    inputs: the n placeholders.
    outputs: the m results.
    constants: tensors that the code makes from numbers (`torch.tensor([1.0, 2.0])`), each with the node that reads it.
    tangents: (index of an output, placeholder of its gradient).
    gradients: (index of an input, its gradient).
    updates: (index of an input changed in place, its new value).
    """

    graph: fx.Graph
    inputs: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]
    constants: tuple[tuple[fx.Node, torch.Tensor], ...]
    tangents: tuple[tuple[int, fx.Node], ...]
    gradients: tuple[tuple[int, fx.Node], ...]
    updates: tuple[tuple[int, fx.Node], ...]


def trace(
    module: fx.GraphModule, given: Sequence[Any], names: Sequence[str], wanted: Sequence[int], training: bool
) -> Traced:
    """Trace a module for inputs like `given`: fake tensors and sizes, called `names`; `wanted`: indices of tensors to
    return.

    Each output of a differentiated graph has its own memory, so that it has its own gradient. Raises Untraceable for
    what no graph can hold, and torch's errors.
    """
    if not training:
        try:
            return _once(module, given, wanted)
        except Exception as error:
            # Whatever it is, AOTAutograd can do it too, or says better what is wrong.
            log.debug("traced by way of AOTAutograd: %s: %s", type(error).__name__, error)
    keys = autograd_keys({item.device.type for item in given if isinstance(item, torch.Tensor)})
    rules = {**DRAWN, **RULES} if training else DRAWN
    run = _Run(module, given, wanted, training)
    with standing_in(rules, keys):
        made = (differentiated if training else flattened)(run, tuple(given), IN_PLACE)
    return _meant(made, given, names)


def _once(module: fx.GraphModule, given: Sequence[Any], wanted: Sequence[int]) -> Traced:
    """Trace a call without autograd in one run. Raises any error that prevents it."""

    def run(recorder: Recorder) -> list[Any]:
        nodes = _Nodes(module, _Casts([]))
        nodes.recorder = recorder
        with _Lowered():
            made = nodes.run(*given)
        return [made[place] for place in wanted]

    recorder, outputs = record(given, run)
    return Traced(recorder.graph, tuple(recorder.inputs), outputs, tuple(recorder.constants), (), (), ())


def _meant(made: fx.GraphModule, given: Sequence[Any], names: Sequence[str]) -> Traced:
    graph = made.graph
    inputs: dict[int, fx.Node] = {}
    tangents: list[tuple[int, fx.Node]] = []
    constants: list[tuple[fx.Node, torch.Tensor]] = []
    for node in graph.nodes:
        if node.op == "get_attr":
            held = getattr(graph.owning_module, node.target)
            if isinstance(held, torch.Tensor):
                constants.append((node, held))
        if node.op == "placeholder":
            kind, index = _meaning(node.meta["desc"])
            if kind == "PlainAOTInput":
                inputs[index] = node
            elif kind == "PlainAOTOutput":
                tangents.append((index, node))
            else:
                raise through(names[index])
    end = next(iter(reversed(graph.nodes)))
    outputs: dict[int, fx.Node] = {}
    gradients, updates = [], []
    for node, description in zip(end.args[0], end.meta["desc"]):
        if node is None:
            continue
        kind, index = _meaning(description)
        if kind == "PlainAOTOutput":
            own = tangents and node.target is _aten.clone.default
            outputs[index] = node.args[0] if own else node
        elif kind == "InputMutationAOTOutput":
            if tangents and given[index].requires_grad:
                raise through(names[index])
            updates.append((index, node))
        else:
            if node.meta["val"].layout is not torch.strided:
                raise Untraceable(
                    f"the gradient of {names[index]} is sparse, of which no plan knows the size; "
                    "make its layer with sparse=False"
                )
            gradients.append((index, node))
    return Traced(
        graph,
        tuple(inputs[index] for index in range(len(given))),
        tuple(outputs[index] for index in range(len(outputs))),
        tuple(constants),
        tuple(tangents),
        tuple(gradients),
        tuple(updates),
    )


class _Run(nn.Module):
    """Interpreter of a captured graph, node by node, so that traced nodes know the module and line of each."""

    def __init__(
        self, module: fx.GraphModule, given: Sequence[Any], wanted: Sequence[int], differentiated: bool
    ) -> None:
        super().__init__()
        self.captured, self.wanted, self.differentiated = (module,), wanted, differentiated
        self.weights = [differentiated and _cast_once(item) for item in given]

    def forward(self, *tensors: Any) -> Any:
        casts = _Casts([tensor for tensor, once in zip(tensors, self.weights) if once])
        with casts if self.differentiated else _Lowered():
            made = _Nodes(self.captured[0], casts).run(*tensors)
        found = [made[place] for place in self.wanted]
        return tuple(item.clone() for item in found) if self.differentiated else tuple(found)


class _Nodes(fx.Interpreter):
    def __init__(self, module: fx.GraphModule, casts: _Casts) -> None:
        super().__init__(module)
        self.casts = casts
        self.recorder: Recorder | None = None

    def run_node(self, node: fx.Node) -> Any:
        if self.recorder is not None:
            if isinstance(node.target, torch._ops.HigherOrderOperator):
                raise Unfit(str(node.target))
            self.recorder.current = node
        return super().run_node(node)

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        made = super().call_function(FUNCTIONS.get(target, target), args, kwargs)
        if getattr(target, "__name__", "") == "_exit_autocast":
            self.casts.forget()
        return made


def _cast_once(item: Any) -> bool:
    weight = isinstance(item, torch.Tensor) and item.dtype is torch.float32 and item.requires_grad
    return bool(weight and item.is_leaf and not item._is_view())


def _meaning(description: Any) -> tuple[str, int]:
    """Return the kind of a placeholder or result, and the index of its input or output."""
    for relation in ("output", "grad_of", "mutated_input"):
        inner = getattr(description, relation, None)
        if inner is not None:
            kind, index = _meaning(inner)
            return (type(description).__name__ if relation != "output" else kind), index
    kind = type(description).__name__
    if kind.startswith("SyntheticBase"):
        raise Untraceable(
            "a tensor is changed in place that shares its memory with another; pass a copy (clone)"
        )
    if kind not in ("PlainAOTInput", "PlainAOTOutput"):
        raise Untraceable(f"differentiation makes a {kind} of it, which no graph can hold")
    return kind, description.idx


def through(name: str) -> Untraceable:
    """Return the error about a tensor that is changed in place with a gradient through the change."""
    return Untraceable(
        f"forward changes {name} in place, which requires grad or is given what does; change a clone of it, or "
        "give it a value that is detached"
    )


# Autocast: what is lowered while a call is traced, and which casts are made once
# -------------------------------------------------------------------------------------------------

_PRODUCTS = {
    "chain_matmul", "einsum", "inner", "linalg_matrix_power", "linalg_multi_dot", "matrix_power", "tensordot",
}  # fmt: skip
_RECURRENT = {"gru", "lstm", "rnn_relu", "rnn_tanh"}


class _Lowered(TorchFunctionMode):
    """Calls that autocast would cast internally, cast from outside.

    Autocast casts the inputs of listed operators. `einsum`, `lstm` and others are not listed but composed of some that
    are: kept whole, they would be recorded without casts and have another dtype than in eager.
    """

    def __torch_function__(
        self, function: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        if name in _PRODUCTS or name in _RECURRENT:
            leaves = pytree.tree_leaves((args, kwargs))
            kind = next((leaf.device.type for leaf in leaves if isinstance(leaf, torch.Tensor)), "")
            # On a CPU only the products within a GRU are lowered, not what it hands on.
            if kind and enabled(kind) and not (name == "gru" and kind == "cpu"):
                goal = torch.get_autocast_dtype(kind)
                args, kwargs = pytree.tree_map(lambda leaf: _cast(leaf, kind, goal), (args, kwargs))
        return function(*args, **kwargs)


def _cast(leaf: Any, kind: str, goal: torch.dtype) -> Any:
    if not isinstance(leaf, torch.Tensor) or leaf.device.type != kind:
        return leaf
    return leaf.to(goal) if leaf.is_floating_point() and leaf.dtype is not torch.float64 else leaf


class _Casts(TorchFunctionMode):
    """Autocast's cache of cast weights until its outermost region ends, so that gradients of all uses are summed in
    the low precision.

    Autocast caches only leaf tensors, which the inputs of a traced module are not.
    """

    def __init__(self, weights: list[Any]) -> None:
        self.weights = {id(tensor) for tensor in weights}
        self.kept: dict[tuple[Any, ...], torch.Tensor] = {}

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.weights and getattr(function, "__name__", "") in _LOWERED:
            args, kwargs = pytree.tree_map(self._cast, (tuple(args), dict(kwargs)))
        return function(*args, **kwargs)

    def forget(self) -> None:
        """Note the end of an autocast region: the outermost one clears the cache."""
        if not torch.is_autocast_enabled("cpu") and not any(enabled(key[3]) for key in self.kept):
            self.kept.clear()

    def _cast(self, item: Any) -> Any:
        if id(item) not in self.weights or not enabled(item.device.type):
            return item
        kind = item.device.type
        dtype = torch.get_autocast_dtype(kind)
        key = (id(item), dtype, torch.is_grad_enabled(), kind)
        if key not in self.kept:
            self.kept[key] = item.to(dtype)
        return self.kept[key]


_LOWERED = frozenset({
    "linear", "matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "mv", "addmm", "addmv", "addr", "addbmm", "baddbmm",
    "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
    "convolution", "prelu",
})  # fmt: skip
"""Functions whose weights autocast casts once and caches."""
