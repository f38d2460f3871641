"""One export with the batch size left open: the proof that one graph serves every size, and its captures.

`torch.export` with a `Dim` follows a symbol through the model's Python and fails where Python decides by it
(a branch, a size turned into an int). What remains is a graph whose every size is an expression in the rows,
so that the graph of another batch size is this one with a number put in. 0 and 1 row are outside the proof:
torch broadcasts size 1, and treats memory of no or one row in its own way.
"""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from ..graph import Argument, Graph, Task, replace_refs
from .captured import Captured
from .export import Traced, assemble, trace
from .functions import Call, Returned
from .private import quiet
from .refusals import Untraceable
from .routes import taken

FEWEST = 2
"""The least number of rows that a proof covers."""
_MANY = 2**62
_ASSERTIONS = (
    "_assert_scalar",
    "_functional_assert_scalar",
    "sym_constrain_range",
    "sym_constrain_range_for_size",
)
_Numbers: TypeAlias = dict[Any, int]


@dataclass(frozen=True)
class Batch:
    """How two signatures differ: in some tensors one axis, `before` long in the one and `rows` in the other.

    `axes` has that axis, or None, for each tensor; `rest` is equal for all signatures that differ just so.
    """

    axes: tuple[int | None, ...]
    before: int
    rows: int
    rest: Hashable


def difference(old: Any, new: Any) -> Batch | None:
    """What is between two keys of `Arguments`; None when it is more than the size of one contiguous batch."""
    *same, tensors = old
    *others, changed = new
    overlaps = same[2]
    if same != others or overlaps or len(tensors) != len(changed):
        return None
    axes: list[int | None] = []
    rest: list[Hashable] = []
    sizes: set[tuple[int, int]] = set()
    for (before, strides, *kind), (shape, now, *other) in zip(tensors, changed):
        if kind != other or len(before) != len(shape):
            return None
        moved = [axis for axis, size in enumerate(shape) if size != before[axis]]
        if len(moved) > 1 or (not moved and strides != now):
            return None
        axes.append(moved[0] if moved else None)
        if not moved:
            rest.append((shape, now, *kind))
            continue
        if strides != _contiguous(before) or now != _contiguous(shape):
            return None
        sizes.add((before[moved[0]], shape[moved[0]]))
        rest.append(((*shape[: moved[0]], None, *shape[moved[0] + 1 :]), *kind))
    if len(sizes) != 1 or min(min(sizes)) < FEWEST:
        return None
    ((count, rows),) = sizes
    return Batch(tuple(axes), count, rows, (*others, tuple(rest)))


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def prove(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], batch: Batch, base: Captured
) -> Family:
    """The captures of a model at all batch sizes from two rows on; `base` is the one at `batch.before` rows.

    The call has `batch.rows` rows. Raises Untraceable, with the reason, when export cannot show that one
    graph serves all sizes, or when that graph at `batch.before` rows is not the one of `base`, task by task.
    """
    if base.how != "export" or base.calls:
        raise Untraceable("parts of it run as written, not traced")
    if base.notes:
        raise Untraceable(base.notes[0])
    notes: list[str] = []
    open_axis = torch.export.Dim("batch", min=FEWEST)
    sizes = tuple({axis: open_axis} if axis is not None else None for axis in batch.axes)
    with taken(function, args, kwargs, notes) as (call, name, paths):
        try:
            with quiet():
                traced = trace(call, sizes)
        except Exception as error:
            # Whatever export trips over, the static capture has shown that the size left open is the cause.
            raise Untraceable(_reason(error)) from error
        family = Family(base, traced, call, name, paths, batch)
        family.compare(batch.before)
    if notes:
        raise Untraceable(notes[0])
    return family


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    found = next((line.removeprefix("- ") for line in lines if line.startswith("- ")), "")
    return found or (lines[0] if lines else type(error).__name__)


