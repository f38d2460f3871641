"""A captured graph in terms of the model: which placeholders are state, inputs or sizes, and what it returns.

A region is the whole model, or the part between two graph breaks.
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import torch
from torch import fx, nn

from .dynamo_private import source_of
from .refusals import Untraceable

_SIZES = (torch.SymInt, torch.SymFloat, torch.SymBool)


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
class Place:
    """A placeholder: a tensor of the model's state, which is `owner[key]`, an input of the call, or a size.

    `source`: its origin in Dynamo's terms. `fake`: the value traced by Dynamo: a fake tensor, symbolic size or
    constant.
    """

    kind: Literal["state", "input", "size"]
    path: str
    fake: Any
    owner: dict[str, Any]
    key: str
    source: str


@dataclass(frozen=True)
class _Result:
    """An output: the `index`-th computed tensor, the very object of placeholder `same`, or a `number`, constant or
    symbolic."""

    fake: Any
    index: int = -1
    same: int = -1
    number: Any = None


class Region:
    """A graph captured by Dynamo with the user's own tensors as `examples`.

    `root`: the compiled module, None if unknown. `parameters`: names of its positional arguments. Raises Untraceable
    for what is not a graph of tensors.
    """

    def __init__(
        self,
        module: fx.GraphModule,
        examples: Sequence[Any],
        root: nn.Module | None,
        parameters: Sequence[str],
    ) -> None:
        self.module = module
        nodes = [node for node in module.graph.nodes if node.op == "placeholder"]
        self.paths = _paths(root)
        """The path of every tensor of `root`, with the first path of the same tensor."""
        self.held: dict[str, Any] = {}
        """State outside of `root`, by path."""
        self.places = _places(nodes, examples, root, parameters, self.held)
        self._ranks = {path: rank for rank, path in enumerate(dict(self.paths))}
        _name_modules(module, root)
        self.results = _results(module, self.places)
        computed = [place for place, result in enumerate(self.results) if result.index >= 0]
        self.wanted = sorted({self.results[place].index: place for place in reversed(computed)}.values())
        self.name = type(root).__name__ if root is not None else _name(nodes)

    def of(self, examples: Sequence[Any], root: nn.Module | None) -> Region:
        """Return the same region of another module `root`, whose state is in `examples`."""
        known, other = _known(root), copy.copy(self)
        other.held, other.places = {}, []
        for place, example in zip(self.places, examples):
            if place.kind == "state":
                slot = known.get(id(example))
                if slot is None:
                    other.held[place.path] = example
                    place = replace(place, owner=other.held, key=place.path)
                else:
                    path, owner, key = slot
                    place = replace(place, path=path, owner=owner, key=key)
            other.places.append(place)
        return other

    def by_parameter(self, numbers: Sequence[int]) -> list[int]:
        """Return numbers of placeholders in the order of the module's parameters, then of the arguments: norms over
        all gradients are summed in that order."""
        return sorted(
            numbers, key=lambda number: (self._ranks.get(self.places[number].path, len(self._ranks)), number)
        )

    @property
    def differentiable(self) -> list[int]:
        """The indices of the computed tensors that require grad."""
        found = {r.index for r in self.results if r.index >= 0 and r.fake.requires_grad}
        return sorted(found)

    @property
    def changed(self) -> str:
        """The path of a tensor that is changed in place with a gradient through the change, which no output
        shows; "" if there is none."""
        tensors = (place for place in self.places if isinstance(place.fake, torch.Tensor))
        return next((p.path for p in tensors if p.fake._version and p.fake.grad_fn is not None), "")

    @property
    def fakes(self) -> list[Any]:
        """The fake tensor or symbolic size of each placeholder."""
        return [place.fake for place in self.places]

    @property
    def empty(self) -> bool:
        """True if nothing is computed."""
        return not any(node.op in ("call_function", "call_method") for node in self.module.graph.nodes)


def _places(
    nodes: Sequence[fx.Node],
    examples: Sequence[Any],
    root: nn.Module | None,
    parameters: Sequence[str],
    held: dict[str, Any],
) -> list[Place]:
    known = _known(root)
    found: list[Place] = []
    for node, example in zip(nodes, examples, strict=True):
        fake = node.meta.get("example_value", example)
        source = source_of(node)
        path = _given(path_of(source), parameters) or node.name
        if not isinstance(example, torch.Tensor):
            if not isinstance(example, (int, float, bool, *_SIZES)):
                raise Untraceable(f"{path} is a {type(example).__name__}, which is no tensor; pass tensors")
            found.append(Place("size", path, fake, {}, "", source))
            continue
        slot = known.get(id(example))
        # What was computed (a state that autograd is to go back through) belongs to one call.
        if slot is not None and example.is_leaf:
            path, owner, key = slot
            found.append(Place("state", path, fake, owner, key, source))
        elif example.is_leaf and (isinstance(example, nn.Parameter) or "_buffers[" in source):
            held[path] = example
            found.append(Place("state", path, fake, held, path, source))
        else:
            found.append(Place("input", path, fake, {}, "", source))
    return found


def _known(root: nn.Module | None) -> dict[int, Slot]:
    """Return the first slot of each tensor of a module, by `id`."""
    return {id(owner[key]): (path, owner, key) for path, owner, key in reversed(list(slots(root)))}


def _paths(root: nn.Module | None) -> tuple[tuple[str, str], ...]:
    known = _known(root)
    return tuple((path, known[id(owner[key])][0]) for path, owner, key in slots(root))


def _given(path: str, parameters: Sequence[str]) -> str:
    """Return the path of an argument by the name of its parameter: `args.0.mask` is `batch.mask`."""
    first, *rest = path.split(".")
    if first == "kwargs" and rest:
        return ".".join(rest)
    if first == "args" and rest and rest[0].isdigit() and int(rest[0]) < len(parameters):
        return ".".join((parameters[int(rest[0])], *rest[1:]))
    return path


def _results(module: fx.GraphModule, places: Sequence[Place]) -> list[_Result]:
    end = next(iter(reversed(module.graph.nodes)))
    given = {id(place.fake): index for index, place in reversed(list(enumerate(places)))}
    index: dict[fx.Node, int] = {}
    found: list[_Result] = []
    for item in end.args[0]:
        fake = item.meta.get("example_value") if isinstance(item, fx.Node) else item
        if not isinstance(fake, torch.Tensor):
            found.append(_Result(fake, number=fake))
        elif id(fake) in given:
            found.append(_Result(fake, same=given[id(fake)]))
        else:
            found.append(_Result(fake, index=index.setdefault(item, len(index))))
    return found


def _name_modules(module: fx.GraphModule, root: nn.Module | None) -> None:
    """Label each node with its module's path in `state_dict`."""
    paths = {str(id(child)): path for path, child in root.named_modules()} if root is not None else {}
    for part in module.modules():
        for node in part.graph.nodes if isinstance(part, fx.GraphModule) else ():
            stack = node.meta.get("nn_module_stack")
            if stack:
                node.meta["nn_module_stack"] = {
                    key: (paths.get(str(key).split("@")[0], path_of(str(path))), *kind)
                    for key, (path, *kind) in stack.items()
                }


def positional(model: Callable[..., Any]) -> list[str]:
    """Return the names of the positional arguments of a model."""
    try:
        parameters = inspect.signature(model.forward if isinstance(model, nn.Module) else model).parameters
    except (TypeError, ValueError):
        return []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [name for name, parameter in parameters.items() if parameter.kind in kinds]


def path_of(source: str) -> str:
    """Return a readable name for a source of Dynamo: `L['self']._modules['0']._parameters['weight']` is `0.weight`,
    `L['batch']['mask']` is `batch.mask`."""
    keys = re.findall(r"\['?([^'\]]+)'?\]|\.(\w+)", source.split("@")[0])
    names = [first or second for first, second in keys]
    inner = ("_modules", "_parameters", "_buffers", "__dict__", "__closure__", "cell_contents")
    names = [name for name in names if name not in inner]
    return ".".join(names[1:] if names[:1] == ["self"] else names)


def _name(nodes: Sequence[fx.Node]) -> str:
    stacks = (node.meta.get("nn_module_stack") for node in nodes)
    kinds = [next(iter(stack.values()))[1] for stack in stacks if stack]
    return getattr(kinds[0], "__name__", str(kinds[0]).rpartition(".")[2]) if kinds else "graph"
