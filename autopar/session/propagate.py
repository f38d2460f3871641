"""Metadata propagation: outputs of each task on the type of its placed device, by torch's fake tensors.

A graph describes the device of its capture. Kernels of another kind may return other strides or statistics, copy where
a view was captured, or refuse. No tensor is computed, and no device needs to be present.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn

import torch

from ..capture import Captured
from ..capture import autocast as casting
from ..capture.captured import memory_order
from ..capture.torch_private import FakeTensorMode, memory
from ..errors import PlanError
from ..ir.graph import Task, Value
from ..ir.plan import Plan
from ..ops import resolve
from ..planner.bounds import lower_bound
from ..planner.candidates import Race
from ..planner.model.instance import Instance
from ..planner.model.simulator import schedule_of
from ..planner.model.timing import timing

log = logging.getLogger("autopar")

_BY_STRIDES = frozenset(
    {"aten.as_strided.default", "aten.as_strided_copy.default", "aten.as_strided_scatter.default"}
)
"""Operators that address memory by position, which depends on its layout."""


def propagated(plan: Plan, captured: Captured) -> Plan:
    """Update each value of a plan's graph to what its placed device makes.

    Shapes, dtypes, bytes, axis order and shared memory come from a call of each task on fake tensors of that device
    type. If bytes or memory differ, the plan is timed again. Statistics that only some devices save (a
    BatchNorm in evaluation) have that device's size. A task that cannot be called so (the user's own code, an
    operator unknown to this build of torch) keeps its captured outputs. Linear in tasks, with one call for
    each operator, device type and form of arguments, and none if all devices have the capture's type.

    Raises PlanError, with the task, its module, line and device, if a task makes another number of tensors,
    another shape or, in a result of the call, another dtype, or if it cannot take the strides of its inputs.
    """
    devices = plan.costed.machine.device
    kinds = {name: device.torch_type for name, device in devices.items()}
    if all(kinds[placed.device] == captured.home.type for placed in plan.placed):
        return plan
    values = _Propagation(plan, captured, kinds).values()
    graph = plan.costed.graph
    changed = [value for value in graph.values if value != values[value.name]]
    if not changed:
        return plan
    log.info("%s: %d values are not laid out as where they were captured", graph.name, len(changed))
    costed = replace(plan.costed, graph=replace(graph, values=tuple(values[v.name] for v in graph.values)))
    if all((v.bytes, v.storage) == (values[v.name].bytes, values[v.name].storage) for v in changed):
        return replace(plan, costed=costed)
    instance = Instance(costed)
    entry = Race(instance).trial(schedule_of(plan))
    assert entry is not None
    timed = timing(entry.simulation)
    return replace(
        plan,
        costed=costed,
        placed=timed.placed,
        transfers=timed.transfers,
        resident=timed.resident,
        memory=timed.memory,
        makespan=timed.makespan,
        lower_bound=lower_bound(instance),
    )


class _Propagation:
    """One pass over a placed graph. `forms`, `storage`: of values on the devices that make them."""

    def __init__(self, plan: Plan, captured: Captured, kinds: Mapping[str, str]) -> None:
        costed = plan.costed
        self.graph, self.captured, self.kinds = costed.graph, captured, kinds
        self.machine, self.home = costed.machine, captured.home.type
        self.where = {task: plan.place[cluster].device for task, cluster in costed.cluster_of.items()}
        self.at = {
            name: costed.home.get(name, self.machine.host) for name in (*self.graph.inputs, *self.graph.state)
        }
        self.known = {value.name: self._known(value) for value in self.graph.values}
        self.forms = {name: self.known[name] for name in self.at}
        self.storage = {name: self.graph.value[name].storage for name in self.at}
        self.calls: dict[Any, tuple[_Output, ...] | str | None] = {}

    def values(self) -> dict[str, Value]:
        """Return every value as its device makes it."""
        for task in self.graph.tasks:
            self._step(task)
        return {value.name: self._now(value) for value in self.graph.values}

    def _step(self, task: Task) -> None:
        device, reads = self.where[task.name], task.inputs
        forms = tuple(self._arrived(name, device) for name in reads)
        if task.target in _BY_STRIDES and reads:
            self._require_places(task, device, reads[0])
        outputs = None if task.target in self.captured.calls else self._outputs_of(task, device, reads, forms)
        if outputs is not None and len(outputs) != len(task.outputs):
            self._wrong(task, device, f"makes {len(outputs)} tensors", str(len(task.outputs)))
        for index, name in enumerate(task.outputs):
            form = self.known[name] if outputs is None else outputs[index].form
            self._judge(task, device, name, form)
            self.forms[name], self.at[name] = form, device
            self.storage[name] = self._memory(task, index, outputs)

    def _outputs_of(
        self, task: Task, device: str, reads: tuple[str, ...], forms: tuple[_Form | None, ...]
    ) -> tuple[_Output, ...] | None:
        """Return the outputs of a task; None if no call can tell."""
        kind = self.kinds[device]
        places = {name: str(index) for index, name in enumerate(reads)}
        alike = task.reading(places)
        plain = tuple(self.known[name] for name in reads)
        # As text, since 1, 1.0 and True are equal.
        key = task.target, kind, forms, plain, task.unpack, repr(alike.args), repr(alike.kwargs)
        if key not in self.calls:
            self.calls[key] = self._attempt(alike, kind, forms, plain)
        outputs = self.calls[key]
        if isinstance(outputs, str):
            raise PlanError(
                f"{task.where} cannot take the strides it is given on {device}: {outputs}; {self._advice(task)}"
            )
        return outputs

    def _attempt(
        self, task: Task, kind: str, forms: tuple[_Form | None, ...], plain: tuple[_Form | None, ...]
    ) -> tuple[_Output, ...] | str | None:
        """Return a call's outputs, or why it fails as text, or None if unknown. `plain`: captured forms."""
        try:
            return called(task, kind, forms)
        except Exception as error:
            log.debug("%s is not known on %s: %s", task.where, kind, error)
            failure = error
        if forms != plain:
            # An operator without a fake in this build of torch fails on the captured device and forms too.
            try:
                called(task, self.home, plain)
            except Exception:
                return None
            try:
                called(task, self.home, forms)
            except Exception:
                return str(failure).partition("\n")[0]
        return None

    def _memory(self, task: Task, index: int, outputs: tuple[_Output, ...] | None) -> str:
        """Return the storage of an output, by the call or else by the capture.

        Captured views follow the schema and may be copies. Lifetimes are correct either way (`lower`, and
        `runtime.lanes.host.clone_aliased` if a call shares memory after all).
        """
        value, reads = self.graph.value[task.outputs[index]], task.inputs
        memory = None if outputs is None else outputs[index].memory
        if memory is not None:
            return self.storage[reads[memory] if memory >= 0 else task.outputs[~memory]]
        if outputs is not None and self.kinds[self.where[task.name]] != self.home:
            return value.name
        others = (*reads, *task.outputs[:index])
        up = next((name for name in others if self.graph.value[name].storage == value.storage), None)
        if up is None:
            return self.storage.get(value.storage, value.storage)
        return self.storage[up]

    def _judge(self, task: Task, device: str, name: str, form: _Form | None) -> None:
        """Raise PlanError if readers or the caller cannot take a value in place of the captured one."""
        known, result = self.known[name], name in self.graph.results
        if known == form or (not result and (_blank(known) or _blank(form))):
            return
        if known is None or form is None:
            self._wrong(task, device, f"makes {_words(form)}", _words(known))
        if known.shape != form.shape or (result and known.dtype != form.dtype):
            self._wrong(task, device, f"makes {name!r} as {_words(form)}", _words(known))

    def _require_places(self, task: Task, device: str, name: str) -> None:
        """Raise PlanError if memory that a task addresses by position is not laid out as captured."""
        root = self.graph.value[name].storage
        form, known = self.forms.get(root), self.graph.value[root].order
        moved = self.at[name] != device and name != root
        if moved or self.storage[name] != root or form is None or axes(form) != known:
            raise PlanError(
                f"{task.where} reads memory by strides, which {root!r} does not have on {device}; write it with "
                f"view, transpose or unfold, or {self._advice(task)}"
            )

    def _wrong(self, task: Task, device: str, what: str, known: str) -> NoReturn:
        raise PlanError(
            f"{task.where} {what} on {device}, {known} where it was captured; {self._advice(task)}"
        )

    def _advice(self, task: Task) -> str:
        home = next((name for name, kind in self.kinds.items() if kind == self.home), None)
        if home is None:
            return "move the model and its inputs to a device of the plan, so that it is captured there"
        return f"keep it on {home}: pins={{{task.module or '*'!r}: {home!r}}}"

    def _arrived(self, name: str, device: str) -> _Form | None:
        """Return a value as it arrives on a device: transfers make it dense."""
        form = self.forms[name]
        return form if form is None or self.at[name] == device else copied(form)

    def _known(self, value: Value) -> _Form | None:
        """Return a value as captured; strides are known for state, the axis order for others."""
        if value.dtype == "object":
            return None
        dtype = getattr(torch, value.dtype)
        if value.name in self.captured.state:
            owner, key = self.captured.state[value.name]
            tensor = owner[key]
            if tensor.layout is torch.strided and tuple(tensor.shape) == value.shape:
                return _Form(value.shape, tensor.stride(), dtype)
        return _Form(value.shape, in_order(value.shape, value.order), dtype)

    def _now(self, value: Value) -> Value:
        form, storage = self.forms[value.name], self.storage[value.name]
        if form == self.known[value.name]:
            return replace(value, storage=storage)
        if form is None:
            return replace(value, shape=(), dtype="object", bytes=0, storage=storage, order=())
        dtype, size = str(form.dtype).removeprefix("torch."), math.prod(form.shape) * form.dtype.itemsize
        opened = value.open if form.shape == value.shape else ()
        return Value(
            value.name, form.shape, dtype, size, storage, value.kind, value.path, axes(form), open=opened
        )


