"""A compiled model in the user's own training loop.

    loss = criterion(fast(x), y); loss.backward(); optimizer.step()

The joint graph of forward and backward is split, priced and placed as a whole, then divided into a forward and a
backward program with the same placement, joined by one `autograd.Function`. Replicas of weights that an optimizer has
updated are refreshed before the forward.

Autograd keeps saved values until the backward has ended, so the halves may need more memory than the joint
plan. If they exceed a cap, the whole is planned again with the cap reduced by the excess.
"""

from __future__ import annotations

import contextlib
import copy
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeAlias

import torch

from ..capture import Captured
from ..capture.captured import restore_strides
from ..capture.results import resizable
from ..costs.detect import slowed
from ..errors import MemoryCapError, RunError
from ..ir.graph import Graph
from ..ir.machine import Machine
from ..ir.plan import Plan
from ..ir.program import Program
from ..runtime.autograd_bridge import EagerCall, bridge, memory_key, unalias
from ..runtime.executor import Executor
from ..transform.divide import closed
from .halves import STANDING, Half, Halves
from .kernel_selection import KernelExecutor, build_kernels
from .options import Options
from .session import Session
from .stages import Prepared, changes_memory_layout, executed, homes_of, plan_captured, timed

Held: TypeAlias = tuple[torch.Tensor, torch.Tensor]
"""A state that a forward has read, and an alias that keeps its memory."""

_ABSENT = object()

_TIGHTENED = 6
"""Limit on the plans of a joint graph, each with tighter caps, until both halves fit."""

_LESS = 0.97
"""Factor on the caps after no plan was found for tighter ones."""


class HeldState:
    """The weights and buffers that the backward of a joint graph reads."""

    def __init__(self, captured: Captured, backward: Graph, session: weakref.ref[Session]) -> None:
        self._name, self._session = captured.graph.name, session
        # A slice of a weight is a view of the tensor that holds the weight.
        read = [
            value
            for name in backward.state
            if name in captured.state and not (value := backward.value[name]).slice
        ]
        self._slots = [captured.state[value.name] for value in read]
        self._reread = {at: value.path for at, value in enumerate(read) if value.name in captured.reread}
        """Paths of state that eager's backward reads itself, by position."""

    def current(self) -> list[Held]:
        """Return the state that a forward has just read."""
        return [(owner[key], owner[key].detach()) for owner, key in self._slots]

    @contextlib.contextmanager
    def restored(self, held: Sequence[Held]) -> Iterator[None]:
        """Within the block, let the backward read the state of its forward, even if other tensors have taken its place,
        as at the end of `torch.func.functional_call`, or other memory (`.data = …`).

        Raises RunError if eager would read the other memory.
        """
        tensors = [self._as_read(at, *each) for at, each in enumerate(held)]
        slots: Any = self._slots
        if all(owner.get(key) is tensor for (owner, key), tensor in zip(slots, tensors)):
            yield
            return
        session = self._session()
        with session.lock if session is not None else contextlib.nullcontext():
            replaced = [(owner, key, owner.get(key, _ABSENT)) for owner, key in slots]
            try:
                for (owner, key), tensor in zip(slots, tensors):
                    owner[key] = tensor
                yield
            finally:
                for owner, key, tensor in replaced:
                    owner[key] = tensor
                    if tensor is _ABSENT:
                        del owner[key]

    def _as_read(self, at: int, tensor: torch.Tensor, alias: torch.Tensor) -> torch.Tensor:
        if memory_key(tensor) == memory_key(alias):
            return tensor
        if at not in self._reread:
            return alias
        raise RunError(
            f"{self._name}: the memory of {self._reread[at]} was replaced between a forward and its backward "
            "(`.data = …`), and eager would combine values of the old memory with gradients of the new one; call "
            "backward() before, or replace the parameter itself"
        )