class Family:
    """One model's captures at every size of its batch: `at(rows)`."""

    def __init__(
        self, base: Captured, traced: Traced, call: Call, name: str, paths: tuple[str, ...], batch: Batch
    ) -> None:
        self.base, self.name, self.paths = base, name, paths
        self.traced = traced
        # The proof outlives the call and must not keep its tensors.
        empty = [torch.empty(0, dtype=t.dtype, device=t.device) for t in call.arguments.tensors]
        self.call = Call(*call.function, dataclasses.replace(call.arguments, tensors=empty))
        traced.program._example_inputs = None
        self.symbol = _symbol(traced, batch)
        if not any(map(_takes_all, base.graph.tasks)):
            _drop_idle(traced, base.graph)
        self.open = [
            (node, value) for node in traced.program.graph.nodes if _open(value := node.meta.get("val"))
        ]
        self.tasks: dict[str, str] = {}
        self.values: dict[str, str] = {}

    def at(self, rows: int) -> Captured:
        """The capture of a call with so many rows; Untraceable below two. Linear in tasks, traces nothing."""
        if rows < FEWEST:
            raise Untraceable(f"a batch of {rows} rows is always captured on its own")
        found = self.assembled(rows)
        return dataclasses.replace(self.base, graph=self.renamed(found.graph).check(), strides=found.strides)

    def assembled(self, rows: int) -> Captured:
        """The capture by the names that the open export gave."""
        numbers: _Numbers = {self.symbol: rows}
        for node, value in self.open:
            node.meta["val"] = self.sized(value, numbers)
        returned = self.traced.returned
        strides = tuple(s and tuple(self.number(step, numbers) for step in s) for s in returned.strides)
        traced = self.traced._replace(returned=dataclasses.replace(returned, strides=strides))
        return assemble(traced, self.call, self.name, self.paths, {})

    def sized(self, value: Any, numbers: _Numbers) -> Any:
        """What a node makes, with numbers in the places of sizes."""
        if isinstance(value, (tuple, list)):
            return tuple(self.sized(item, numbers) for item in value)
        if isinstance(value, torch.Tensor) and _open(value):
            shape = [self.number(size, numbers) for size in value.shape]
            strides = [self.number(step, numbers) for step in value.stride()]
            return torch.empty_strided(shape, strides, dtype=value.dtype, device="meta")
        return self.number(value, numbers) if isinstance(value, torch.SymInt) else value

    def number(self, size: Any, numbers: _Numbers) -> int:
        """A size at a number of rows."""
        if isinstance(size, int):
            return size
        expression = size.node.expr
        if expression not in numbers:
            found = expression.xreplace({self.symbol: numbers[self.symbol]})
            if not found.is_Integer:
                raise Untraceable(f"the size {expression} depends on more than the rows of the batch")
            numbers[expression] = int(found)
        return numbers[expression]

    def compare(self, rows: int) -> None:
        """Take over the names of `base`; Untraceable unless the capture at `rows` rows then equals it."""
        base, again = self.base, self.assembled(rows)
        one, other = again.graph, base.graph
        for name, mine, theirs in (
            ("tasks", one.tasks, other.tasks),
            ("inputs", one.inputs, other.inputs),
            ("state", one.state, other.state),
        ):
            if len(mine) != len(theirs):
                raise Untraceable(
                    f"with its batch left open it has {len(mine)} {name} in place of {len(theirs)}"
                )
        self.values.update(zip((*one.inputs, *one.state), (*other.inputs, *other.state)))
        for task, known in zip(one.tasks, other.tasks):
            self.tasks[task.name] = known.name
            self.values.update(zip(task.outputs, known.outputs))
        found = self.renamed(one)
        if found != other:
            wrong = next((b for a, b in zip(found.tasks, other.tasks) if a != b), None)
            raise Untraceable(f"with its batch left open {wrong.where if wrong else 'a shape'} is another")
        same = tuple((index, self.values[name]) for index, name in again.same)
        state = {self.values[name]: slot for name, slot in again.state.items()}
        if (again.grads, same, again.home) != (base.grads, base.same, base.home):
            raise Untraceable("with its batch left open it returns other tensors")
        if not _same_state(state, base.state):
            raise Untraceable("the model has changed since it was captured")
        if not _same_rest(again.rebuild, base.rebuild):
            raise Untraceable("something that it returns besides tensors depends on the size of the batch")

    def renamed(self, graph: Graph) -> Graph:
        """The graph by the names of `base`, so that pins and reports mean the same at each size."""
        tasks, values = self.tasks, self.values
        if not all(task.name in tasks for task in graph.tasks) or not all(
            v.name in values for v in graph.values
        ):
            raise Untraceable("its graph has other tasks at this size")

        def called(names: tuple[str, ...], by: Mapping[str, str]) -> tuple[str, ...]:
            return tuple(by[name] for name in names)

        def told(argument: Argument) -> Argument:
            return replace_refs(argument, values)

        return dataclasses.replace(
            graph,
            values=tuple(
                dataclasses.replace(value, name=values[value.name], storage=values[value.storage])
                for value in graph.values
            ),
            tasks=tuple(
                dataclasses.replace(
                    task,
                    name=tasks[task.name],
                    args=tuple(map(told, task.args)),
                    kwargs=tuple((key, told(argument)) for key, argument in task.kwargs),
                    outputs=called(task.outputs, values),
                    after=called(task.after, tasks),
                    writes=called(task.writes, values),
                )
                for task in graph.tasks
            ),
            inputs=called(graph.inputs, values),
            state=called(graph.state, values),
            outputs=called(graph.outputs, values),
            updates=tuple((values[made], values[target]) for made, target in graph.updates),
        )


