"""A graph from a symbolic trace: what one real run shows of each call, and the edges that mutation asks
for.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import fx
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

from ..graph import Graph, Ref, Task, Value
from .convert import memory_order
from .functions import Call
from .locations import Locations
from .private import TorchDispatchMode, pytree
from .refusals import Untraceable
from .states import Before, Slot, slots

PREFIX = "autopar.traced."
"""Targets of the tasks of a symbolic trace, followed by the task's name."""

_SHAPE = {"size", "dim", "numel", "stride", "ndimension", "element_size", "is_floating_point", "is_complex"}
_MOVES = {"to", "cpu", "cuda", "type", "type_as", "new_tensor"}


class Watch(fx.Interpreter):
    """A real run that notes, of each call, its result, the storages it changed, its FLOPs and whether it
    drew.
    """

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.result: dict[fx.Node, Any] = {}
        self.changed: dict[fx.Node, set[int]] = {}
        self.flops: dict[fx.Node, int] = {}
        self.drew: set[fx.Node] = set()

    def run_node(self, n: fx.Node) -> Any:
        touched = [item for argument in n.all_input_nodes for item in tensors(self.result[argument])]
        if n.op == "call_module":
            touched += [slot.tensor for slot in slots(self.fetch_attr(str(n.target)))]
        before = Before(touched)
        state = torch.get_rng_state()
        with FlopCounterMode(display=False) as counter, Fixed(n):
            result = self.result[n] = super().run_node(n)
        self.flops[n] = counter.get_total_flops()
        self.changed[n] = {memory(tensor) for tensor in before.changed()}
        if not torch.equal(state, torch.get_rng_state()):
            self.drew.add(n)
        return result


class Fixed(TorchDispatchMode):
    """Refuses operators whose result has a size that depends on values: a graph of other calls it would
    not be.
    """

    def __init__(self, node: fx.Node) -> None:
        super().__init__()
        self.node = node

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.dynamic_output_shape in func.tags and (func is not _INDEX or _masks(args[1])):
            raise Untraceable(
                f"{func} ({self.node.name}): the size of its result depends on the values in a tensor"
            )
        return func(*args, **(kwargs or {}))


_INDEX = torch.ops.aten.index.Tensor


def _masks(indices: Any) -> bool:
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)


def tensors(item: Any) -> list[torch.Tensor]:
    """The tensors inside a nested result."""
    return [leaf for leaf in pytree.tree_leaves(item) if isinstance(leaf, torch.Tensor)]


def memory(tensor: torch.Tensor) -> int:
    """Identity of the storage behind a tensor, good while that is alive."""
    return tensor.untyped_storage()._cdata


