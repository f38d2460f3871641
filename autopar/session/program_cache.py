"""Calls of one captured graph: a short path, and programs by sizes."""

from __future__ import annotations

import dataclasses
import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

from ..capture import Captured, results
from ..capture.captured import restore_strides
from ..capture.region import Region
from ..ir.costed import CostedGraph
from ..ir.graph import Graph
from ..ir.plan import Plan
from ..planner.policies import Policy
from ..runtime.executor import Executor, selector
from ..transform.feature_split import LABEL
from ..transform.split import rows_of
from .options import Options
from .stages import Prepared

log = logging.getLogger("autopar")


class Short:
    """Short path for calls that need only their program: no backward, no side effects in Python.

    A Python call costs about 0.1 µs more inside `torch.compile` than outside. A program of one lane in the
    caller's thread computes with the state that Dynamo passes, whoever owns it. Checking the first state
    tensor therefore suffices to find the owner.

    own: calls always take this path; else only while the program's kernels serve calls of all sizes. place: positions
    of inputs and state (`_places`). stateful: calls change state, and are to be serialised.
    """

    def __init__(
        self, region: Region, prepared: Prepared, args: Sequence[Any], own: bool, place: Mapping[str, int]
    ) -> None:
        self.prepared, self.own = prepared, own
        captured, executor = prepared.captured, prepared.executor
        self.stateful = captured.stateful
        self._same = [(index, place[name]) for index, name in captured.same]
        self._call: Callable[[Sequence[Any]], list[Any]] = executor
        self._state, self._chosen = region.state_at, selector(region.inputs_at)
        self._constants: tuple[Any, ...] = ()
        # With kernels, weights are to be checked before each call.
        if isinstance(executor, Executor) and executor.arguments and executor.fits(region.inputs(args)):
            self._call, self._state = executor.compute, region.state_at[:1]
            self._chosen = selector([place[name] for name in executor.arguments])
            self._constants = tuple(region.constants.values())
        self._rebuild = captured.rebuild
        self._strides = captured.strides if any(strides is not None for strides in captured.strides) else ()
        self._kind, self._numbers = captured.home.type, region.numbers if region.numbers.places else None

    @staticmethod
    def fits(options: Options) -> bool:
        """Return True if all calls of a program can use this path."""
        return options.check != "always"

    def __call__(self, args: tuple[Any, ...]) -> list[Any] | None:
        """Return the results of one call; None if its state is not the region's."""
        for at, owner, key in self._state:
            if owner.get(key) is not args[at]:
                return None
        results = self.completed(self._call(self._chosen(args + self._constants)), args)
        return results if self._numbers is None else self._numbers.fill(results, args)

    def completed(self, outputs: list[Any], args: Sequence[Any] = ()) -> list[Any]:
        """Return the results of the graph from the outputs of its program, except for numbers. `args`: arguments of the
        call, some of which the graph may return."""
        if self._strides:
            restore_strides(outputs, self._strides, self._kind)
        for index, at in self._same:
            outputs[index] = args[at]
        rebuilt: list[Any] = self._rebuild(outputs)
        return rebuilt


def _places(region: Region, captured: Captured) -> dict[str, int]:
    """Return the position of each input and state of a graph in the arguments followed by the constants; slices of
    state have none."""
    slots = {(id(owner), key): at for at, owner, key in region.state_at}
    first, constants = len(region.places), region.constants
    slots |= {(id(constants), key): first + at for at, key in enumerate(constants)}
    places = dict(zip(captured.graph.inputs, region.inputs_at))
    held = {name: slots.get((id(owner), key)) for name, (owner, key) in captured.state.items()}
    return places | {name: at for name, at in held.items() if at is not None}


SIZES = 64
"""Limit on the sets of sizes of a region for which programs are kept."""

CHECKED = 4
"""Number of sets of sizes of a region whose first call is compared with eager. Further sets have the same
graph and placement."""


class Done(Exception):
    """Raised in place of a run when only planning was asked for."""


def again(options: Options, plan: Plan) -> Options:
    """Return options that place a graph of other sizes like `plan`, without a search, with the user's split
    of the batch."""
    if plan.costed.graph.streamed and options.home == "auto":
        # Which weights are streamed depends on the room that other values leave.
        return options
    homes = {task: plan.place[cluster].device for task, cluster in plan.costed.cluster_of.items()}
    label = plan.costed.graph.split
    if label.startswith(LABEL):
        # With other sizes the batch may be splittable.
        return dataclasses.replace(options, measure=False)

    def placed(costed: CostedGraph) -> dict[str, str]:
        tasks = {cluster.name: cluster.tasks[0] for cluster in costed.clusters}
        return {name: homes[task] for name, task in tasks.items() if task in homes}

    split = options.split
    if split == "auto":
        split = len(rows_of(label)) if label else None
    policy: Policy = "single" if plan.costed.machine.serial else placed
    # The placement is fixed, so there is nothing left to measure for.
    return dataclasses.replace(options, split=split, policy=policy, measure=False)


