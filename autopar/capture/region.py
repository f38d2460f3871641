"""A captured graph in terms of the model: which placeholders are state, inputs or sizes, in the graph and in the
arguments of its calls; what it returns; and its functional graph.

A region is the whole model, or the part between two graph breaks.
"""

from __future__ import annotations

import copy
import inspect
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias

import torch
from torch import fx, nn

from .captured import strides_of
from .dynamo_private import source_of
from .floats import Numbers
from .refusals import Untraceable, as_code
from .source_locations import at_line, located, name_modules, origins, path_of
from .symbols import OPEN, is_open, symbols_in, symbols_of
from .torch_private import enables_grad, holds_for, memory, pytree
from .tracing import live, through, trace

Slot: TypeAlias = tuple[str, dict[str, Any], str]
"""A tensor of a model: its path in `state_dict`, and the dict and key that hold it."""


def slots(module: nn.Module | None) -> Iterator[Slot]:
    """Yield every parameter and buffer except None, shared tensors repeatedly, in the order of `state_dict`."""
    for path, child in module.named_modules(remove_duplicate=False) if module is not None else ():
        dot = f"{path}." if path else ""
        for owner in (child._parameters, child._buffers):
            for key, tensor in owner.items():
                if tensor is not None:
                    yield dot + key, owner, key


@dataclass(frozen=True)
class _Place:
    """A placeholder: the state `owner[key]`, an input of the call, or a size.

    `source`: its origin in Dynamo's terms. `fake`: the value traced by Dynamo, a fake tensor, symbolic size
    or constant.
    """

    kind: Literal["state", "input", "size"]
    path: str
    fake: Any
    owner: dict[str, Any]
    key: str
    source: str


@dataclass(frozen=True)
class _Result:
    """An output: the `index`-th computed tensor, the very object of placeholder `same`, or a constant or
    symbolic number."""

    fake: Any
    index: int = -1
    same: int = -1