def _symbol(traced: Traced, batch: Batch) -> Any:
    """The one symbol that stands for the rows; Untraceable when anything narrows it."""
    program = traced.program
    users = set(program.graph_signature.user_inputs)
    nodes = [node for node in program.graph.nodes if node.op == "placeholder" and node.name in users]
    sizes = [node.meta["val"].shape[axis] for node, axis in zip(nodes, batch.axes) if axis is not None]
    if not all(isinstance(size, torch.SymInt) and size.node.expr.is_Symbol for size in sizes):
        raise Untraceable("export fixes the size of the batch")
    symbols = {size.node.expr for size in sizes}
    if len(symbols) != 1:
        raise Untraceable("export tells the batches of its inputs apart")
    (symbol,) = symbols
    bounds, known = program.range_constraints.get(symbol), sizes[0].node.shape_env
    if bounds is None or not (bounds.lower <= FEWEST and bounds.upper >= _MANY):
        raise Untraceable(f"export allows a batch of {bounds} rows only")
    # That the batches of several inputs are equal is what the proof is given, and no guard.
    guards = [guard.expr for guard in known.guards if known.replace(guard.expr) != True]  # noqa: E712
    if guards or known.deferred_runtime_asserts:
        raise Untraceable("export guards the size of the batch")
    for node in program.graph.nodes:
        if node.op == "output" and any(isinstance(_val(item), torch.SymInt) for item in node.args[0]):
            raise Untraceable("it returns the size of the batch as a number")
        if getattr(node.target, "_opname", "") in _ASSERTIONS:
            raise Untraceable(f"it asserts something of the size of the batch ({node.name})")
        if isinstance(node.meta.get("val"), (torch.SymFloat, torch.SymBool)):
            raise Untraceable(f"it computes {node.name} from the size of the batch")
    return symbol


def _val(item: Any) -> Any:
    return item.meta.get("val") if isinstance(item, torch.fx.Node) else item


def _takes_all(call: Task | torch.fx.Node) -> bool:
    """Whether it is a slice from the first element to the last, whatever the size."""
    slices = call.target in (torch.ops.aten.slice.Tensor, "aten.slice.Tensor")
    return slices and tuple(call.args[2:4]) == (0, sys.maxsize) and tuple(call.args[4:]) in ((), (1,))


def _drop_idle(traced: Traced, base: Graph) -> None:
    """Take out slices that take all; where the size is known, indexing leaves at most one alias of them."""
    aliases = Counter(
        (task.module, task.source) for task in base.tasks if task.target == "aten.alias.default"
    )
    graph = traced.program.graph
    for node in graph.nodes:
        if node.op != "call_function" or not _takes_all(node):
            continue
        module, source, _ = traced.locations.find(node)
        if aliases[module, source] and not any(map(_takes_all, node.users)):
            aliases[module, source] -= 1
            node.target, node.args = torch.ops.aten.alias.default, node.args[:1]
        else:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


def _open(value: Any) -> bool:
    """Whether what a node makes has a size that is no plain number."""
    if isinstance(value, (tuple, list)):
        return any(map(_open, value))
    if isinstance(value, torch.Tensor):
        return value.layout is torch.strided and any(map(_open, (*value.shape, *value.stride())))
    return isinstance(value, torch.SymInt)


def _same_state(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
    """Whether two captures read the same live tensors, and equal constants."""
    for name, (owner, key) in theirs.items():
        place, other = mine[name]
        if place is owner and other == key:
            continue
        one, two = place[other], owner[key]
        if one.dtype != two.dtype or not torch.equal(one, two):
            return False
    return True


def _same_rest(mine: Any, theirs: Any) -> bool:
    """Whether two calls gave back the same but for tensors."""
    one, other = (getattr(rebuild, "__self__", None) for rebuild in (mine, theirs))
    if not isinstance(one, Returned) or not isinstance(other, Returned):
        return False
    if (one.dynamic, one.spec) != (other.dynamic, other.spec):
        return False
    return all(type(a) is type(b) and (a is b or _equal(a, b)) for a, b in zip(one.leaves, other.leaves))


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:
        # An object of the user's that cannot be compared is not known to be the same.
        return False