P = TypeVar("P", bound=Any)
RESIZED = 1024
"""Limit on the sets of sizes that programs made for other sizes serve: each takes some kilobytes."""


class ProgramCache(OrderedDict[Hashable, P]):
    """LRU cache of the programs of a region by sizes, limited to `SIZES`; and programs `resized` from these, which
    serve other sizes. Programs have a `close`; `called` is their name in the log.

    One program serves all sizes for which it surely keeps every memory cap. If kernels cannot be compiled for
    all sizes at once, the first `CHECKED` sets of sizes have their own programs.
    """

    def __init__(self, called: str, region: Region | None, options: Options) -> None:
        super().__init__()
        self.called, self._said = called, False
        self._region = region
        self._options, self._compiled = options, options.kernels != "eager"
        self._allowed = options.split in (None, "auto")
        self._resized: dict[Hashable, P] = {}
        self._place: tuple[Graph | None, dict[str, int]] = None, {}
        """The positions of inputs and state of the graph for which a short path was made last."""
        self.shorts: dict[Hashable, Short] = {}
        """The short paths of calls by sizes."""

    def shorten(self, sizes: Hashable, program: P, args: Sequence[Any]) -> Short | None:
        """Return the short path that this call and later ones of these sizes take; None if they can take none."""
        region, known = self._region, self.shorts.get(sizes)
        own = not self._compiled or sizes in self
        if region is None or not (own or program.any_size) or region.rebound:
            return None
        if known is not None and known.prepared is program:
            return known
        if not isinstance(program, Prepared) or not Short.fits(self._options):
            return None
        if len(self.shorts) >= RESIZED:
            self.shorts.clear()
        graph, place = self._place
        if graph is not program.captured.graph:
            place = _places(region, program.captured)
            self._place = program.captured.graph, place
        self.shorts[sizes] = short = Short(region, program, args, own, place)
        return short

    def used(self, key: Hashable) -> P | None:
        """Return the entry for these sizes and mark it as most recently used; None if there is none."""
        try:
            self.move_to_end(key)
        except KeyError:
            return None
        return self.get(key)

    def add(self, key: Hashable, program: P) -> bool:
        """Add an entry for these sizes; return whether the least recently used one is dropped, which is logged once."""
        self[key] = program
        full = len(self) > SIZES
        while len(self) > SIZES:
            self.popitem(last=False)[1].close()
            if not self._said:
                log.warning(
                    "%s is called with more than %d sets of sizes: programs are dropped and made again. Pad the inputs "
                    "to fewer shapes to avoid this", self.called, SIZES,
                )  # fmt: skip
            self._said = True
        return full

    def resized(self, sizes: Hashable) -> P | None:
        """Return the program made for other sizes that serves these; None if there is none."""
        return self._resized.get(sizes)

    def resize(self, sizes: Sequence[Any], args: Sequence[Any]) -> P | None:
        """Return a new program for a call with the arguments `args`, derived from one that also computes calls of other
        sizes; None if the call should have its own program."""
        programs = sorted(self.items(), key=lambda item: item[1].any_size)
        all_sizes = any(program.any_size for _, program in programs)
        if self._region is None or (self._compiled and len(programs) < CHECKED and not all_sizes):
            return None
        for _, program in reversed(programs):
            if not (self._allowed and program.resizable):
                continue
            source = results.resized(self._region, program.captured, args)
            if program.keeps_caps(source.sizes):
                if len(self._resized) >= RESIZED:
                    self.drop_resized()
                resized: P = program.resized(source)
                self._resized[sizes] = resized
                return resized
        return None

    @property
    def note(self) -> str:
        """A sentence on the calls served by programs for other sizes; "" if there are none."""
        others = [program for sizes, program in [*self._resized.items()] if sizes not in self]
        if not others:
            return ""
        if self._compiled and all(program.any_size for program in others):
            how = "its kernels are compiled for all sizes"
        elif self._compiled:
            how = f"PyTorch's kernels serve them, as libraries compile for the first {CHECKED} sets only"
        else:
            how = "record() plans each of them separately"
        return f"calls with {len(others)} other sets of sizes share a program; {how}"

    def drop_resized(self) -> None:
        """Drop all programs for other sizes."""
        self._resized.clear()
