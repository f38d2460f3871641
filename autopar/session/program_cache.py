"""`ProgramCache`: the programs of one captured graph by sizes."""

from __future__ import annotations

import dataclasses
import logging
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Any

from ..capture import results
from ..capture.region import Region
from ..ir.costed import CostedGraph
from ..ir.plan import Plan
from ..planner.policies import Policy
from ..transform.feature_split import LABEL
from ..transform.split import rows_of
from .options import Options

log = logging.getLogger("autopar")

SIZES = 64
"""Limit on the sets of sizes of a region for which programs are kept."""

CHECKED = 4
"""Number of sets of sizes of a region whose first call is compared with eager. Further sets have the same
graph and placement."""


class Done(Exception):
    """Raised in place of a run when only planning was asked for."""


def reuse_placement(options: Options, plan: Plan) -> Options:
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


RESIZED = 1024
"""Limit on the sets of sizes that programs made for other sizes serve: each takes some kilobytes."""


class ProgramCache(OrderedDict[Hashable, Any]):
    """LRU cache of the programs of a region by sizes, limited to `SIZES`; and programs `resized` from these, which
    serve other sizes. Programs have a `close`; `called` is their name in the log.

    One program serves all sizes for which it surely keeps every memory cap. If kernels cannot be compiled for
    all sizes at once, the first `CHECKED` sets of sizes have their own programs.
    """

    def __init__(self, called: str, region: Region | None, options: Options) -> None:
        super().__init__()
        self.called, self._said = called, False
        self._region = region
        self._compiled = options.kernels != "eager"
        self._allowed = options.split in (None, "auto")
        self.resized: dict[Hashable, Any] = {}

    def used(self, sizes: Hashable) -> Any:
        """Return the program for these sizes and mark it as most recently used; None if there is none."""
        try:
            self.move_to_end(sizes)
        except KeyError:
            return None
        return self.get(sizes)

    def add(self, key: Hashable, program: Any) -> None:
        """Add the program for these sizes; drop and close the least recently used ones, which is logged once."""
        self[key] = program
        if len(self) > SIZES:
            # They would keep the memory of dropped programs, and start their threads again.
            self.resized.clear()
        while len(self) > SIZES:
            self.popitem(last=False)[1].close()
            if not self._said:
                log.warning(
                    "%s is called with more than %d sets of sizes: programs are dropped and made again. Pad the inputs "
                    "to fewer shapes to avoid this", self.called, SIZES,
                )  # fmt: skip
            self._said = True

    def resize(self, sizes: Sequence[Any], args: Sequence[Any]) -> Any:
        """Return a new program for a call with the arguments `args`, derived from one that also computes calls of other
        sizes; None if the call should have its own program."""
        programs = sorted([*self.values()], key=lambda program: program.any_size)
        few = self._compiled and len(programs) < CHECKED and not any(each.any_size for each in programs)
        if self._region is None or few or not self._allowed:
            return None
        for program in reversed(programs):
            if not program.resizable:
                continue
            source = results.resized(self._region, program.captured, args)
            if program.keeps_caps(source.sizes):
                if len(self.resized) >= RESIZED:
                    self.resized.clear()
                self.resized[sizes] = program.resized(source)
                return self.resized[sizes]
        return None

    @property
    def note(self) -> str:
        """A sentence on the calls served by programs for other sizes; "" if there are none."""
        others = [program for sizes, program in [*self.resized.items()] if sizes not in self]
        if not others:
            return ""
        if self._compiled and all(program.any_size for program in others):
            how = "its kernels are compiled for all sizes"
        elif self._compiled:
            how = f"PyTorch's kernels serve them, as libraries compile for the first {CHECKED} sets only"
        else:
            how = "record() plans each of them separately"
        return f"calls with {len(others)} other sets of sizes share a program; {how}"
