"""`python -m autopar plan`: plan a model (loads torch) or a task graph from a file (does not)."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ..errors import AutoparError
from ..ir.plan import Plan
from ..ir.timeline import Timeline
from ..system.text import percent, seconds
from . import FACTORY, call_factory, names, require_writable, write

_DEVICE = re.compile(r"[a-z]+(:\d+)?(\*\d+)?")
"""Names of devices of this machine, as opposed to names of chips, which contain a number."""


def main(argv: Sequence[str]) -> int:
    """Plan the model or graph that the arguments name; return 0 on success."""
    parser = argparse.ArgumentParser(
        prog="python -m autopar plan",
        description="Plan MODULE:FACTORY (a callable that returns a model and its example inputs), or --graph FILE, "
        "for a machine.",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("factory", nargs="?", help=FACTORY)
    what.add_argument("--graph", metavar="FILE", help="a task graph: autopar's .json")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", action="append", default=[],
        help="write the plan as .json, or draw it: .html .svg .png .dot; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--timeline", type=Path, metavar="FILE", action="append", default=[],
        help="write the planned timeline: .html .svg .png, or .json .json.gz for Perfetto",
    )  # fmt: skip
    parser.add_argument(
        "--explain", metavar="TASK", nargs="?", const="", action="append", default=[],
        help="print the report (the default without --out), or for a task name or glob the reasons for its placement",
    )  # fmt: skip
    model = parser.add_argument_group("a model")
    model.add_argument(
        "--machine", help="chips such as cpu-16,h100-sxm,h100-sxm, or devices of this machine: cpu,cuda:0"
    )
    model.add_argument("--policy", help="auto (the default), single, round_robin or heft")
    model.add_argument("--split", help="auto (the default), none or a number of parts")
    graph = parser.add_argument_group("a task graph")
    graph.add_argument("--budget-s", type=float, metavar="S", help="limit on the search in seconds")
    chosen = parser.parse_args(argv)
    if chosen.graph is None and chosen.machine is None:
        parser.error("a model needs --machine, for example --machine cpu,cuda:0")
    for word in ("budget_s",) if chosen.graph is None else ("machine", "policy", "split"):
        if getattr(chosen, word) is not None:
            kind = "a task graph" if chosen.graph is None else "a model"
            parser.error(f"--{word.replace('_', '-')} goes with {kind}")
    _check_names(chosen)
    return _model(chosen) if chosen.graph is None else _graph(chosen)


def _check_names(chosen: argparse.Namespace) -> None:
    """Raise, before planning, for files that could not be written."""
    from ..view.save import kind_of, suffixes

    for path in chosen.out:
        kind_of(path, (".json", *suffixes(Plan)), "a plan")
    for path in chosen.timeline:
        kind_of(path, suffixes(Timeline), "a timeline")
    for path in (*chosen.out, *chosen.timeline):
        require_writable(path)


def _graph(chosen: argparse.Namespace) -> int:
    from ..planner import schedule
    from ..planner.formats import text

    began = time.perf_counter()
    plan = schedule(chosen.graph, budget_s=chosen.budget_s)
    took = time.perf_counter() - began
    ended = f"; stopped: {plan.stopped}" if plan.stopped else ""
    print(
        f"planned in {took:.3f} s by {plan.policy}: {seconds(plan.makespan)}, lower bound "
        f"{seconds(plan.lower_bound)} (gap {percent(plan.gap)}){ended}",
        file=sys.stderr,
    )
    report = chosen.explain or ([""] if not chosen.out + chosen.timeline else [])
    _show(plan, chosen, report, lambda path: path.write_text(text(plan), encoding="utf-8"))
    return 0


def _show(
    plan: Plan, chosen: argparse.Namespace, report: Sequence[str], save: Callable[[Path], object]
) -> None:
    """Write and draw the requested files, and print the report or the reasons for the named tasks."""
    from ..view import draw, explain, explain_clusters, save_timeline

    for path in chosen.out:
        write(path, save if path.name.lower().endswith(".json") else lambda beside: draw(plan, beside))
    for path in chosen.timeline:
        write(path, lambda beside: save_timeline(plan.timeline(), beside))
    if "" in report:
        print(explain(plan))
    tasks = [name for name in report if name]
    if tasks:
        print(explain_clusters(plan, tasks))


def _model(chosen: argparse.Namespace) -> int:
    import torch

    from .. import api
    from ..ir.machine import Machine

    model, inputs = call_factory(chosen.factory)
    devices = names(chosen.machine)
    real = all(map(_DEVICE.fullmatch, devices))
    split = {None: "auto", "none": None}.get(chosen.split, chosen.split)
    if split not in ("auto", None):
        try:
            split = int(split)
        except ValueError:
            raise AutoparError(
                f"--split {split} is not known; give auto, none or a number of parts"
            ) from None
    with torch.no_grad():
        plan = api.plan(model, devices if real else Machine.declare(*devices), example_inputs=inputs,
                        policy=chosen.policy or "auto", split=split)  # fmt: skip
    _show(plan, chosen, chosen.explain or [""], plan.save)
    return 0
