"""Tracing of Dynamo's graph to one functional graph of ATen operators by AOTAutograd.

Without the backward, composite operators such as `linear` stay whole. With it, they are differentiated, with
composites of ours for operators that a CPU would decompose (`ops.composites.rules`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.overrides import TorchFunctionMode

from ..errors import CaptureError
from ..ops import by_name
from ..ops.composites import recurrent
from ..ops.composites.define import lowered, standing_in
from ..ops.composites.rules import DRAWN, FUNCTIONS, IN_PLACE, RULES
from .autocast import enabled
from .dynamo_private import differentiated, flattened
from .operators import BY_PARTS, draws
from .refusals import Untraceable, assigned, ordered, unannounced
from .source_locations import at_line
from .torch_private import INFERENCE_MODE, OpOverload, autograd_keys, differentiates, pytree
from .trace_state import restored_state

_aten = torch.ops.aten
_DROPOUT = _aten.dropout.default
_ATTENTION = _aten.scaled_dot_product_attention.default
_ASSERTS = (_aten._assert_async.default, _aten._assert_async.msg)


@dataclass(frozen=True)
class _Traced:
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
    tangents: tuple[tuple[int, fx.Node], ...] = ()
    gradients: tuple[tuple[int, fx.Node], ...] = ()
    updates: tuple[tuple[int, fx.Node], ...] = ()


def trace(
    module: fx.GraphModule, given: Sequence[Any], names: Sequence[str], wanted: Sequence[int], training: bool
) -> _Traced:
    """Trace a module for inputs like `given`: fake tensors and sizes, called `names`; `wanted`: indices of tensors to
    return.

    Each output of a differentiated graph has its own memory and therefore its own gradient. Raises
    Untraceable for a call that no graph can hold, and torch's errors.
    """
    keys = autograd_keys({item.device.type for item in given if isinstance(item, torch.Tensor)})
    rules = {**DRAWN, **RULES, _DROPOUT: BY_PARTS[_DROPOUT]} if training else DRAWN
    derives = training or differentiates(module.graph)
    # Torch's own derivatives need the caller's grad mode even where no output has a gradient.
    run = _Run(module, given, wanted, training, derives and torch.is_grad_enabled())
    with standing_in(rules, keys), restored_state(), unannounced():
        try:
            if derives:
                made = differentiated(run, tuple(given), IN_PLACE, training)
            else:
                made = flattened(run, tuple(given), IN_PLACE)
                _masks_once(made.graph)
        except AssertionError as error:
            raise assigned(module.graph) or error from None
    return _meant(made, given, names)


def _masks_once(graph: fx.Graph) -> None:
    """Let the attentions of a functional graph that share a boolean mask read one tensor with 0 where it is true and
    -inf elsewhere.

    `scaled_dot_product_attention` makes them anew in each call, by three kernels. In single and double precision only:
    for lower ones, cuDNN gets other numbers than -inf.
    """
    # Numbers become tensors of the default dtype.
    default = torch.get_default_dtype()
    if default not in (torch.float32, torch.float64):
        return
    readers: dict[fx.Node, list[fx.Node]] = {}
    for node in graph.find_nodes(op="call_function", target=_ATTENTION):
        given = by_name(node.target, node.args, node.kwargs)
        mask, dtype = given["attn_mask"], given["query"].meta["val"].dtype
        if isinstance(mask, fx.Node) and mask.meta["val"].dtype is torch.bool and dtype is default:
            readers.setdefault(mask, []).append(node)
    for mask, nodes in readers.items():
        if len(nodes) > 1:
            _as_numbers(graph, mask, nodes)


def _as_numbers(graph: fx.Graph, mask: fx.Node, readers: list[fx.Node]) -> None:
    """Insert the numbers of a mask before their first reader, whose place in the user's code they get."""
    value = mask.meta["val"]
    with graph.inserting_before(readers[0]):
        numbers = graph.call_function(_aten.where.Scalar, (mask, 0.0, -math.inf))
    with value.fake_mode:
        numbers.meta = {**readers[0].meta, "val": _aten.where.Scalar(value, 0.0, -math.inf)}
    for node in readers:
        node.replace_input_with(mask, numbers)


def _meant(made: fx.GraphModule, given: Sequence[Any], names: Sequence[str]) -> _Traced:
    graph = made.graph
    if error := ordered(graph):
        raise error
    held = [(node, getattr(made, str(node.target))) for node in graph.find_nodes(op="get_attr")]
    inputs: dict[int, fx.Node] = {}
    outputs: dict[int, fx.Node] = {}
    tangents, gradients, updates = [], [], []
    for node in graph.find_nodes(op="placeholder"):
        kind, index = _meaning(node.meta["desc"])
        if kind == "PlainAOTInput":
            inputs[index] = node
        elif kind == "PlainAOTOutput":
            tangents.append((index, node))
        else:
            raise through(names[index], _renormed(graph, index))
    end: Any = graph.output_node()
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
    return _Traced(
        graph,
        tuple(inputs[index] for index in range(len(given))),
        tuple(outputs[index] for index in range(len(outputs))),
        tuple((node, tensor) for node, tensor in held if isinstance(tensor, torch.Tensor)),
        tuple(tangents),
        tuple(gradients),
        tuple(updates),
    )


