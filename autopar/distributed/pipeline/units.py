"""The units of a model: its operators in order, as `torch.export` captures them, what each cut sends, and what later
calls must have in common with the captured one."""

from __future__ import annotations

import inspect
import operator
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import fx, nn
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

from ...errors import CaptureError, PlanError


@dataclass(frozen=True, eq=False)
class Units:
    """A captured model as a chain: unit i is `nodes[i]`, an operator and the nodes that select parts of its result, or
    several operators where no cut may be between them.

    anywhere: nodes that every stage computes for itself: they depend only on inputs and buffers and need no gradient,
    such as masks and positions.
    inputs: the model's inputs, by node name.
    arguments: what a call like the captured one gives to each (`_arguments_like`).
    rows: size of their first axis, that of one micro-batch.
    """

    model: nn.Module
    graph: fx.GraphModule
    nodes: tuple[tuple[fx.Node, ...], ...]
    anywhere: frozenset[fx.Node]
    inputs: tuple[fx.Node, ...]
    arguments: Callable[[Sequence[Any], Mapping[str, Any]], dict[str, Any]]
    rows: int
    out_spec: Any
    unit: Mapping[fx.Node, int] = field(repr=False)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the units, each that of its first operator."""
        return tuple(nodes[0].name for nodes in self.nodes)

    @cached_property
    def output(self) -> fx.Node:
        """The output node."""
        return next(node for node in reversed(self.graph.graph.nodes) if node.op == "output")

    @cached_property
    def crossing(self) -> list[list[fx.Node]]:
        """For each cut, in order, the tensors made before the unit of that number and read by it or a later
        one. The last unit counts as the reader of the model's outputs."""
        tensors: list[list[fx.Node]] = [[] for _ in range(len(self.nodes) + 1)]
        # Nodes in `anywhere` need no place: they read nothing that a unit makes.
        place = {**self.unit, self.output: len(self.nodes) - 1}
        for at, nodes in enumerate(self.nodes):
            for node in nodes:
                if isinstance(node.meta.get("val"), torch.Tensor):
                    last = max((place[user] for user in node.users), default=at)
                    for cut in range(at + 1, last + 1):
                        tensors[cut].append(node)
        return tensors

    def needed(self, nodes: Sequence[fx.Node], known: Sequence[fx.Node]) -> list[fx.Node]:
        """Return, in order, the inputs and state that `nodes` read, directly or through nodes of `anywhere`, except
        those in `known`."""
        known_nodes, read = set(known), set[fx.Node]()
        waiting = [source for node in nodes for source in node.all_input_nodes]
        while waiting:
            node = waiting.pop()
            if node in known_nodes or node in read:
                continue
            read.add(node)
            waiting += node.all_input_nodes
        return [node for node in self.graph.graph.nodes if node in read]

    @property
    def trains(self) -> str:
        """The name of the first operator that does otherwise in training than in evaluation; "" if there is none."""
        return next((node.name for node in self.graph.graph.nodes if _trains(node)), "")

    def tensor(self, node: fx.Node) -> torch.Tensor:
        """Return the parameter, buffer or constant of a node: the model's own object if it has one."""
        name = str(node.target)
        owner, _, last = name.rpartition(".")
        for root in (self.model, self.graph):
            try:
                tensor = getattr(root.get_submodule(owner), last)
            except AttributeError:
                continue
            if isinstance(tensor, torch.Tensor):
                return tensor
        raise CaptureError(
            f"{type(self.model).__name__}: {name} is not a parameter, buffer or constant of it"
        )

    @cached_property
    def paths(self) -> dict[int, list[str]]:
        """All state dict paths of each parameter and buffer of the model, by `id` of the tensor."""
        paths: dict[int, list[str]] = {}
        for path, tensor in self.model.state_dict(keep_vars=True).items():
            paths.setdefault(id(tensor), []).append(path)
        return paths

    def state(self, nodes: Sequence[fx.Node]) -> list[torch.Tensor]:
        """Return the parameters, buffers and constants that nodes read, each path once."""
        sources = (source for node in nodes for source in node.all_input_nodes if source.op == "get_attr")
        return [self.tensor(source) for source in {str(source.target): source for source in sources}.values()]


