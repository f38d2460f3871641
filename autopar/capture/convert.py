"""Conversion of a traced fx graph to a `Graph`, in one pass, linear in nodes."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypeAlias

import torch
from torch.fx import Node

from ..ir.graph import Argument, Const, Ref, Task, Value, refs
from .operators import draws, flops, shared
from .refusals import Untraceable
from .split_rules import cuts
from .torch_private import memory, result

_aten = torch.ops.aten
Find: TypeAlias = Callable[[Node], tuple[str, str, str]]
_CHANGES = ("dtype", "layout", "memory_format")
_STRIDELESS = {
    _aten.view.default: _aten.reshape.default,
    _aten._unsafe_view.default: _aten.reshape.default,
}
"""Views that fail on the strides of another device's kernel, and their stride-independent equivalents."""

_ASSERTS = frozenset({
    "aten._assert_tensor_metadata", "aten._assert_async", "aten._assert_scalar",
    "aten._functional_assert_async",
    "aten._functional_assert_scalar", "aten.sym_constrain_range", "aten.sym_constrain_range_for_size",
})  # fmt: skip


class Conversion:
    """A graph under construction: `give` placeholders their values, `add` calls in order, then read `graph`.

    divisible: compute the cuts of tasks.
    differentiated: gradients are plain values.
    find: returns module path, line and code of a node.
    """

    def __init__(self, name: str, find: Find, divisible: bool, differentiated: bool) -> None:
        self.name, self.find, self.divisible, self.differentiated = name, find, divisible, differentiated
        self.values: dict[str, Value] = {}
        self.tasks: list[Task] = []
        self.fakes: dict[str, Any] = {}
        self.made: dict[Any, Argument] = {}
        self.twins: dict[Any, Argument] = {}
        self.random: str | None = None
        self.phase: Literal["forward", "backward"] = "forward"

    def give(self, node: Node, name: str, kind: Literal["input", "state"], path: str) -> str:
        """Add an input or state value for a placeholder; return its name."""
        name = self.free(name)
        self.made[node] = Ref(name)
        self.values[name] = self.value(node, name, node.meta["val"], name, kind, path)
        self.fakes[name] = node.meta["val"]
        return name

    def free(self, name: str) -> str:
        """Return the name, with a suffix if another value has it."""
        unique, count = name, 0
        while unique in self.values:
            count += 1
            unique = f"{name}_{count}"
        return unique

    def add(self, node: Node) -> None:
        """Convert one call."""
        target: Any = node.target
        if isinstance(node.meta.get("val"), (int, float)):
            self.made[node] = node.meta["val"]
            return
        if target is _aten.detach.default and self.differentiated:
            self.made[node] = self.made[node.args[0]]  # type: ignore[index]
            return
        if target is _aten.native_batch_norm_backward.default and node.args[7]:
            # In training the running statistics are not read, and have other values by then.
            node.args = (*node.args[:3], None, None, *node.args[5:])
        if target is operator.getitem:
            self.made[node] = self.made[node.args[0]][node.args[1]]  # type: ignore[index]
            return
        if not isinstance(target, torch._ops.OpOverload):
            raise self.refusal(
                node, f"the call of {getattr(target, '__name__', target)!r} has no plain tensor form"
            )
        if f"{target.namespace}.{target._opname}" in _ASSERTS:
            return
        if target is _aten._to_copy.default and not any(node.kwargs.get(key) is not None for key in _CHANGES):
            self.made[node] = self.made[node.args[0]]
            return
        target = _STRIDELESS.get(target, target)
        args, kwargs = self.arguments(node)
        if target._schema.is_mutable:
            raise self.refusal(node, "it changes a tensor in place, which no graph holds")
        alias, output = shared(target), result(node)
        if target is _aten.einsum.default and len(node.args[1]) == 1:  # type: ignore[arg-type]
            alias = 1  # of one operand it is a view where it can be
        pure = torch.Tag.nondeterministic_seeded not in target.tags
        unpack = isinstance(output, (tuple, list))
        key = (target, repr(args), repr(kwargs)) if pure and (unpack or alias is not None) else None
        if key in self.twins:
            self.made[node] = self.twins[key]
            return
        base = self.root(args, dict(kwargs), alias)
        given = self.memories((*args, *(item for _, item in kwargs)))
        outputs = []
        for index, item in enumerate(_items(output)):
            name = self.free(f"{node.name}.{index}" if unpack else node.name)
            self.values[name] = self.value(node, name, item, base or given.get(memory(item), name))
            self.fakes[name] = item
            outputs.append(name)
        views = bool(outputs) and all(self.values[name].storage != name for name in outputs)
        module, source, code = self.find(node)
        fake_args, fake_kwargs = self.stand_in(node.args), self.stand_in(node.kwargs)
        random = draws(target, fake_args, fake_kwargs)
        task = Task(
            name=node.name,
            target=f"{target.namespace}.{target._opname}.{target._overloadname}",
            args=args,
            kwargs=kwargs,
            outputs=tuple(outputs),
            unpack=unpack,
            after=(self.random,) if random and self.random else (),
            random="default" if random else None,
            free=alias is not None or views,
            home=random,
            flops=flops(target, fake_args, fake_kwargs, output),
            module=module,
            source=source,
            code=code,
            phase=self.phase,
        )
        ways = cuts(target, fake_args, fake_kwargs, output) if self.divisible else ()
        reads = len(task.inputs)
        if ways:
            task = dataclasses.replace(task, cuts=tuple(way for way in ways if len(way.inputs) == reads))
        self.tasks.append(task)
        if random:
            self.random = node.name
        found: Argument = tuple(map(Ref, outputs)) if unpack else Ref(outputs[0]) if outputs else None
        self.made[node] = found
        if key is not None:
            self.twins[key] = found

    def stand_in(self, item: Any) -> Any:
        """Return arguments with fake tensors for values: one object for each value."""

        def fake(argument: Argument) -> Any:
            if isinstance(argument, tuple):
                return tuple(map(fake, argument))
            return self.fakes[argument.value] if isinstance(argument, Ref) else argument

        return torch.fx.node.map_arg(item, lambda node: fake(self.made[node]))

    def arguments(self, node: Node) -> tuple[tuple[Argument, ...], tuple[tuple[str, Argument], ...]]:
        """Return the arguments of a call in the graph's terms, without those that have no effect."""
        follows = node.target is _aten._to_copy.default
        kwargs = [
            (key, self.argument(node, item))
            for key, item in node.kwargs.items()
            if item is not None
            and not (key == "pin_memory" and not item)
            and not (follows and key == "device")
        ]
        return tuple(self.argument(node, item) for item in node.args), tuple(kwargs)

    def argument(self, node: Node, item: Any) -> Argument:
        """Return one argument of `node` in the graph's terms."""
        if isinstance(item, Node):
            return self.made[item]
        if isinstance(item, (list, tuple)):
            return tuple(self.argument(node, part) for part in item)
        if isinstance(item, torch.device):
            return Const("device")
        if isinstance(item, (torch.dtype, torch.layout, torch.memory_format)):
            return Const(str(item))
        if item is None or isinstance(item, (bool, int, float, complex, str)):
            return item
        if isinstance(item, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return self.number(node, item)
        raise self.refusal(node, f"an argument of type {type(item).__name__} cannot be written into a graph")

    def number(self, node: Node, item: Any) -> Any:
        """Return a size as a plain number. Raises Untraceable if it depends on the values in a tensor."""
        if isinstance(item, (bool, int, float)):
            return item
        expression = item.node.expr
        if not expression.is_number:
            raise self.refusal(node, f"the size {expression} depends on the values in a tensor")
        return bool(item) if isinstance(item, torch.SymBool) else type(item.node.hint)(expression)

    def value(
        self,
        node: Node,
        name: str,
        item: Any,
        storage: str,
        kind: Literal["input", "state", "made"] = "made",
        path: str = "",
    ) -> Value:
        """Return a value like a fake tensor."""
        if item is None:
            return Value(name, (), "object", 0, name, kind, path)
        if not isinstance(item, torch.Tensor):
            raise self.refusal(node, "it makes a Python number out of the values in a tensor")
        shape = tuple(self.number(node, size) for size in item.shape)
        dtype = str(item.dtype).removeprefix("torch.")
        nbytes = math.prod(shape) * item.element_size()
        return Value(name, shape, dtype, nbytes, storage, kind, path, memory_order(item))

    def root(
        self, args: tuple[Argument, ...], kwargs: dict[str, Argument], alias: int | str | None
    ) -> str | None:
        """Return the storage that the outputs share; None if they have their own."""
        if alias is None:
            return None
        given = kwargs.get(alias) if isinstance(alias, str) else args[alias] if alias < len(args) else None
        name = next(refs(given), None)
        return self.values[name].storage if name else None

    def memories(self, arguments: Argument) -> dict[int | None, str]:
        """Return the storage of each tensor of a call by the identity of its memory: some operators return an argument
        without saying so in the schema (`type_as` of the same dtype, `meshgrid`)."""
        named = {memory(self.fakes[name]): self.values[name].storage for name in refs(arguments)}
        return {memory: name for memory, name in named.items() if memory is not None}

    def keep(self, node: Any) -> str:
        """Return the value of an output node."""
        found = self.made[node]
        if not isinstance(found, Ref):
            raise self.refusal(node, "it returns something other than a tensor")
        return found.value

    def apart(self, nodes: Sequence[Node]) -> list[str]:
        """Return the values of these results, all distinct: a repeated one becomes a view."""
        found: dict[str, None] = {}
        for node in nodes:
            name = self.keep(node)
            if name in found:
                view = self.free(f"{name}.view")
                self.values[view] = dataclasses.replace(self.values[name], name=view, kind="made", path="")
                self.fakes[view] = self.fakes[name]
                self.tasks.append(Task(view, "aten.alias.default", (Ref(name),), outputs=(view,), free=True))
                name = view
            found[name] = None
        return list(found)

    def fresh(self, name: str) -> str:
        """Return a value with its own memory equal to this one: a copy if it is, or may share memory with, an input or
        state."""
        if self.values[self.values[name].storage].kind == "made":
            return name
        copy = self.free(f"{name}.copy")
        self.values[copy] = dataclasses.replace(
            self.values[name], name=copy, storage=copy, kind="made", path=""
        )
        self.tasks.append(Task(copy, "aten.clone.default", (Ref(name),), outputs=(copy,)))
        return copy

    def refusal(self, node: Node, why: str) -> Untraceable:
        """Return the error for a node: the call, its module, the user's line."""
        module, source, code = self.find(node)
        place = (f" in {module}" if module else "") + (f" at {source}" if source else "")
        return Untraceable(
            f"{node.target} ({node.name}){place}" + (f": `{code}`" if code else "") + f": {why}"
        )


def memory_order(item: torch.Tensor) -> tuple[int, ...]:
    """Return the axes of a tensor from the slowest to the fastest; empty if they are in order."""
    if item.layout is not torch.strided or item.is_contiguous():
        return ()
    order = _order(item.stride())
    dense = 1
    for axis in reversed(order):
        if item.shape[axis] != 1 and item.stride(axis) != dense:
            # Of memory with gaps or overlaps torch makes another order, which is slow to ask for.
            order = _order(torch.empty_like(item).stride())
            break
        dense *= item.shape[axis]
    return () if order == tuple(range(item.dim())) else order


def _order(strides: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(range(len(strides)), key=lambda axis: -strides[axis]))


def _items(output: Any) -> tuple[Any, ...]:
    return () if output is None else tuple(output) if isinstance(output, (tuple, list)) else (output,)


def live(graph: torch.fx.Graph, results: Iterable[Any]) -> list[Node]:
    """Return calls that a result needs, or that draw random numbers, which advances the generator."""
    needed = {node for node in results if isinstance(node, Node)}
    kept = []
    for node in reversed(graph.nodes):
        if node.op == "call_function" and (node in needed or _draws(node)):
            needed.update(node.all_input_nodes)
            kept.append(node)
    return kept[::-1]


def _draws(node: Node) -> bool:
    own = isinstance(node.target, torch._ops.OpOverload)
    return own and draws(node.target, _fakes(node.args), _fakes(node.kwargs))


def _fakes(item: Any) -> Any:
    return torch.fx.node.map_arg(item, lambda node: node.meta.get("val"))