class _Run(nn.Module):
    """Interpreter of a captured graph. It runs node by node, so traced nodes know the module and line of each."""

    def __init__(
        self,
        module: fx.GraphModule,
        given: Sequence[Any],
        wanted: Sequence[int],
        differentiated: bool,
        grad_mode: bool,
    ) -> None:
        super().__init__()
        self.captured, self.wanted, self.differentiated = (module,), wanted, differentiated
        self.grad_mode = grad_mode
        self.weights = [differentiated and _cast_once(item) for item in given]

    def forward(self, *tensors: Any) -> Any:
        weights = [tensor for tensor, once in zip(tensors, self.weights) if once]
        casting = _Autocast(weights if self.differentiated else None)
        with torch.set_grad_enabled(self.grad_mode), casting as casts:
            results = _Nodes(self.captured[0], casts, self.differentiated).run(*tensors)
        outputs = [results[place] for place in self.wanted]
        return tuple(item.clone() for item in outputs) if self.differentiated else tuple(outputs)


class _Nodes(fx.Interpreter):
    def __init__(self, module: fx.GraphModule, casts: _Autocast, differentiated: bool) -> None:
        super().__init__(module)
        self.casts, self.differentiated, self.extra_traceback = casts, differentiated, False

    def run_node(self, node: fx.Node) -> Any:
        try:
            return super().run_node(node)
        except CaptureError as error:
            raise type(error)(f"{error}{at_line(node)}") from error

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if target in INFERENCE_MODE and not self.differentiated:
            # Nothing has a gradient here, and torch cannot trace changes in place within inference mode.
            return None
        result = super().call_function(FUNCTIONS.get(target, target), args, kwargs)
        if getattr(target, "__name__", "") == "_exit_autocast":
            self.casts.forget()
        return result


def _cast_once(item: Any) -> bool:
    weight = isinstance(item, torch.Tensor) and item.dtype is torch.float32 and item.requires_grad
    return bool(weight and item.is_leaf and not item._is_view())


def live(graph: fx.Graph, results: Iterable[Any], forward: bool = False) -> list[fx.Node]:
    """Return the calls that a result needs, that draw random numbers, which advances the generator, or that assert
    something of values. With `forward`, only draws and assertions of the forward of a joint graph count."""
    needed = {node for node in results if isinstance(node, fx.Node)}
    calls = []
    for node in reversed(graph.nodes):
        if node.op == "call_function" and (node in needed or _effective(node, forward)):
            needed.update(node.all_input_nodes)
            calls.append(node)
    return calls[::-1]


def _effective(node: fx.Node, forward: bool) -> bool:
    # A backward that the user wrote has no tag.
    counts = not forward or node.meta.get("partitioner_tag") == "is_forward"
    return counts and (node.target in _ASSERTS or _draws(node))


def _draws(node: fx.Node) -> bool:
    if not isinstance(node.target, OpOverload):
        return False
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda given: given.meta.get("val"))
    return draws(node.target, args, kwargs)


def _renormed(graph: fx.Graph, index: int) -> bool:
    """Return True if an embedding with `max_norm` computes the new value of an input."""
    end: Any = graph.output_node()
    changed = ("InputMutationAOTOutput", index)
    return any(
        node is not None
        and node.target is _aten.embedding_renorm.default
        and _meaning(description) == changed
        for node, description in zip(end.args[0], end.meta["desc"])
    )


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


def through(name: str, renormed: bool = False) -> Untraceable:
    """Return the error for a tensor changed in place where the gradient passes through the change;
    `renormed`: an embedding with `max_norm` changes it."""
    if renormed:
        return Untraceable(
            f"an embedding with max_norm changes {name} in the forward, which requires grad; build it without max_norm "
            "and renormalise the weight after each step: with torch.no_grad(): weight.renorm_(2, 0, max_norm)"
        )
    return Untraceable(
        f"forward changes {name} in place, which requires grad or is given what does; change a clone of it, or "
        "give it a value that is detached"
    )


# Autocast: operators whose arguments are cast during a trace, and casts that are made once
# -------------------------------------------------------------------------------------------------

_PRODUCTS = {
    "chain_matmul", "einsum", "inner", "linalg_matrix_power", "linalg_multi_dot", "matrix_power", "tensordot",
}  # fmt: skip
_RECURRENT = {"gru", "lstm", "rnn_relu", "rnn_tanh"}


class _Autocast(TorchFunctionMode):
    """Torch function mode that casts the arguments of operators kept whole, as autocast casts those of their parts.

    Autocast casts the inputs of listed operators. `einsum`, `lstm` and others are not listed but composed of
    listed ones. If operators are kept whole (`weights` is None), such a composite would be recorded without
    casts and have another dtype than in eager.

    Each of the `weights` is cast once until the outermost autocast region ends, so gradients of all uses are
    summed in the low precision. Autocast's own cache holds only leaf tensors, and the inputs of a traced
    module are none.
    """

    def __init__(self, weights: Sequence[torch.Tensor] | None) -> None:
        self.whole, self.weights = weights is None, {id(tensor) for tensor in weights or ()}
        self.kept: dict[tuple[Any, ...], torch.Tensor] = {}

    def __torch_function__(
        self, function: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        arguments, name = (tuple(args), kwargs or {}), getattr(function, "__name__", "")
        if self.whole and (name in _PRODUCTS or name in _RECURRENT):
            first = [leaf for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, torch.Tensor)][:1]
            kind = first[0].device.type if first else ""
            # On a CPU, autocast lowers only the products within a GRU, not its results.
            if name == "lstm" and kind == "cpu" and enabled(kind) and recurrent.projected(arguments[0]):
                return recurrent.projecting(function, kind, arguments[0])
            if kind and enabled(kind) and not (name == "gru" and kind == "cpu"):
                goal = (recurrent.layers if name in _RECURRENT else recurrent.products)(kind, (*first,))
                arguments = pytree.tree_map_only(
                    torch.Tensor, lambda tensor: lowered(tensor, kind, goal), arguments
                )
        elif self.weights and name in _LOWERED:
            arguments = pytree.tree_map(self._cast, arguments)
        return function(*arguments[0], **arguments[1])

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