class Assembly:
    """A graph in the making: `add` each node of the trace in order, then read `graph`.

    Each node stands for a nested structure with a `Ref` for every tensor, and plain Python where the
    signature decides.
    """

    def __init__(
        self, call: Call, name: str, paths: tuple[str, ...], module: fx.GraphModule, seen: Watch
    ) -> None:
        self.call, self.name, self.paths, self.module, self.seen = call, name, paths, module, seen
        self.stands: dict[fx.Node, Any] = {}
        self.values: dict[str, Value] = {}
        self.live: dict[str, Any] = {}
        self.inputs: list[str] = []
        self.outputs: list[str] = []
        self.state: dict[str, Slot] = {}
        self.calls: dict[str, Callable[..., Any]] = {}
        self.tasks: list[Task] = []
        self.slots: dict[int, Slot] = {}
        for slot in slots(call.model):
            self.slots.setdefault(id(slot.tensor), slot)
        self.held: dict[int, str] = {}
        self.storages: dict[int, str] = {}
        self.constants: dict[str, Any] = {}
        self.mutable = set().union(*seen.changed.values()) if seen.changed else set()
        self.writer: dict[int, str] = {}
        self.readers: dict[int, list[str]] = {}
        self.random: str | None = None
        self.locations = Locations()

    def add(self, node: fx.Node) -> None:
        """Convert one node."""
        result = self.seen.result[node]
        if node.op == "placeholder":
            path = self.paths[len(self.inputs)]
            self.inputs.append(self.value(path, result, "input", path))
            self.stands[node] = Ref(self.inputs[-1])
        elif node.op == "get_attr":
            self.stands[node] = self.hold(
                operator.attrgetter(str(node.target))(self.module), str(node.target)
            )
        elif node.op == "output":
            structure = pytree.tree_leaves(self.structure(node.args[0]), is_leaf=_is_ref)
            self.outputs = [leaf.value if _is_ref(leaf) else self.constant(leaf) for leaf in structure]
        else:
            self.operate(node, result)

    def operate(self, node: fx.Node, result: Any) -> None:
        """Convert a call: nothing when its result is fixed or a part of one that is there, else a task."""
        args, kwargs = self.structure(node.args), self.structure(node.kwargs)
        read = _refs((args, kwargs))
        if node.target is operator.getitem and not _is_ref(args[0]) and not _refs(args[1]):
            self.stands[node] = args[0][args[1]]
            return
        if (not read and not tensors(result)) or _describes(node, result):
            self.stands[node] = result
            return
        self.stands[node] = self.task(node, args, kwargs, list(read), result)

    def task(self, node: fx.Node, args: Any, kwargs: Any, read: list[str], result: Any) -> Any:
        """Add the task of a call; the structure of its result."""
        target: Any = node.target
        held: dict[str, str] = {}
        if node.op == "call_module":
            leaf = self.module.get_submodule(str(node.target))
            held = {
                slot.path: self.hold(slot.tensor, f"{node.target}.{slot.path}").value for slot in slots(leaf)
            }
            target = leaf
        leaves, spec = pytree.tree_flatten(result)
        name = node.name
        outputs: list[str] = []
        stand: list[Any] = []
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor) or (leaf is not None and len(leaves) == 1):
                outputs.append(self.value(f"{name}.{len(outputs)}" if len(leaves) > 1 else name, leaf))
                stand.append(Ref(outputs[-1]))
            else:
                stand.append(leaf)
        state = list(dict.fromkeys(name for name in held.values() if name not in read))
        given = (*read, *state)
        key = PREFIX + name
        self.calls[key] = _calling(node, target, args, kwargs, given, held, len(leaves) > 1)
        changed = self.seen.changed[node]
        touched = {memory(tensor) for value in (*given, *outputs) for tensor in tensors(self.live[value])}
        shared = sorted((touched | changed) & self.mutable, key=lambda item: self.storages[item])
        drew = node in self.seen.drew
        after = dict.fromkeys(
            ([self.random] if drew and self.random else []) + self.order(shared, changed, name)
        )
        if any(self.values[value].dtype == "object" for value in read):
            raise Untraceable(f"{name} goes on with a number made out of the values in a tensor")
        objects = any(self.values[value].dtype == "object" for value in outputs)
        _, source, code = self.locations.find(node)
        self.tasks.append(
            Task(
                name=name,
                target=key,
                args=tuple(map(Ref, given)),
                outputs=tuple(outputs),
                unpack=len(leaves) > 1,
                after=tuple(after),
                writes=tuple(v for v in given if any(memory(t) in changed for t in tensors(self.live[v]))),
                random="default" if drew else None,
                home=bool(shared) or drew or objects or not read or _names_device(node, (args, kwargs)),
                colocate="changed in place" if shared else None,
                flops=self.seen.flops[node],
                module=_path(node),
                source=source,
                code=code,
            )
        )
        if drew:
            self.random = name
        return pytree.tree_unflatten(stand, spec)

    def order(self, shared: Iterable[int], changed: set[int], name: str) -> list[str]:
        """Tasks that must end before this one: the last writer of what it touches, all readers of what it
        changes.
        """
        after: list[str] = []
        for item in shared:
            if item in self.writer:
                after.append(self.writer[item])
            if item in changed:
                after += self.readers.pop(item, [])
                self.writer[item] = name
            else:
                self.readers.setdefault(item, []).append(name)
        return [earlier for earlier in after if earlier != name]

    def structure(self, item: Any) -> Any:
        """Arguments of a node with what each node in them stands for."""
        return fx.node.map_arg(item, lambda node: self.stands[node])

    def value(self, name: str, item: Any, kind: Any = "made", path: str = "") -> str:
        """Add a value like `item`; its name, made unique."""
        unique, count = name, 0
        while unique in self.values:
            count += 1
            unique = f"{name}_{count}"
        self.live[unique] = item
        if not isinstance(item, torch.Tensor):
            self.values[unique] = Value(unique, (), "object", 0, unique, kind, path)
            return unique
        storage = self.storages.setdefault(memory(item), unique)
        dtype = str(item.dtype).removeprefix("torch.")
        size = item.numel() * item.element_size()
        shape, order = tuple(item.shape), memory_order(item)
        self.values[unique] = Value(unique, shape, dtype, size, storage, kind, path, order)
        return unique

    def hold(self, tensor: torch.Tensor, path: str) -> Ref:
        """The state value of a tensor of the model, or of a constant of the trace."""
        if id(tensor) not in self.held:
            slot = self.slots.get(id(tensor))
            if slot is None:
                key = path.rsplit(".", 1)[-1]
                self.constants[key] = tensor
                slot = Slot(key, self.constants, key)
            name = self.value(slot.path, tensor, "state", slot.path)
            self.state[name] = slot
            self.held[id(tensor)] = name
        return Ref(self.held[id(tensor)])

    def constant(self, item: Any) -> str:
        """A value for a result that is fixed by the signature."""
        name = self.value("constant", item)
        self.calls[PREFIX + name] = lambda: item
        self.tasks.append(Task(name, PREFIX + name, outputs=(name,), home=True))
        return name

    def graph(self) -> Graph:
        """The finished graph."""
        return Graph(
            self.name,
            tuple(self.values.values()),
            tuple(self.tasks),
            tuple(self.inputs),
            tuple(self.state),
            tuple(self.outputs),
        ).check()


