"""Programs for each set of sizes: an LRU cache of them, and how the next one follows the first."""

from __future__ import annotations

import dataclasses
import logging
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from typing import Any, TypeVar

from ..ir.costed import CostedGraph
from ..ir.plan import Plan
from ..planner.policies import Policy
from ..transform.feature_split import LABEL
from .options import Options
from .stages import rows_of

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