class Training:
    """One signature of a model in training: the plan of both halves, their programs, and the calls.

    Backward programs are made on first use, one for each set of outputs with a gradient.
    """

    single_s: float | None = None
    """None: timing it would require training."""

    def __init__(
        self,
        captured: Captured,
        halves: Halves,
        session: Session,
    ) -> None:
        self.halves, self._pool, self._kernels = halves, session.pool, session.options.kernels
        # A backward may come after the last reference to the model.
        self._session = weakref.ref(session)
        self.repeatable = not captured.stateful
        """True if a call could be repeated with the same result."""
        self.slow_down = halves.joint.costed.machine.slow_down
        names = captured.graph.outputs
        self._state = HeldState(captured, halves.backward_graph, self._session)
        self._first = {names[index]: name for name, index in reversed(captured.tangents)}
        self._origin: Training | None = None
        """The `Training` made for other sizes whose programs this one shares."""
        self._begin(captured)

    def _begin(self, captured: Captured) -> None:
        self.captured = (
            captured if changes_memory_layout(self.halves.joint) else captured.without_redundant_strides()
        )
        self._places = [*map(captured.graph.outputs.index, self.halves.names)]
        self._backward: dict[tuple[str, ...], tuple[Prepared, tuple[bool, ...]]] = {}
        self._lock = threading.Lock()

    @cached_property
    def resizable(self) -> bool:
        """True if its programs also compute calls with other sizes."""
        return resizable(self.captured, self.halves.joint.costed)

    @property
    def any_size(self) -> bool:
        """True if its kernels serve calls of all sizes, or may do so once they are built."""
        return any(executor.any_size for executor in self.executors)

    def keeps_caps(self, sizes: Sequence[float]) -> bool:
        """Return True if its programs surely keep every memory cap in calls with other sizes (`Captured.sizes`)."""
        other = self.halves.at(sizes)
        return other is not None and all(other.fits(half.plan, half.program) for half in self.halves.both)

    def resized(self, source: Captured) -> Training:
        """Return programs for the sizes of `source`, with kernels if these are for all sizes."""
        other = copy.copy(self)
        for name in ("plan", "forward_program"):
            vars(other).pop(name, None)
        halves = self.halves.at(source.sizes)
        assert halves is not None, "it keeps the caps"
        other._origin, other.halves = self, halves
        other._begin(source)
        return other

    @cached_property
    def plan(self) -> Plan:
        """The plan of forward and backward together, with the memory that the two use when run."""
        return slowed(self.halves.plan, self.slow_down)

    @cached_property
    def forward_program(self) -> Prepared:
        """The program of the forward."""
        if self._origin is not None:
            return self._origin.forward_program.resized(self.captured)
        return self._bound(self.halves.forward)

    def backward_program(self, live: tuple[str, ...]) -> tuple[Prepared, tuple[bool, ...]]:
        """Return the backward for these tangents, and for each leaf whether it has a gradient."""
        with self._lock:
            if live not in self._backward:
                self._backward[live] = self._new_backward(live)
            return self._backward[live]

    def _new_backward(self, live: tuple[str, ...]) -> tuple[Prepared, tuple[bool, ...]]:
        if self._origin is not None:
            prepared, wanted = self._origin.backward_program(live)
            # Of the backward of some tangents it is not known before whether it fits.
            if self.halves.fits(prepared.plan, prepared.program):
                return prepared.resized(self.captured), wanted
        half, wanted = self.halves.backward(live)
        return self._bound(half), wanted

    def _bound(self, half: Half) -> Prepared:
        plan, state = slowed(half.plan, self.slow_down), dict(self.captured.state)
        machine = plan.costed.machine
        for name in plan.costed.graph.state:
            if name.startswith(STANDING):
                device = machine.device[name.removeprefix(STANDING)].torch_device
                state[name] = {"": torch.empty(0, device=device)}, ""
        captured = replace(self.captured, state=state)
        return executed(captured, plan, half.program, self._pool, self._kernels, changing=True)

    @property
    def program(self) -> Program:
        """The program of the forward."""
        return self.forward_program.program

    @property
    def executor(self) -> Executor | KernelExecutor:
        """The executor of the forward."""
        return self.forward_program.executor

    @property
    def executors(self) -> list[Executor | KernelExecutor]:
        """Executors of the programs that were called."""
        return [prepared.executor for prepared in self._programs()]

    @property
    def refusals(self) -> list[str]:
        """The reasons why no kernels are compiled for some of these programs, if there are any."""
        return [why for prepared in self._programs() for why in prepared.refusals]

    def leaves(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """Return the caller's tensors that have a gradient, in the order of `captured.gradients`."""
        arguments = dict(zip(self.captured.graph.inputs, inputs))
        state = self.captured.state
        return [
            state[name][0][state[name][1]] if name in state else arguments[name]
            for name, _ in self.captured.gradients
        ]

    def outputs(self, inputs: Sequence[Any], written: EagerCall | None = None) -> list[Any]:
        """Return the outputs of one call, in the graph's order, as an autograd function of the leaves.

        `written` is the call in eager, for second derivatives.
        """
        values = dict(zip(self.halves.names, bridge(self, inputs, written, *self.leaves(inputs))))
        return [values[name] for name in self.halves.outputs]

    def dry_run(self, inputs: Sequence[Any], tangents: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
        """Return outputs and gradients of one call for tangents by name, without autograd."""
        outputs, saved, held = self.forward(inputs)
        seeds = [tangents.get(self._first.get(name, "")) for name in self.halves.names]
        values = dict(zip(self.halves.names, outputs))
        return [values[name] for name in self.halves.outputs], self.backward(saved, held, seeds)

    def forward(self, inputs: Sequence[Any]) -> tuple[list[Any], list[Any], list[Held]]:
        """Run one forward; return its outputs, each object once, its saved values, and the state its backward will
        read."""
        build_kernels(self.forward_program.executor, inputs)
        results = self._executed(self.forward_program, inputs)
        values = dict(zip(self.halves.outputs, results))
        held = self._state.current()
        saved = results[len(self.halves.outputs) :]
        # If an output were a view of a weight, writes to it would change the weight unseen by autograd.
        leaves = (*inputs, *(owner[key] for owner, key in self.captured.state.values()))
        outputs = unalias([values[name] for name in self.halves.names], leaves, saved)
        # Read in each call: the first check records those that fake tensors do not know.
        strides = [self.captured.strides[place] for place in self._places]
        if restore_strides(outputs, strides, self.captured.home.type):
            # `restore_strides` makes a tensor with gaps between its elements as a view.
            outputs = unalias(outputs, leaves, saved)
        return outputs, saved, held

    def smooth(self, outputs: Sequence[Any]) -> list[Any]:
        """Return the outputs that have a gradient."""
        return [value for name, value in zip(self.halves.names, outputs) if name in self._first]

    def outputs_with_tangents(
        self, outputs: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor | None]
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return the outputs of the call in eager, each with its tangent."""
        values, pairs = dict(zip(self.halves.outputs, outputs)), zip(self.halves.names, tangents)
        return [(values[n], tangent) for n, tangent in pairs if n in self._first and tangent is not None]

    def backward(self, saved: Sequence[Any], held: Sequence[Held], tangents: Sequence[Any]) -> list[Any]:
        """Return the gradient of each leaf for what `forward` returned; None if only None tangents reach it."""
        by_tangent = {
            self._first[name]: tangent
            for name, tangent in zip(self.halves.names, tangents)
            if tangent is not None and name in self._first
        }
        live = tuple(name for name in self.halves.tangents if name in by_tangent)
        prepared, wanted = self.backward_program(live)
        values = {**dict(zip(self.halves.saved, saved)), **by_tangent}
        read = [values[name] for name in prepared.plan.costed.graph.inputs]
        build_kernels(prepared.executor, read)
        with self._state.restored(held):
            results = iter(self._executed(prepared, read))
        return [next(results) if has else None for has in wanted]

    def _executed(self, prepared: Prepared, inputs: Sequence[Any]) -> list[Any]:
        session = self._session()
        if session is None or session.recording is None:
            return prepared.executor(inputs)
        calls = session.recording.calls
        outputs, timeline = prepared.executor.run(inputs)
        assert timeline is not None
        ahead = f"{self.captured.graph.name} backward" != timeline.title
        if not ahead and calls and calls[-1].title == self.captured.graph.name:
            calls[-1] = calls[-1].then(timeline)
        else:
            calls.append(timeline)
        return outputs

    def slower(self, slow_down: float) -> None:
        """Run the declared clock `slow_down` times slower than the chips from the next call on."""
        self.slow_down = slow_down
        with self._lock:
            vars(self).pop("plan", None)
            for prepared in self._programs():
                prepared.slower(slow_down)

    def close(self) -> None:
        """Stop the threads of all its programs."""
        for prepared in self._programs():
            prepared.executor.close()

    def _programs(self) -> list[Prepared]:
        forward = vars(self).get("forward_program")
        return [*([forward] if forward else []), *(prepared for prepared, _ in self._backward.values())]


def plan_training(
    captured: Captured,
    machine: Machine,
    options: Options,
    tensors: list[torch.Tensor],
    user_plan: Plan | None,
) -> tuple[Captured, Halves]:
    """Return a joint graph ready for planning, and its plan in two halves that both fit the caps.

    Raises the errors of planning and lowering.
    """
    joint = whole(captured)

    def planned(room: Machine, caps: Machine) -> Halves:
        plan = capped(timed("plan", plan_captured, joint, room, options, tensors, user_plan), caps)
        homes = homes_of(joint, plan.costed.machine, tensors, options.home)
        return Halves(plan, joint.gradients, homes, options.outputs)

    try:
        return joint, _within(machine, planned, once=user_plan is not None)
    except MemoryCapError as error:
        # In their own orders, the halves may also need less than the whole.
        need = _need(planned(machine.uncapped, machine.uncapped))
        caps = {name: cap for name, cap in need.items() if cap > (machine.device[name].memory_bytes or cap)}
        if not caps:
            return joint, planned(machine.uncapped, machine)
        way = f"memory={caps} would fit; less, a split of the batch or another device may too"
        raise MemoryCapError(error.wrong, way, caps) from None


def _within(machine: Machine, planned: Callable[[Machine, Machine], Halves], *, once: bool) -> Halves:
    """Return the first of the plans `planned(room, caps)`, with ever tighter room, whose halves fit the machine's
    caps.

    Raises the first MemoryCapError if none does.
    """
    room, refusal = machine, None
    for _ in range(1 if once else _TIGHTENED):
        try:
            halves = planned(room, machine)
        except MemoryCapError:
            if refusal is None:
                raise
            # Searches are greedy: with slightly less room they may find a plan that they missed with more.
            room = room.with_memory(
                {d.name: int(_LESS * d.memory_bytes) for d in room.devices if d.memory_bytes}
            )
            continue
        if not halves.tight:
            return halves
        try:
            _ = halves.both
            return halves
        except MemoryCapError as error:
            refusal = refusal or error
        left = halves.room()
        if min(left.values(), default=0) <= 0:
            break
        caps = {name: min(left[name], room.device[name].memory_bytes or left[name]) for name in left}
        room = room.with_memory(caps)
    assert refusal is not None
    raise refusal


def _need(halves: Halves) -> dict[str, int]:
    """Return the peak bytes of each device over both halves, planned or in any order of the lanes."""
    need: dict[str, int] = {}
    for half in halves.both:
        for device, nbytes in (*half.plan.peaks.items(), *((peak.device, peak.bytes) for peak in half.peaks)):
            need[device] = max(nbytes, need.get(device, 0))
    return need


def whole(captured: Captured) -> Captured:
    """Return a joint graph ready for planning, with the user's loss between its halves and its weights as
    changing state."""
    weights = tuple(name for name, _ in captured.gradients if name in captured.state)
    graph = closed(captured.graph, [name for name, _ in captured.tangents], len(captured.gradients))
    return replace(captured, graph=replace(graph, changing=weights))


def capped(plan: Plan, machine: Machine) -> Plan:
    """Return the plan with the caps of another machine."""
    caps = {device.name: device.memory_bytes for device in machine.devices}
    memory = tuple(replace(known, cap=caps[known.device]) for known in plan.memory)
    costed = replace(plan.costed, machine=plan.costed.machine.with_memory(caps))
    return replace(plan, costed=costed, memory=memory)
