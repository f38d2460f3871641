"""Calls of one captured graph: their arguments in terms of the model, and a program for each set of sizes."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

import torch

from ..capture import Captured
from ..capture.assembly import Assembly
from ..capture.captured import settle
from ..capture.torch_private import memory
from ..ir.costed import CostedGraph
from ..ir.plan import Plan
from ..planner.policies import Policy
from ..runtime.inline_call import chosen
from ..transform.feature_split import LABEL
from .options import Options
from .stages import Prepared, rows_of


class Arguments:
    """Positions of sizes, inputs and state among the arguments of a graph. Safe for concurrent callers."""

    def __init__(self, assembly: Assembly) -> None:
        self.places = assembly.region.places
        self.constants = assembly.held
        """Tensors that the graph makes of numbers, by name."""
        self._sizes = [at for at, place in enumerate(self.places) if place.kind == "size"]
        self._inputs = [at for at, place in enumerate(self.places) if place.kind == "input"]
        self._state = [(at, p.owner, p.key) for at, p in enumerate(self.places) if p.kind == "state"]
        self._changed = [at for at, _ in assembly.traced.updates]
        # Two places of the model share memory from the start or never.
        foreign = not set(self._changed).isdisjoint(self._inputs)
        self._beside = [*self._inputs, *(at for at, _, _ in self._state if foreign)]
        self._lock = threading.Lock()
        self.moved = False
        """True once calls of other modules have put their state here: they go one at a time."""

    def sizes(self, args: Sequence[Any]) -> Hashable:
        """The sizes of a call, which decide on its program."""
        return tuple([args[at] for at in self._sizes])

    def inputs(self, args: Sequence[Any]) -> list[Any]:
        """The tensors that are no state."""
        return [args[at] for at in self._inputs]

    def lent(self, args: Sequence[Any]) -> bool:
        """True if something that is changed in place lies in the memory of an argument that the graph takes for another
        value."""
        if not self._changed:
            return False
        changed = {memory(args[at]): at for at in self._changed}
        if len(changed) < len(self._changed):
            return True
        return any(changed.get(memory(args[at]), at) != at for at in self._beside)

    def rebind(self, args: Sequence[Any]) -> None:
        """Take the state of this call for that of the region."""
        for at, owner, key in self._state:
            if owner.get(key) is not args[at]:
                with self._lock:
                    owner[key] = args[at]

    def elsewhere(self, args: Sequence[Any]) -> bool:
        """True if the state of this call is not where it was: Dynamo calls one graph for all modules that are alike."""
        for at, owner, key in self._state:
            if owner.get(key) is not args[at]:
                break
        else:
            return False
        return True

    def move(self, args: Sequence[Any], held: dict[str, Any]) -> bool:
        """Take the state of this call for that of the region where all that differs is `held` for it, in no module:
        calls go one at a time from then on."""
        moved = [(at, owner, key) for at, owner, key in self._state if owner.get(key) is not args[at]]
        if any(owner is not held for _, owner, _ in moved):
            return False
        self.moved = True
        for at, owner, key in moved:
            owner[key] = args[at]
        return True

    def first(self, args: Sequence[Any]) -> Any:
        """The first state tensor of a call."""
        return args[self._state[0][0]]

    @property
    def held(self) -> Any:
        """The first state tensor, where it is; None where it is no more."""
        _, owner, key = self._state[0]
        return owner.get(key)

    def weights(self, args: Sequence[Any]) -> dict[str, torch.Tensor]:
        """The state that requires grad, by path."""
        return {self.places[at].path: args[at] for at, _, _ in self._state if args[at].requires_grad}


class Short:
    """The way of a call that needs nothing but its program: one set of sizes, no backward, nothing left behind.

    Every Python call on it costs some tenth of a microsecond more within `torch.compile` than outside. A program of one
    lane in the caller's thread computes with the state that Dynamo hands over, whosesoever it is, so that no more than
    the first is looked at to tell whose call it is.
    """

    def __init__(self, arguments: Arguments, prepared: Prepared) -> None:
        self.prepared = prepared
        captured, inline = prepared.captured, prepared.executor.inline
        self._constants = () if inline is None else tuple(arguments.constants.values())
        if inline is None:
            self._call: Callable[[Sequence[Any]], list[Any]] = prepared.executor
            self._state, self._chosen = arguments._state, chosen(arguments._inputs)
        else:
            place = _places(arguments, captured)
            self._call, self._state = inline, arguments._state[:1]
            self._chosen = chosen([place[name] for name in inline.names])
        self._rebuild = captured.rebuild
        self._strides = captured.strides if any(strides is not None for strides in captured.strides) else ()
        self._kind = captured.home.type

    @staticmethod
    def fits(options: Options, prepared: Prepared, key: Hashable) -> bool:
        """True if no call of a program, for the sizes `key`, needs more."""
        captured = prepared.captured
        plain = not captured.stateful and not captured.same
        return plain and not key and options.check != "always" and not options.verify_replicas

    def __call__(self, args: tuple[Any, ...]) -> list[Any] | None:
        """The results of one call; None where its state is not where it was."""
        for at, owner, key in self._state:
            if owner.get(key) is not args[at]:
                return None
        return self.completed(self._call(self._chosen(args + self._constants)))

    def completed(self, outputs: list[Any]) -> list[Any]:
        """What the graph returns, from the outputs of its program."""
        if self._strides:
            settle(outputs, self._strides, self._kind)
        return self._rebuild(outputs)


def _places(arguments: Arguments, captured: Captured) -> dict[str, int]:
    """The place of each input and state of a graph among the arguments and, after these, the constants."""
    slots = {(id(owner), key): at for at, owner, key in arguments._state}
    first, constants = len(arguments.places), arguments.constants
    slots |= {(id(constants), key): first + at for at, key in enumerate(constants)}
    places = dict(zip(captured.graph.inputs, arguments._inputs))
    return places | {name: slots[id(owner), key] for name, (owner, key) in captured.state.items()}


log = logging.getLogger("autopar")

SIZES = 64
"""Sets of sizes of a region for which programs are kept."""

CHECKED = 4
"""Sets of sizes of a region whose first call is held against eager: the others have the same graph and placement."""


class Done(Exception):
    """A graph is planned, and nothing has run: raised where planning was all that was asked for."""


def again(options: Options, plan: Plan) -> Options:
    """Options that place a graph of other sizes as `plan` places its own, without a search; shares of the batch that
    the user gave stay these."""
    devices = {placed.cluster: placed.device for placed in plan.placed}
    homes = {
        task: devices[run.name] for run in plan.costed.clusters if run.name in devices for task in run.tasks
    }
    label = plan.costed.graph.split
    if label.startswith(LABEL):
        # Other sizes may have a batch that can be cut.
        return dataclasses.replace(options, measure=False)

    def placed(costed: CostedGraph) -> dict[str, str]:
        return {run.name: homes[run.tasks[0]] for run in costed.clusters if run.tasks[0] in homes}

    split = options.split if isinstance(options.split, Mapping) else len(rows_of(label)) if label else None
    policy: Policy = "single" if plan.costed.machine.serial else placed
    # Nothing is left for seconds to decide.
    return dataclasses.replace(options, split=split, policy=policy, measure=False)


Made = TypeVar("Made", bound=Any)


class Kept(OrderedDict[Hashable, Made]):
    """By sizes what serves them, of the `SIZES` used last; it has a `close`. `called` names in the log what is called
    with them."""

    def __init__(self, called: str) -> None:
        super().__init__()
        self.called, self._said = called, False

    def used(self, key: Hashable) -> Made | None:
        """The entry for these sizes, the most recently used from now on; None where there is none."""
        if key in self:
            self.move_to_end(key)
        return self.get(key)

    def add(self, key: Hashable, made: Made) -> None:
        """Keep what serves these sizes; the least recently used goes, which is said once."""
        self[key] = made
        while len(self) > SIZES:
            self.popitem(last=False)[1].close()
            if not self._said:
                log.warning(
                    "%s is called with more than %d sets of sizes: programs are dropped and made again. Pad the inputs "
                    "to fewer shapes to avoid this", self.called, SIZES,
                )  # fmt: skip
            self._said = True

    def drop(self, made: Made) -> None:
        """Forget what serves some sizes; the next call makes it anew."""
        for key, own in list(self.items()):
            if own is made:
                del self[key]
        made.close()

    def close(self) -> None:
        """Stop the threads of all; the next call starts them again."""
        for made in tuple(self.values()):
            made.close()