def _blank(form: _Form | None) -> bool:
    return form is None or 0 in form.shape


def _words(form: _Form | None) -> str:
    return "no tensor" if form is None else f"{list(form.shape)} of {form.dtype}"


class _Form(NamedTuple):
    """A tensor without its elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype


class _Output(NamedTuple):
    """One output of a call: its form (None: not a tensor), and the index of the input whose memory it shares,
    or ~index of the output; None: it has its own memory."""

    form: _Form | None
    memory: int | None


def meaning(target: str, calls: Mapping[str, Callable[..., Any]] | None = None) -> Callable[..., Any]:
    """Return the callable of a task's target on fake tensors; for autopar's own operators, their fakes. Raises
    ProgramError for an unknown target."""
    space, _, rest = target.partition(".")
    if space == "autopar" and "." in rest:
        resolve.target(target, calls)  # defines it
        name, _, overload = rest.partition(".")
        fake: Callable[..., Any] = getattr(getattr(torch.ops.autopar, name), overload)
        return fake
    return resolve.target(target, calls)


def called(task: Task, kind: str, forms: tuple[_Form | None, ...]) -> tuple[_Output, ...]:
    """Return the outputs of a task, with inputs named by index, for inputs of these forms on a device type.

    Raises torch's errors, also if this build of torch has no such call.
    """
    device = torch.device(kind) if kind == "cpu" else torch.device(kind, 0)
    function = meaning(task.target)
    with torch.inference_mode(False), torch.no_grad(), casting.off((kind,)), FakeTensorMode():
        tensors = [
            None
            if form is None
            else torch.empty_strided(form.shape, form.strides, dtype=form.dtype, device=device)
            for form in forms
        ]
        results = resolve.called(task, function, lambda name: tensors[int(name)], device)
        owner: dict[int | None, int] = {}
        for index, tensor in enumerate(tensors):
            if tensor is not None:
                owner.setdefault(memory(tensor), index)
        return tuple(_outputs(results if task.unpack else [results], owner) if task.outputs else ())


def _outputs(results: Any, owner: dict[int | None, int]) -> Iterator[_Output]:
    for index, item in enumerate(results):
        if not isinstance(item, torch.Tensor):
            yield _Output(None, None)
            continue
        yield _Output(_Form(tuple(item.shape), item.stride(), item.dtype), owner.get(memory(item)))
        owner.setdefault(memory(item), ~index)


@lru_cache(maxsize=4096)
def copied(form: _Form) -> _Form:
    """Return the form of a copy, which is dense."""
    tensor = torch.empty_strided(form.shape, form.strides, device="meta")
    return form._replace(strides=torch.empty_like(tensor).stride())


@lru_cache(maxsize=4096)
def axes(form: _Form) -> tuple[int, ...]:
    """Return the `Value.order` of a form."""
    return memory_order(torch.empty_strided(form.shape, form.strides, device="meta"))


@lru_cache(maxsize=4096)
def in_order(shape: tuple[int, ...], order: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of dense memory with axes in this order, slowest first; if empty, in their own."""
    strides, step = [0] * len(shape), 1
    for axis in reversed(order or range(len(shape))):
        strides[axis] = step
        step *= max(1, shape[axis])
    return tuple(strides)
