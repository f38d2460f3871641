"""Conversion of a region to the `Captured` for the sizes of one call. One pass turns its functional graph
into a `Graph`, in time linear in the nodes."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch.fx import Node

from ..ir.graph import Argument, Const, Graph, Ref, Task, Value, refs
from ..ir.open_size import opened
from ..transform.rewrites import folded, renamed, with_own_views
from .captured import Captured, memory_order
from .operators import draws, flops, shared
from .refusals import Untraceable
from .region import Region
from .results import resolver, results, with_open
from .split_rules import cuts
from .symbols import OPEN
from .torch_private import OpOverload, memory

_aten = torch.ops.aten
_CHANGES = ("dtype", "layout", "memory_format")
_STRIDELESS = {_aten.view.default: _aten.reshape.default, _aten._unsafe_view.default: _aten.reshape.default}
"""Views that fail on the strides of another device's kernel, and their stride-independent equivalents."""

_ASSERTS = frozenset({
    "aten._assert_tensor_metadata", "aten._assert_scalar", "aten._functional_assert_scalar",
    "aten.sym_constrain_range", "aten.sym_constrain_range_for_size",
})  # fmt: skip


def captured_at(region: Region, args: Sequence[Any], divisible: bool = True) -> Captured:
    """Return the graph of a region for the arguments of one call, with cuts if `divisible`.

    Raises Untraceable if a size depends on values.
    """
    captured = _Conversion(region, divisible).captured(args)
    return _finished(captured) if region.traced.tangents else captured