def rows_of(batch: Any) -> int:
    """Return the size of the first axis of all tensors in the inputs. Raises CaptureError if they differ."""
    leaves = [leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
    if not leaves or any(leaf.dim() == 0 or leaf.shape[0] != leaves[0].shape[0] for leaf in leaves):
        raise CaptureError(
            "every tensor among the inputs needs the rows of the batch along its first axis, so that micro-batches "
            f"can be cut; got {', '.join(str(list(leaf.shape)) for leaf in leaves) or 'no tensor'}. What is the same "
            "for all rows, such as a mask, belongs into the model, as a buffer"
        )
    return leaves[0].shape[0]


def units(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Units:
    """Capture a model as a chain, for inputs of the size of one micro-batch.

    Sizes are fixed to those of the inputs. Raises CaptureError, with the message of `torch.export`, if the model
    cannot be captured as one graph.
    """
    args, kwargs = bound(model, args, kwargs)
    rows = rows_of((args, kwargs))
    name = type(model).__name__
    try:
        graph = torch.export.export(model, args, kwargs, strict=False).module(check_guards=False)
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise CaptureError(
            f"{name}: torch.export cannot capture it as one graph, which stages are cut from: {lines[0]}. Train it "
            "with DistributedDataParallel(autopar.compile(model, devices)), which needs no graph"
        ) from error
    assert isinstance(graph, fx.GraphModule)
    _unwrapped(graph, name)
    anywhere = _anywhere(graph)
    chain: list[list[fx.Node]] = []
    at: dict[fx.Node, int] = {}
    for node in graph.graph.nodes:
        if node.op != "call_function" or node in anywhere:
            continue
        if node.target is operator.getitem and node.args[0] in at:
            at[node] = at[node.args[0]]
            chain[at[node]].append(node)
        else:
            at[node] = len(chain)
            chain.append([node])
    if not chain:
        raise CaptureError(
            f"{name}: there is nothing to cut into stages: no operation of it needs its inputs"
        )
    chain = _uncut(graph, chain)
    at = {node: number for number, nodes in enumerate(chain) for node in nodes}
    inputs = tuple(node for node in graph.graph.nodes if node.op == "placeholder")
    spec = graph.graph._codegen.pytree_info.out_spec  # type: ignore[attr-defined]
    arguments = _arguments_like(model, args, kwargs, [node.name for node in inputs])
    return Units(model, graph, tuple(map(tuple, chain)), anywhere, inputs, arguments, rows, spec, at)


_BLOCKS = {"wrap_with_set_grad_enabled": 1, "wrap_with_autocast": 4}
"""Calls of a block of operators in another mode, and the place of the block among their arguments."""


def _unwrapped(graph: fx.GraphModule, name: str) -> None:
    """Replace blocks without gradients, or without autocast, by their operators, so that stages can be cut there.

    Raises CaptureError for a block with autocast.
    """
    while call := next((node for node in graph.graph.nodes if str(node.target) in _BLOCKS), None):
        at = _BLOCKS[str(call.target)]
        if at > 1 and call.args[2]:
            raise CaptureError(
                f"{name}: its forward enters torch.autocast, which a stage cannot do for a part of its operators; "
                "enter it around distribute and the steps instead"
            )
        holder, *inputs = call.args[at:]
        block: Any = graph.get_submodule(str(holder.target))
        copies, ends = dict[fx.Node, Any](), tuple[fx.Node, ...]()
        with graph.graph.inserting_before(call):
            if at == 1 and not call.args[0]:
                inputs = [_detached(graph.graph, one) if isinstance(one, fx.Node) else one for one in inputs]
            for node in block.graph.nodes:
                if node.op == "placeholder":
                    copies[node] = inputs.pop(0)
                elif node.op == "output":
                    ends = tuple(map_arg(node.args[0], copies.__getitem__))
                else:
                    copies[node] = graph.graph.node_copy(node, copies.__getitem__)
                    if node.op == "get_attr":
                        copies[node].target = f"{holder.target}.{node.target}"
        for user in [*call.users]:
            user.replace_all_uses_with(ends[user.args[1]])
            graph.graph.erase_node(user)
        graph.graph.erase_node(call)
        if not holder.users:
            graph.graph.erase_node(holder)
    graph.recompile()


def _detached(graph: fx.Graph, node: fx.Node) -> fx.Node:
    detached = graph.call_function(torch.ops.aten.detach.default, (node,))
    detached.meta = dict(node.meta)
    return detached


def _uncut(graph: fx.GraphModule, chain: Sequence[Sequence[fx.Node]]) -> list[list[fx.Node]]:
    """Return a chain with units joined where no cut may be between them.

    Each tensor is sent as a copy: a write to one that shares its memory with others would not be seen in these. And
    torch sends no gradients of complex numbers.
    """
    place = {node: number for number, nodes in enumerate(chain) for node in nodes}
    every, end = graph.graph.nodes, len(chain) - 1
    last = {node: max((place.get(user, end) for user in node.users), default=-1) for node in every}
    roots, writes_at = _roots(graph), defaultdict[fx.Node, list[int]](list)
    for node, number in place.items():
        for source in written(node):
            writes_at[roots[source]].append(number)

    def complex_(node: fx.Node) -> bool:
        return isinstance(val := node.meta.get("val"), torch.Tensor) and val.is_complex()

    candidates = [node for node in place if roots[node] in writes_at or complex_(node)]

    def refused(cut: int) -> bool:
        crossing = [node for node in candidates if place[node] < cut <= last[node]]
        shared = Counter(roots[node] for node in crossing)
        # Inputs and state are not sent: each process has its own.
        return any(map(complex_, crossing)) or any(
            (max(numbers) >= cut and shared[root] > (root in place))
            or (root.op == "placeholder" and min(numbers) < cut <= last[root])
            for root, numbers in writes_at.items()
        )

    joined: list[list[fx.Node]] = []
    for number, nodes in enumerate(chain):
        if joined and refused(number):
            joined[-1] += nodes
        else:
            joined.append([*nodes])
    return joined


def _roots(graph: fx.GraphModule) -> dict[fx.Node, fx.Node]:
    """Return, for each node, the one whose memory it shares by the schemas of operators: itself, or that of which it
    is a view or the result of a write."""
    roots: dict[fx.Node, fx.Node] = {}
    for node in graph.graph.nodes:
        source: Any = node.args[0] if node.target is operator.getitem else None
        schema = getattr(node.target, "_schema", None)
        if schema is not None and any(result.alias_info for result in schema.returns):
            arguments = _arguments(node)
            source = next((arguments.get(each.name) for each in schema.arguments if each.alias_info), None)
        roots[node] = roots[source] if isinstance(source, fx.Node) else node
    return roots


def _anywhere(graph: fx.GraphModule) -> frozenset[fx.Node]:
    """Return operators that read only inputs, buffers and constants, are cheap to recompute and write nothing."""
    parameters = {name for name, _ in graph.named_parameters(remove_duplicate=False)}
    roots = _roots(graph)
    touched = {roots[source] for node in graph.graph.nodes for source in written(node)}
    # A stage that computed such a value again would lack what was written into it, or into a view of it.
    written_to = {node for node, root in roots.items() if root in touched}
    cheap: set[fx.Node] = set()
    for node in graph.graph.nodes:
        if node.op != "call_function" or writes(node) or _draws(node):
            continue
        plain = all(
            (source.op == "placeholder" and not _floating(source) and source not in written_to)
            or (source.op == "get_attr" and source.target not in parameters and source not in written_to)
            or source in cheap
            for source in node.all_input_nodes
        )  # fmt: skip
        if plain and node not in written_to:
            cheap.add(node)
    return frozenset(cheap)


def _floating(node: fx.Node) -> bool:
    return isinstance(val := node.meta.get("val"), torch.Tensor) and val.is_floating_point()


def writes(node: fx.Node) -> bool:
    """Return True if an operator writes to its inputs."""
    schema = getattr(node.target, "_schema", None)
    return bool(schema is not None and schema.is_mutable)


def written(node: fx.Node) -> list[fx.Node]:
    """Return the inputs that an operator writes to."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.is_mutable:
        return []
    arguments = _arguments(node)
    named = [each.name for each in schema.arguments if each.alias_info and each.alias_info.is_write]
    leaves = pytree.tree_leaves([arguments.get(name) for name in named])
    return [leaf for leaf in leaves if isinstance(leaf, fx.Node)]


def _arguments(node: fx.Node) -> dict[str, Any]:
    """Return the arguments of an operator by name."""
    names = [each.name for each in node.target._schema.arguments]  # type: ignore[union-attr]
    return {**dict(zip(names, node.args)), **node.kwargs}


def _trains(node: fx.Node) -> bool:
    """Return True if an operator drops values, or moves statistics, as in training."""
    if getattr(node.target, "_schema", None) is None:
        return False
    arguments = _arguments(node)
    flags = [arguments[flag] for flag in ("train", "training", "use_input_stats") if flag in arguments]
    trains = flags[0] if flags else "dropout_p" in arguments
    share = arguments.get("p", arguments.get("dropout", arguments.get("dropout_p", 1.0)))
    # Without moving statistics, a norm takes those of its batch in evaluation, too.
    return bool(trains) and bool(share) and arguments.get("running_mean", True) is not None


def _draws(node: fx.Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _arguments_like(
    model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], names: Sequence[str]
) -> Callable[[Sequence[Any], Mapping[str, Any]], dict[str, Any]]:
    """Return a function from the arguments of a call to what they give to each input node of a graph that was captured
    with `args` and `kwargs`, by the `names` of these nodes.

    It raises PlanError if a call has other arguments than the captured one, tensors of other sizes but for their rows,
    or other values than tensors: all of these are constants of the graph, and stages would wait for messages of these
    sizes.
    """
    # Tensors without memory, by place, such as `batch['mask']`.
    example = {
        place: torch.empty_like(leaf, device="meta") if isinstance(leaf, torch.Tensor) else leaf
        for place, leaf in _leaves(model, args, kwargs).items()
    }

    def arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        leaves = _leaves(model, args, kwargs)
        if leaves.keys() != example.keys():
            raise PlanError(
                f"the model was captured with {', '.join(example)}, and is called with "
                f"{', '.join(leaves) or 'nothing'}; give what example_inputs had"
            )
        for place, known in example.items():
            was, now = _form(known), _form(leaves[place])
            if was != now:
                remedy = "give batches of these sizes, padded if need be" if "rows" in was else "give that"
                raise PlanError(
                    f"{place} was {was} in example_inputs, for which the stages were made, and is {now} now; {remedy}, "
                    "or distribute again with the new ones"
                )
        return {name: leaves[place] for place, name in zip(example, names)}

    return arguments


def _form(value: Any) -> str:
    """Return the dtype of a tensor and its sizes but for the rows, or the text of another value."""
    if not isinstance(value, torch.Tensor):
        return repr(value)
    return f"rows of {[*value.shape[1:]]} in {str(value.dtype).removeprefix('torch.')}"


def bound(
    model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call in the order of the parameters of `forward`, by position where possible; what
    does not fit these parameters stays as it is."""
    try:
        bound_arguments = inspect.signature(model.forward).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return tuple(args), dict(kwargs)
    return bound_arguments.args, bound_arguments.kwargs


def _leaves(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the leaves of a call's arguments by their places, such as `batch['mask']`, in the order of a capture."""
    try:
        named = dict(inspect.signature(model.forward).bind(*args, **kwargs).arguments)
    except (TypeError, ValueError):
        named = {"args": tuple(args), "kwargs": dict(kwargs)}
    return {
        f"{getattr(path[0], 'key', '')}{pytree.keystr(path[1:])}": leaf
        for path, leaf in pytree.tree_flatten_with_path(named)[0]
    }