class Region:
    """A graph that Dynamo captured with the user's own tensors as `examples`, and its functional graph. This
    includes the backward if grad mode is on and an output requires grad.

    `root`: the compiled module, None if unknown. `parameters`: names of its positional arguments. Raises Untraceable
    for a call that no graph can hold, and torch's errors. Safe for concurrent callers.
    """

    def __init__(
        self,
        module: fx.GraphModule,
        examples: Sequence[Any],
        root: nn.Module | None,
        parameters: Sequence[str],
    ) -> None:
        if refused := as_code(module, examples):
            raise refused
        self.module, self.numbers = module, Numbers(module)
        nodes = module.graph.find_nodes(op="placeholder")
        known = _known(root)
        self.paths = tuple((path, known[id(owner[key])][0]) for path, owner, key in slots(root))
        """Each path of a tensor of `root`, with the first path of the same tensor."""
        self.held: dict[str, Any] = {}
        """State outside of `root`, by path."""
        self.places = _places(nodes, examples, known, parameters, self.held)
        self._ranks = {path: rank for rank, path in enumerate(dict(self.paths))}
        name_modules(module, root)
        self.results = _results(module, self.places)
        computed = [place for place, result in enumerate(self.results) if result.index >= 0]
        self.wanted = sorted({self.results[place].index: place for place in reversed(computed)}.values())
        """For each computed tensor, its first place among the results."""
        self.name = type(root).__name__ if root is not None else _name(nodes)
        if not any(node.op in ("call_function", "call_method") for node in module.graph.nodes):
            raise Untraceable("nothing is computed")
        self._trace(module)
        changed = {memory(examples[at]): at for at, _ in self.traced.updates}
        held = (at for at, place in enumerate(self.places) if changed and place.kind == "state")
        self._tied = {at for at in held if changed.get(memory(examples[at]), at) != at}
        self._sort_places()

    def _trace(self, module: fx.GraphModule) -> None:
        training = False
        if torch.is_grad_enabled():
            tensors = (place for place in self.places if isinstance(place.fake, torch.Tensor))
            for place in tensors:
                if place.fake._version and place.fake.grad_fn is not None:
                    raise through(place.path)
            training = any(self.results[place].fake.requires_grad for place in self.wanted)
        elif enables_grad(self.module.graph) and any(
            self.results[place].fake.requires_grad for place in self.wanted
        ):
            raise Untraceable(
                "an output is computed within torch.enable_grad() in a call without gradients, and has one; detach it, "
                "or call the model with gradients"
            )
        fakes = [place.fake for place in self.places]
        self.symbols = symbols_in(fakes)
        """Positions of the sizes of a call in its arguments."""
        self.traced = traced = trace(module, fakes, [p.path for p in self.places], self.wanted, training)
        _require_known_devices(traced.graph, fakes)
        differentiable = [i for i, place in enumerate(self.wanted) if self.results[place].fake.requires_grad]
        if training and [index for index, _ in sorted(traced.tangents)] != differentiable:
            raise Untraceable("its backward as traced is not that of all outputs which require grad")
        self.constants: dict[str, Any] = {node.name: tensor for node, tensor in traced.constants}
        """Tensors that the graph makes from numbers, by name."""
        # AOTAutograd makes symbols of numbers that Dynamo's graph holds fixed, and that nothing reads.
        fixed = {node for fake, node in zip(fakes, traced.inputs) if isinstance(fake, (int, float))}
        # Read them before a conversion puts the sizes of a call into the graph.
        values = ((node, node.meta.get("val")) for node in traced.graph.nodes if node not in fixed)
        self.open = {node: value for node, value in values if is_open(value)}
        unread = {
            node: at
            for at, node in enumerate(traced.inputs)
            if isinstance(fakes[at], OPEN) and not node.users
        }
        read = (value for node, value in self.open.items() if node not in unread)
        symbols = set[Any]().union(*map(symbols_of, read))
        self._unread = frozenset(at for at in unread.values() if not symbols_of(fakes[at]) & symbols)
        """Positions of numbers that no task reads, such as a model's count of its calls."""
        self.forward = live(traced.graph, [*traced.outputs, *(node for _, node in traced.updates)], training)
        done, gradients = set(self.forward), [node for _, node in traced.gradients]
        self.backward = [node for node in live(traced.graph, [*done, *gradients]) if node not in done]
        self._origins = origins(traced.graph) if training else {}
        self._renamed = "", ""

    def _sort_places(self) -> None:
        """Determine the positions of sizes, inputs and state in the arguments of a call."""
        sizes = [
            (at, p.fake) for at, p in enumerate(self.places) if p.kind == "size" and at not in self._unread
        ]
        self._sizes_at = [at for at, _ in sizes]
        """Positions of the sizes and floats that select a program."""
        self._floats = [at for at, (_, fake) in enumerate(sizes) if isinstance(fake, (float, torch.SymFloat))]
        self.inputs_at = [at for at, place in enumerate(self.places) if place.kind == "input"]
        """Positions of the tensors that are not state."""
        self.state_at = [(at, p.owner, p.key) for at, p in enumerate(self.places) if p.kind == "state"]
        """(position, owner, key) of each state."""
        self._owners = [owner for _, owner, _ in self.state_at]
        self._keys = [key for _, _, key in self.state_at]
        self._changed = [at for at, _ in self.traced.updates]
        self._beside = [
            (at, at in self._tied) for at in (*self.inputs_at, *(at for at, _, _ in self.state_at))
        ]
        """Positions of what must not share memory with a tensor changed in place, or must as in the graph."""
        self.rebound = False
        """True once calls of other modules have put their state in the region; calls are then serialised."""

    @cached_property
    def layouts(self) -> list[tuple[Any, Any]]:
        """For each result that is a tensor, its strides in eager and in the functional graph, with open sizes; None for
        layouts without strides."""
        changed = dict(self.traced.updates)

        def made(result: _Result) -> Any:
            node = self.traced.outputs[result.index] if result.index >= 0 else changed.get(result.same)
            return result.fake if node is None else self.open.get(node, node.meta.get("val"))

        tensors = [result for result in self.results if isinstance(result.fake, torch.Tensor)]
        return [(strides_of(result.fake), strides_of(made(result))) for result in tensors]

    def of(self, examples: Sequence[Any], root: nn.Module | None) -> Region:
        """Return the same region of another module `root`, whose state is in `examples`."""
        known, other = _known(root), copy.copy(self)
        other.held, other.places = {}, []
        for place, example in zip(self.places, examples):
            if place.kind == "state":
                slot = known.get(id(example))
                if slot is None:
                    slot = place.path, other.held, place.path
                    other.held[place.path] = example
                path, owner, key = slot
                place = replace(place, path=path, owner=owner, key=key)
            other.places.append(place)
        pairs = ((a.path, b.path) for a, b in zip(self.places, other.places) if a.path != b.path)
        old, new = (path.split(".") for path in next(pairs, ("", "")))
        while old and new and old[-1] == new[-1]:
            old.pop()
            new.pop()
        other._renamed = ".".join(old), ".".join(new)
        other._sort_places()
        return other

    def without_state(self) -> Region:
        """Return the same region without the tensors of a module; `of` puts tensors back."""
        other = copy.copy(self)
        other.held = {}
        other.places = [replace(place, owner={}) if place.kind == "state" else place for place in self.places]
        other._sort_places()
        return other

    def sizes(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """Return the sizes and floats of a call that select its program: those on which its tasks depend."""
        read = (*[args[at] for at in self._sizes_at],)
        if not self._floats:
            return read
        # Zeros of both signs are equal, but not all results for them.
        return *read, *[math.copysign(1, read[at]) for at in self._floats]

    def inputs(self, args: Sequence[Any]) -> list[Any]:
        """Return the tensors of a call that are not state."""
        return [args[at] for at in self.inputs_at]

    def aliases_mutated(self, args: Sequence[Any]) -> bool:
        """Return True if a tensor changed in place shares memory with an argument that the graph takes as a separate
        value, or not with state that it takes as the same memory."""
        if not self._changed:
            return False
        changed = {memory(args[at]): at for at in self._changed}
        if len(changed) < len(self._changed):
            return True
        return any((changed.get(memory(args[at]), at) != at) != tied for at, tied in self._beside)

    def is_other_module(self, args: Sequence[Any]) -> bool:
        """Return True if the state of this call is not the region's: Dynamo calls one graph for all equal modules."""
        # By maps, since a model may have hundreds.
        held = map(dict.get, self._owners, self._keys)  # type: ignore[arg-type]
        return not all(map(operator.is_, held, [args[at] for at, _, _ in self.state_at]))

    def constant(self, args: Sequence[Any]) -> list[Any]:
        """Return the state of a call that it does not change."""
        return [args[at] for at, _, _ in self.state_at if at not in self._changed]

    def rebind(self, args: Sequence[Any]) -> bool:
        """Replace the region's state by that of this call if they differ only in `held`, outside modules;
        return whether they do. Calls are then serialised."""
        moved = [(at, owner, key) for at, owner, key in self.state_at if owner.get(key) is not args[at]]
        if any(owner is not self.held for _, owner, _ in moved):
            return False
        self.rebound = True
        for at, owner, key in moved:
            owner[key] = args[at]
        return True

    def first(self, args: Sequence[Any] | None = None) -> Any:
        """Return the first state tensor of a call; without `args` that of the region, None if it no longer exists."""
        at, owner, key = self.state_at[0]
        return owner.get(key) if args is None else args[at]

    def weights(self, args: Sequence[Any]) -> dict[str, torch.Tensor]:
        """Return the state of a call that requires grad, by path."""
        return {self.places[at].path: args[at] for at, _, _ in self.state_at if args[at].requires_grad}

    def generalizes(self, other: Region) -> bool:
        """Return True if this is the graph of `other` captured anew, with sizes open that `other` fixes, and that
        serves these sizes too: a length of 0 or 1 stays a graph of its own."""
        if len(self.places) <= len(other.places) or self._kind != other._kind:
            return False
        fakes = {place.source: place.fake for place in other.places}
        lengths: dict[Any, int] = {}
        size: Any = None
        for place in self.places:
            if isinstance(place.fake, torch.Tensor) and isinstance(fakes.get(place.source), torch.Tensor):
                for extent, length in zip(place.fake.shape, fakes[place.source].shape):
                    if isinstance(extent, OPEN) and extent.node.expr.is_Symbol and isinstance(length, int):
                        size, lengths[extent.node.expr] = extent, length
        return not lengths or holds_for(size, lengths)

    @property
    def _kind(self) -> tuple[Any, ...]:
        """A key equal for captures of one graph: inputs and state by source, operators, results, differentiation."""
        calls = (node for node in self.module.graph.nodes if node.op in ("call_function", "call_method"))
        operators = [
            node.target for node in calls if isinstance(node.meta.get("example_value"), torch.Tensor)
        ]
        sources = [place.source for place in self.places if place.kind != "size"]
        return sources, operators, len(self.results), bool(self.traced.tangents)

    def located(self, node: fx.Node) -> tuple[str, str, str]:
        """Return module path, `file:line` and code of a node of the functional graph."""
        module, source, code = self._origins.get(node) or located(node)
        traced, renamed = self._renamed
        if traced and f"{module}.".startswith(f"{traced}."):
            module = renamed + module[len(traced) :]
        return module, source, code

    def by_parameter(self, numbers: Iterable[int]) -> list[int]:
        """Return numbers of placeholders in the order of the module's parameters, then of the arguments.
        Norms over all gradients are summed in this order."""
        return sorted(
            numbers, key=lambda number: (self._ranks.get(self.places[number].path, len(self._ranks)), number)
        )


def _require_known_devices(graph: fx.Graph, fakes: Sequence[Any]) -> None:
    """Raise Untraceable if a tensor is made on a device where no argument is, as by a factory under another default
    device: a plan decides where tasks run."""
    known = {torch.device("cpu")} | {fake.device for fake in fakes if isinstance(fake, torch.Tensor)}
    for node in graph.nodes:
        for made in pytree.tree_leaves(node.meta.get("val")):
            if isinstance(made, torch.Tensor) and made.device not in known:
                raise Untraceable(
                    f"{node.target}{at_line(node)} makes a tensor on {made.device}, where no weight or argument is"
                )


def _places(
    nodes: Sequence[fx.Node],
    examples: Sequence[Any],
    known: dict[int, Slot],
    parameters: Sequence[str],
    held: dict[str, Any],
) -> list[_Place]:
    places: list[_Place] = []
    for node, example in zip(nodes, examples, strict=True):
        fake = node.meta.get("example_value", example)
        source = source_of(node)
        path = _given(path_of(source), parameters) or node.name
        if not isinstance(example, torch.Tensor):
            if not isinstance(example, (int, float, bool, *OPEN)):
                raise Untraceable(
                    f"{path} is a {type(example).__name__}, which is not a tensor; pass tensors"
                )
            places.append(_Place("size", path, fake, {}, "", source))
            continue
        slot = known.get(id(example))
        # A computed tensor (state with a history in autograd) belongs to one call.
        if slot is not None and example.is_leaf:
            path, owner, key = slot
            places.append(_Place("state", path, fake, owner, key, source))
        elif example.is_leaf and (isinstance(example, nn.Parameter) or "_buffers[" in source):
            held[path] = example
            places.append(_Place("state", path, fake, held, path, source))
        else:
            places.append(_Place("input", path, fake, {}, "", source))
    return places


def _known(root: nn.Module | None) -> dict[int, Slot]:
    """Return the first slot of each tensor of a module, by `id`."""
    return {id(owner[key]): (path, owner, key) for path, owner, key in reversed(list(slots(root)))}


def _given(path: str, parameters: Sequence[str]) -> str:
    """Return the path of an argument by the name of its parameter: `args.0.mask` is `batch.mask`."""
    first, *rest = path.split(".")
    if first == "kwargs" and rest:
        return ".".join(rest)
    if first == "args" and rest and rest[0].isdigit() and int(rest[0]) < len(parameters):
        return ".".join((parameters[int(rest[0])], *rest[1:]))
    return path


def _results(module: fx.GraphModule, places: Sequence[_Place]) -> list[_Result]:
    placeholder = {id(place.fake): index for index, place in reversed(list(enumerate(places)))}
    index: dict[fx.Node, int] = {}
    results: list[_Result] = []
    end: Any = module.graph.output_node()
    for item in end.args[0]:
        fake = item.meta.get("example_value") if isinstance(item, fx.Node) else item
        if not isinstance(fake, torch.Tensor):
            results.append(_Result(fake))
        elif id(fake) in placeholder:
            results.append(_Result(fake, same=placeholder[id(fake)]))
        else:
            results.append(_Result(fake, index=index.setdefault(item, len(index))))
    return results


def positional(model: Callable[..., Any]) -> list[str]:
    """Return the names of the positional arguments of a model."""
    try:
        parameters = inspect.signature(model.forward if isinstance(model, nn.Module) else model).parameters
    except (TypeError, ValueError):
        return []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [name for name, parameter in parameters.items() if parameter.kind in kinds]


def _name(nodes: Sequence[fx.Node]) -> str:
    stacks = (node.meta.get("nn_module_stack") for node in nodes)
    kinds = [next(iter(stack.values()))[1] for stack in stacks if stack]
    return getattr(kinds[0], "__name__", str(kinds[0]).rpartition(".")[2]) if kinds else "graph"
