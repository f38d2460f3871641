"""`python -m autopar plan`: plan a model (loads torch) or a task graph from a file (does not), or read a plan."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from ..errors import AutoparError
from ..ir.plan import Plan
from ..ir.timeline import Timeline
from ..system.text import percent, seconds
from . import FACTORY, Parser, call_factory, names, require_writable, write

_DEVICE = re.compile(r"[a-z]+(:\d+)?(\*\d+)?")
"""Names of devices of this machine, as opposed to names of chips, which contain a number."""


def main(argv: Sequence[str]) -> int:
    """Plan the model or graph that the arguments name; return 0 on success."""
    parser = Parser(
        prog="python -m autopar plan",
        description="Plan MODULE:FACTORY (a callable that returns a model and its example inputs) for this machine or "
        "a declared one, or a task graph; or explain and draw a saved plan.",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("factory", nargs="?", help=FACTORY)
    what.add_argument("--graph", metavar="FILE", help="a task graph: autopar's .json")
    what.add_argument("--load", metavar="FILE", help="a saved plan: Plan.save's .json, or that of --out")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", action="append", default=[],
        help="write the plan as .json, or draw it: .html .svg .png .pdf; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--timeline", type=Path, metavar="FILE", action="append", default=[],
        help="write the planned timeline: .html .svg .png .pdf, or .json .json.gz for Perfetto",
    )  # fmt: skip
    parser.add_argument(
        "--explain", metavar="TASK", nargs="?", const="", action="append", default=[],
        help="print the report (the default without --out), or for a task name or glob the reasons for its placement",
    )  # fmt: skip
    model = parser.add_argument_group("a model")
    model.add_argument(
        "--machine",
        metavar="NAMES",
        help="devices of this machine such as cpu,cuda:0 (default: all of them), or chips such as cpu-16,h100-sxm",
    )
    model.add_argument("--policy", help="auto (the default), single, round_robin or heft")
    model.add_argument("--split", help="auto (the default), none or a number of parts")
    graph = parser.add_argument_group("a task graph")
    graph.add_argument("--budget-s", type=float, metavar="S", help="limit on the search in seconds")
    options = parser.parse_args(argv)
    kind = "a model" if options.factory else "a task graph" if options.graph else "a saved plan"
    for word, owner in (
        ("budget_s", "a task graph"),
        *((w, "a model") for w in ("machine", "policy", "split")),
    ):
        if getattr(options, word) is not None and kind != owner:
            parser.error(f"--{word.replace('_', '-')} goes with {owner}")
    _check_names(options)
    planned: Callable[[], Plan] = partial(Plan.load, options.load)
    if not options.load:
        planned = _model(options) if options.factory else _graph(options)
    began = time.perf_counter()
    plan = planned()
    took = time.perf_counter() - began
    _show(plan, options)
    files = ", ".join(map(str, options.out + options.timeline))
    print(
        f"{'read' if options.load else 'planned'} in {took:.3f} s by {plan.policy}: {seconds(plan.makespan)}, "
        f"lower bound {seconds(plan.lower_bound)} (gap {percent(plan.gap)})"
        f"{f'; stopped: {plan.stopped}' if plan.stopped else ''}{f'; wrote {files}' if files else ''}",
        file=sys.stderr,
    )
    return 0


def _check_names(options: argparse.Namespace) -> None:
    """Raise, before planning, for files that could not be written."""
    from ..view.save import kind_of

    for path in options.out:
        kind_of(path, Plan, ".json")
    for path in options.timeline:
        kind_of(path, Timeline)
    for path in (*options.out, *options.timeline):
        require_writable(path)


def _show(plan: Plan, options: argparse.Namespace) -> None:
    """Write and draw the requested files, and print the report or the reasons for the named tasks."""
    from ..view import draw, explain, explain_clusters, save_timeline

    for path in options.out:
        write(path, plan.save if path.name.lower().endswith(".json") else lambda beside: draw(plan, beside))
    for path in options.timeline:
        write(path, lambda beside: save_timeline(plan.timeline(), beside))
    if "" in options.explain or not options.explain + options.out + options.timeline:
        print(explain(plan))
    tasks = [name for name in options.explain if name]
    if tasks:
        print(explain_clusters(plan, tasks))


def _graph(options: argparse.Namespace) -> Callable[[], Plan]:
    from ..planner import schedule

    return partial(schedule, options.graph, budget_s=options.budget_s)


def _model(options: argparse.Namespace) -> Callable[[], Plan]:
    """Return the function that plans the model, which is built and torch imported before: that takes seconds."""
    model, args, kwargs = call_factory(options.factory)
    import torch

    from .. import api
    from ..ir.machine import Machine

    devices = names(options.machine or "auto")
    real = all(map(_DEVICE.fullmatch, devices))
    split = {None: "auto", "none": None}.get(options.split, options.split)
    if split not in ("auto", None):
        try:
            split = int(split)
        except ValueError:
            raise AutoparError(
                f"--split {split} is not known; give auto, none or a number of parts"
            ) from None
    return torch.no_grad()(
        partial(
            api.plan, model, devices if real else Machine.declare(*devices), example_inputs=args,
            example_kwargs=kwargs, policy=options.policy or "auto", split=split,
        )
    )  # fmt: skip