def _calling(
    node: fx.Node,
    target: Any,
    args: Any,
    kwargs: Any,
    given: tuple[str, ...],
    held: dict[str, str],
    unpack: bool,
) -> Callable[..., Any]:
    """The task's callable: puts what it is given into the arguments of the node and makes the node's call."""

    def call(*tensors: Any) -> Any:
        found = dict(zip(given, tensors))
        a, k = pytree.tree_map(
            lambda leaf: found[leaf.value] if _is_ref(leaf) else leaf, (args, kwargs), is_leaf=_is_ref
        )
        if node.op == "call_method":
            result = getattr(a[0], str(node.target))(*a[1:], **k)
        elif node.op == "call_module":
            result = functional_call(target, {path: found[name] for path, name in held.items()}, a, k)
        else:
            result = target(*a, **k)
        return (
            [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
            if unpack
            else result
        )

    return call


def _is_ref(item: Any) -> bool:
    return isinstance(item, Ref)


def _refs(structure: Any) -> dict[str, None]:
    return {leaf.value: None for leaf in pytree.tree_leaves(structure, is_leaf=_is_ref) if _is_ref(leaf)}


def _describes(node: fx.Node, result: Any) -> bool:
    """Whether a call asks for shape, dtype or device only, which the signature fixes."""
    asks = node.op == "call_method" and node.target in _SHAPE
    return (asks or node.target is getattr or node.target is len) and not tensors(result)


def _names_device(node: fx.Node, arguments: Any) -> bool:
    return (node.op == "call_method" and node.target in _MOVES) or any(
        isinstance(leaf, torch.device) for leaf in pytree.tree_leaves(arguments, is_leaf=_is_ref)
    )


def _path(node: fx.Node) -> str:
    """Module path of a node of the trace, without what capture wrapped the model in."""
    stack = node.meta.get("nn_module_stack")
    path = str(next(reversed(stack.values()))[0]) if stack else ""
    if node.op == "call_module":
        path = str(node.target)
    return path.removeprefix("call").removeprefix(".").removeprefix("model").removeprefix(".")