class _Conversion:
    """A graph under construction; calls are added in order."""

    def __init__(self, region: Region, divisible: bool) -> None:
        self.region, self.divisible, self.differentiated = region, divisible, bool(region.traced.tangents)
        self.values: dict[str, Value] = {}
        self.tasks: list[Task] = []
        self.fakes: dict[str, Any] = {}
        self.converted: dict[Any, Argument] = {}
        self.twins: dict[Any, Argument] = {}
        self.sizes: dict[Any, tuple[int, Any]] = {}
        """Place and symbol of each size or float that is an argument, by its expression."""
        self.fixed = False
        """True if an argument depends on the sizes of the call but is not `opened`."""
        self.random: str | None = None
        self.phase: Literal["forward", "backward"] = "forward"

    def captured(self, args: Sequence[Any]) -> Captured:
        """Return the result of the whole conversion for the arguments of one call."""
        region, traced = self.region, self.region.traced
        at = resolver(region, args)
        for node, value in region.open.items():
            node.meta["val"] = at(value)
        names, state = self.placeholders(at)
        inputs = [number for number, place in enumerate(region.places) if place.kind == "input"]
        tangents = [
            (self.give(node, f"tangent_{count}", "input"), index)
            for count, (index, node) in enumerate(traced.tangents)
        ]
        for node in region.forward:
            self.add(node)
        self.phase = "backward"
        for node in region.backward:
            self.add(node)
        self.values.update(
            (value.name, value) for value in with_open(region, self.converted, self.values, self.number)
        )
        updates = tuple((self.fresh(node), names[index]) for index, node in traced.updates)
        updated = {to: made for made, to in updates}
        tensors = [
            place for place, result in enumerate(region.results) if isinstance(result.fake, torch.Tensor)
        ]
        outputs, same = self.returned(tensors, names, updated)
        behind = set(region.backward)
        reread = (name for name, node in zip(names, traced.inputs) if not behind.isdisjoint(node.users))
        made = dict(traced.gradients)
        gradients = tuple((names[index], self.keep(made[index])) for index in region.by_parameter(made))
        read = {value for task in self.tasks for value in task.inputs} | {*outputs, *updated}
        kept = {name: slot for name, slot in state.items() if name in read}
        graph = Graph(
            region.name,
            tuple(v for v in self.values.values() if v.kind != "state" or v.name in kept),
            tuple(self.tasks),
            (*(names[number] for number in inputs), *(name for name, _ in tangents)),
            tuple(kept),
            (*outputs, *(name for _, name in gradients)),
            updates,
            paths=region.paths,
        )
        symbols = tuple(size for _, size in self.sizes.values())
        return Captured(
            graph.check(),
            kept,
            {},
            lambda args: [args[number] for number in inputs],
            home=next(
                (item.device for item in args if isinstance(item, torch.Tensor)), torch.get_default_device()
            ),
            same=same,
            # A tensor returned in several places is one output with one gradient.
            tangents=tuple((name, tensors.index(region.wanted[index])) for name, index in tangents),
            gradients=gradients,
            open=None if self.fixed else symbols,
            sizes=tuple(map(at, symbols)),
            reread=frozenset(reread),
            **results(region, at),
        )

    def placeholders(
        self, at: Callable[[Any], Any]
    ) -> tuple[list[str], dict[str, tuple[Mapping[str, Any], str]]]:
        """Return the value of each placeholder ("" for sizes), and the owner and key of each state."""
        names: list[str] = []
        state: dict[str, tuple[Mapping[str, Any], str]] = {}
        for place, node in zip(self.region.places, self.region.traced.inputs):
            if place.kind == "size":
                self.converted[node] = self.number(place.fake, at(place.fake))
                names.append("")
                continue
            names.append(self.give(node, place.path, place.kind))
            if place.kind == "state":
                state[names[-1]] = place.owner, place.key
        for node, _ in self.region.traced.constants:
            state[self.give(node, node.name, "state")] = self.region.constants, node.name
        return names, state

    def returned(
        self, tensors: Sequence[int], names: Sequence[str], updated: Mapping[str, str]
    ) -> tuple[list[str], tuple[tuple[int, str], ...]]:
        """Return the value of each result that is a tensor, and (index, value) of those that are placeholders."""
        nodes = self.region.traced.outputs
        computed = self.unaliased(nodes) if self.differentiated else [*map(self.keep, nodes)]
        results = [self.region.results[place] for place in tensors]
        same = tuple((index, names[result.same]) for index, result in enumerate(results) if result.same >= 0)
        by_index = {index: updated.get(name, name) for index, name in same}
        outputs = [by_index.get(index) or computed[result.index] for index, result in enumerate(results)]
        return outputs, same

    def give(self, node: Node, path: str, kind: Literal["input", "state"]) -> str:
        """Add an input or state value for a placeholder; return its name."""
        name = self.hold(node, path, node.meta["val"], kind=kind)
        self.converted[node] = Ref(name)
        return name

    def add(self, node: Node) -> None:
        """Convert one node: a number, an item of a result, or a call."""
        target: Any = node.target
        if isinstance(node.meta.get("val"), (int, float)):
            self.converted[node] = self.number(self.region.open.get(node), node.meta["val"])
        elif target is operator.getitem:
            self.converted[node] = self.converted[node.args[0]][node.args[1]]  # type: ignore[index]
        elif not isinstance(target, OpOverload):
            raise self.refusal(
                node, f"the call of {getattr(target, '__name__', target)!r} has no plain tensor form"
            )
        elif self.copies_nothing(node):
            self.converted[node] = self.converted[node.args[0]]  # type: ignore[index]
        elif f"{target.namespace}.{target._opname}" not in _ASSERTS:
            self.add_call(node, _STRIDELESS.get(target, target))

    def copies_nothing(self, node: Node) -> bool:
        """Return True for a call that only returns its argument."""
        if node.target is _aten.detach.default:
            return self.differentiated
        unchanged = not any(node.kwargs.get(key) is not None for key in _CHANGES)
        return (node.target is _aten._to_copy.default and unchanged) or _drops_nothing(node)

    def add_call(self, node: Node, target: Any) -> None:
        """Add the task of a call, unless an equal one has been added."""
        if target is _aten.native_batch_norm_backward.default and node.args[7]:
            # In training, the backward does not read the running statistics, which the forward has changed.
            node.args = (*node.args[:3], None, None, *node.args[5:])
        args, kwargs = self.arguments(node)
        if target._schema.is_mutable:
            raise self.refusal(node, "it changes a tensor in place, which no graph holds")
        output: Any = node.meta.get("val")
        alias = shared(target)
        if target is _aten.einsum.default and len(node.args[1]) == 1:  # type: ignore[arg-type]
            alias = 1  # with one operand, it returns a view if it can
        pure = torch.Tag.nondeterministic_seeded not in target.tags
        unpack = isinstance(output, (tuple, list))
        key = (target, repr(args), repr(kwargs)) if pure and (unpack or alias is not None) else None
        if key in self.twins:
            self.converted[node] = self.twins[key]
            return
        base = self.root(args, dict(kwargs), alias)
        everything = (*args, *(item for _, item in kwargs))
        memories = self.memories(everything)
        names = [f"{node.name}.{index}" for index in range(len(output))] if unpack else [node.name]
        items = output if unpack else (output,)
        outputs = [
            self.hold(node, name, item, base or memories.get(memory(item)))
            for name, item in zip(names, items)
        ]
        views = bool(outputs) and all(self.values[name].storage != name for name in outputs)
        module, source, code = self.region.located(node)
        fake_args, fake_kwargs = self.stand_in(args), {key: self.stand_in(item) for key, item in kwargs}
        random = draws(target, fake_args, fake_kwargs)
        reads = len({*refs(everything)})
        ways = cuts(target, fake_args, fake_kwargs, output) if self.divisible else ()
        self.tasks.append(
            Task(
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
                cuts=tuple(way for way in ways if len(way.inputs) == reads),
                module=module,
                source=source,
                code=code,
                phase=self.phase,
                label=target._opname,
            )
        )
        if random:
            self.random = node.name
        results: Argument = tuple(map(Ref, outputs)) if unpack else Ref(outputs[0]) if outputs else None
        self.converted[node] = results
        if key is not None:
            self.twins[key] = results

    def number(self, traced: Any, value: Any) -> Argument:
        """Return a number as an argument, `opened` if it depends on the sizes or floats of the call."""
        if not isinstance(traced, (torch.SymInt, torch.SymFloat)) or not traced.node.expr.free_symbols:
            return value
        place, _ = self.sizes.setdefault(traced.node.expr, (len(self.sizes), traced))
        return opened(int(value) if isinstance(traced, torch.SymInt) else float(value), place)

    def stand_in(self, argument: Argument) -> Any:
        """Return an argument with each value replaced by its one fake tensor."""
        if isinstance(argument, tuple):
            return tuple(map(self.stand_in, argument))
        return self.fakes[argument.value] if isinstance(argument, Ref) else argument

    def arguments(self, node: Node) -> tuple[tuple[Argument, ...], tuple[tuple[str, Argument], ...]]:
        """Return the arguments of a call in the graph's terms, without those that have no effect."""
        follows = node.target is _aten._to_copy.default
        schema = getattr(node.target, "_schema", None)
        required = {each.name for each in schema.arguments if not each.has_default_value()} if schema else ()
        kwargs = [
            (key, self.argument(node, item))
            for key, item in node.kwargs.items()
            if (item is not None or key in required)
            and not (key == "pin_memory" and not item)
            and not (follows and key == "device")
        ]
        return tuple(self.argument(node, item) for item in node.args), tuple(kwargs)

    def argument(self, node: Node, item: Any) -> Argument:
        """Return one argument of `node` in the graph's terms."""
        if isinstance(item, Node):
            # Such a condition is recorded as its value in this call.
            self.fixed |= isinstance(self.region.open.get(item), torch.SymBool)
            return self.converted[item]
        if isinstance(item, (list, tuple)):
            return tuple(self.argument(node, part) for part in item)
        if isinstance(item, torch.device):
            return Const("device")
        if isinstance(item, (torch.dtype, torch.layout, torch.memory_format)):
            return Const(str(item))
        if item is None or isinstance(item, (bool, int, float, complex, str)):
            return item
        raise self.refusal(node, f"an argument of type {type(item).__name__} cannot be written into a graph")

    def hold(
        self,
        node: Node,
        path: str,
        item: Any,
        storage: str | None = None,
        kind: Literal["input", "state", "made"] = "made",
    ) -> str:
        """Add a value like a fake tensor, in its own memory or in `storage`; return its name. The name is the
        path, with a suffix if another value has this name."""
        name, count = path, 0
        while name in self.values:
            count += 1
            name = f"{path}_{count}"
        path = "" if kind == "made" else path
        self.fakes[name] = item
        if item is None:
            self.values[name] = Value(name, (), "object", 0, name, kind, path)
            return name
        if not isinstance(item, torch.Tensor):
            raise self.refusal(node, "it makes a Python number out of the values in a tensor")
        shape = tuple(item.shape)
        if any(isinstance(size, OPEN) for size in shape):
            raise self.refusal(node, f"the size of a tensor of layout {item.layout} is open")
        dtype, nbytes = str(item.dtype).removeprefix("torch."), math.prod(shape) * item.element_size()
        # Until `with_open` puts those that depend on the call's sizes in their place.
        sizes = (*shape, math.prod(shape))
        order = memory_order(item)
        self.values[name] = Value(name, shape, dtype, nbytes, storage or name, kind, path, order, open=sizes)
        return name

    def root(
        self, args: tuple[Argument, ...], kwargs: dict[str, Argument], alias: int | str | None
    ) -> str | None:
        """Return the storage that the outputs share; None if they have their own."""
        if alias is None:
            return None
        argument = kwargs.get(alias) if isinstance(alias, str) else args[alias] if alias < len(args) else None
        name = next(refs(argument), None)
        return self.values[name].storage if name else None

    def memories(self, arguments: Argument) -> dict[int | None, str]:
        """Return the storage of each tensor argument of a call by the identity of its memory. Some operators
        return an argument although their schema does not say so (`type_as` of the same dtype, `meshgrid`)."""
        named = {memory(self.fakes[name]): self.values[name].storage for name in refs(arguments)}
        return {memory: name for memory, name in named.items() if memory is not None}

    def keep(self, node: Any) -> str:
        """Return the value of an output node."""
        value = self.converted[node]
        if not isinstance(value, Ref):
            raise self.refusal(node, "it returns something other than a tensor")
        return value.value

    def unaliased(self, nodes: Sequence[Node]) -> list[str]:
        """Return a distinct value for each of these results: a repeated one becomes a view."""
        distinct: dict[str, None] = {}
        for node in nodes:
            name = self.keep(node)
            if name in distinct:
                storage = self.values[name].storage
                view = self.like(node, name, "view", storage)
                self.tasks.append(Task(view, "aten.alias.default", (Ref(name),), outputs=(view,), free=True))
                name = view
            distinct[name] = None
        return list(distinct)

    def fresh(self, node: Node) -> str:
        """Return the value of an output node in its own memory: a copy if it is an input or state, or may
        share memory with one."""
        name = self.keep(node)
        if self.values[self.values[name].storage].kind == "made":
            return name
        copy = self.like(node, name, "copy")
        self.tasks.append(Task(copy, "aten.clone.default", (Ref(name),), outputs=(copy,)))
        return copy

    def like(self, node: Node, name: str, what: str, storage: str | None = None) -> str:
        """Add a value of the form of another one, as a `view` of it or a `copy`; return its name."""
        twin = self.hold(node, f"{name}.{what}", self.fakes[name], storage)
        self.values[twin] = replace(self.values[twin], open=self.values[name].open)
        return twin

    def refusal(self, node: Node, why: str) -> Untraceable:
        """Return the error for a node, with the call, its module and the user's line."""
        module, source, code = self.region.located(node)
        place = (f" in {module}" if module else "") + (f" at {source}" if source else "")
        return Untraceable(
            f"{node.target} ({node.name}){place}" + (f": `{code}`" if code else "") + f": {why}"
        )


def _drops_nothing(node: Node) -> bool:
    """Return True for the copy that torch traces for a dropout that is off; eager returns its argument."""
    if node.target is not _aten.clone.default:
        return False
    *_, (_, source) = node.meta.get("source_fn_stack") or [("", None)]
    known = getattr(source, "__module__", "") in ("torch.nn.functional", "torch.nn.modules.dropout")
    return known and "dropout" in getattr(source, "__name__", "").lower()


def _finished(captured: Captured) -> Captured:
    """Return a graph of forward and backward with its views folded and each gradient named after its
    parameter or input."""
    graph, names = folded(captured.graph)
    gradients = tuple((target, names.get(name, name)) for target, name in captured.gradients)
    # A gradient that is not made here, or that a task also reads, keeps its name.
    called = {
        name: f"{graph.value[target].path}.grad"
        for target, name in gradients
        if graph.value[name].kind == "made" and not graph.readers[name]
    }
    graph = renamed(with_own_views(graph), called)
    count = len(captured.graph.outputs) - len(gradients)
    by_target = tuple(zip((target for target, _ in gradients), graph.outputs[count:]))
    return replace(captured, graph=graph, gradients=by_target)
