"""Programs for each set of sizes: how many are kept, and how the next one follows the first."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from ..ir.costed import CostedGraph
from ..ir.plan import Plan
from ..planner.policies import Policy
from .options import Options
from .stages import rows_of

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

    def placed(costed: CostedGraph) -> dict[str, str]:
        return {run.name: homes[run.tasks[0]] for run in costed.clusters if run.tasks[0] in homes}

    split = options.split if isinstance(options.split, Mapping) else len(rows_of(label)) if label else None
    policy: Policy = "single" if plan.costed.machine.serial else placed
    return dataclasses.replace(options, split=split, policy=policy)
