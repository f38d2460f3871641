"""One captured region as Dynamo calls it: its programs by sizes, for one model and for others that are equal."""

from __future__ import annotations

import copy
import logging
import weakref
from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import fx, nn

from ..capture.convert import captured_at
from ..capture.dynamo_private import broken, has_side_effects, outermost
from ..capture.eager_form import in_eager, warn_of_checkpoints
from ..capture.region import Region
from ..ir.plan import Plan
from ..runtime.thread_state import capture_lock_and, no_saved_tensor_hooks
from ..system.process import gc_paused
from .program_cache import ProgramCache
from .session import Session
from .stages import timed

log = logging.getLogger("autopar")

TWINS = 256
"""Limit on the other sets of parameters for which the programs of one graph are kept."""


class CompiledGraph:
    """The callable that Dynamo calls instead of a graph, safe for concurrent callers.

    `written`: the reason why it runs as written; "" if it is placed. `part`: it is not all of the model. `whole`: it
    is, and a call leaves no side effects in Python. `plans`: placements that programs for other sizes follow, by kind.
    `right`: number of programs that were compared with eager and found equal. `unchecked`: sizes whose next call must
    be checked, such as those that `prepare` has planned. `disturbed`: sizes whose check drew other random numbers than
    eager, perhaps for another thread: the next is checked.

    Dynamo calls one graph for all equal modules, and for parameters that replaced others: `twins` are the same graph
    bound to the state of these.
    """

    def __init__(self, session: Session, module: fx.GraphModule, examples: Sequence[Any]) -> None:
        self._session = weakref.ref(session)
        self.name = type(session.root).__name__ if session.root is not None else "graph"
        self.written = ""
        self.part = not outermost() or bool(broken(module)[0])
        self.whole = not self.part and not has_side_effects()
        self._twins: list[CompiledGraph] = []
        self._twin: dict[int, CompiledGraph] = {}
        """Twins by the `id` of the first state tensor of a call."""
        region = None
        try:
            region = timed("capture", session.region, module, examples)
            self.name = region.name
        except Exception as error:
            session.uncaptured(self, module, error)
        # After a step has taken its marks out of the graph.
        self.module = in_eager(module)
        if self.module is not module and torch.is_grad_enabled() and session.options.recompute is None:
            warn_of_checkpoints(self.name)
        self._begin(region, examples)

    def _begin(self, region: Region | None, args: Sequence[Any]) -> None:
        """Begin without programs, bound to the state in the arguments of a call; if `region` is None, without a graph
        to place."""
        session = self.session
        self.programs = ProgramCache(self.name, region, session.options)
        self.plans: dict[Hashable, Plan] = {}
        self.right = 0
        self.unchecked: set[Hashable] = set()
        self.disturbed: set[Hashable] = set()
        self._owners: list[weakref.ref[nn.Module]] = []
        self._trained: list[tuple[int, torch.Tensor]] = []
        self._released = False
        if region is not None:
            self.region = region
            self._owners = _owners(region, session.root)
        if region is not None and session.trains and args:
            self._trained = [
                (at, args[at])
                for at, owner, _ in region.state_at
                if owner is not region.held and args[at].requires_grad
            ]

    @property
    def session(self) -> Session:
        """The session it was captured for."""
        session = self._session()
        assert session is not None
        return session

    def __call__(self, *args: Any) -> Any:
        """Return the outputs of the graph for these arguments."""
        self.session.calls += 1
        if self.written or self.region.aliases_mutated(args):
            return self.session.plain(self, args)
        if self.region.rebound or self.region.held or not self._fits(args):
            return self._rebound(args)
        return self._placed(args)

    def _placed(self, args: tuple[Any, ...]) -> Any:
        session, key = self.session, self.region.sizes(args)
        program, new = self.programs.used(key), False
        if program is None and not session.asked:
            program = self.programs.resized.get(key)
        if program is None:
            program, new = self._first(key, args)
        if program is None:
            return session.plain(self, args)
        session.latest = self, program
        return session.serve(self, key, program, args, new)

    def _first(self, key: tuple[Any, ...], args: Sequence[Any]) -> tuple[Any, bool]:
        """Return the program for new sizes, and whether it is new; None if the call is to run as written."""
        session, options = self.session, self.session.options
        with capture_lock_and(session.lock), no_saved_tensor_hooks(), gc_paused():
            if (known := self.programs.get(key)) is not None:
                return known, False
            try:
                program = None if session.asked else self.programs.resize(key, args)
                if program is None:
                    options.require_homes(session.machine, session.root)
                    captured = timed("capture", captured_at, self.region, args, options.split is not None)
                    program = session.program(self, captured, args)
                    self.programs.add(key, program)
                    session.replaced_by(self)
            except Exception as error:
                session.unplanned(self, error)
                return None, False
            return program, True

    def forget(self, *keys: Hashable) -> None:
        """Drop the programs for these sizes."""
        self.programs.resized.clear()
        for key in keys:
            if (old := self.programs.pop(key, None)) is not None:
                old.close()

    def _fits(self, args: Sequence[Any], replace: bool = False) -> bool:
        """Return True if a call has the state of this graph; with `replace`, let it take the place of state that is
        not a module's."""
        for at, parameter in self._trained:
            if args[at] is not parameter:
                return False
        return not self.region.is_other_module(args) or (replace and self.region.rebind(args))

    def _rebound(self, args: tuple[Any, ...]) -> Any:
        """Serve a call whose state is not the state that the graph reads."""
        with self.session.rebinding():
            if self._fits(args, replace=True):
                return self._placed(args)
            twin = self._twin_of(args)
        return twin(*args)

    def _twin_of(self, args: Sequence[Any]) -> CompiledGraph:
        """Return the graph for the module that a call is for; this one if its own is gone."""
        first = id(self.region.first(args))
        twin = self._twin.get(first)
        if twin is None or not twin._fits(args):
            twin = next((each for each in self._twins if each._fits(args, bool(each._trained))), None)
            if twin is None:
                twin = self._new_twin(args)
            # Rebuilt, since the twins' modules may have other tensors by now.
            self._twin = {id(each.region.first()): each for each in self._twins}
            self._twin[first] = twin
        return twin

    def _new_twin(self, args: Sequence[Any]) -> CompiledGraph:
        session = self.session
        session.check_state()
        known = {id(each) for each in session.root.parameters()} if session.root is not None else set[int]()
        for graph in session.graphs:
            if graph._is_orphan(known):
                graph._release()
        for twin in self._twins[:]:
            if twin._released or len(self._twins) >= TWINS:
                twin._release()
                self._twins.remove(twin)
                # Removed one by one: Dynamo's thread may append others meanwhile.
                session.graphs.remove(twin)
        region = self.region.of(args, session.root)
        if self._released:
            self._begin(region, args)
            return self
        twin = copy.copy(self)
        twin._twins, twin._twin = [], {}
        twin._begin(region, args)
        self._twins.append(twin)
        session.graphs.append(twin)
        return twin

    def _is_orphan(self, known: set[int]) -> bool:
        """Return True if a module that held its state is gone, or if a parameter that it trains is not among the
        `known` ids."""
        gone = any(module() is None for module in self._owners)
        return gone or any(id(parameter) not in known for _, parameter in self._trained)

    def _release(self) -> None:
        """Drop its programs, and the state that they read."""
        self.forget(*self.programs)
        # Dynamo may still call it: its region then gets other state.
        self._begin(self.region.without_state(), ())
        self._released = True


def _owners(region: Region, root: nn.Module | None) -> list[weakref.ref[nn.Module]]:
    """Return the modules that hold the state of a region."""
    held = {id(place.owner) for place in region.places if place.kind == "state"}
    modules = root.modules() if root is not None else ()
    return [
        weakref.ref(module)
        for module in modules
        if id(module._parameters) in held or id(module._buffers) in held
    ]
