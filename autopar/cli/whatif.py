"""`python -m autopar whatif`: a forecast of a model on declared hosts."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import AutoparError, PlanError
from ..ir.distribution import SCHEDULES
from ..ir.hosts import Hosts
from ..ir.serialize import encode
from ..system.text import COLUMNS, percent, seconds, size, table, wrapped
from . import FACTORY, Parser, above_zero, call_factory, require_writable, write


def main(argv: Sequence[str]) -> int:
    """Print a row for each of the declared hosts and write the requested files; return 0 on success.

    Raises AutoparError if torch is not installed and for unreadable input, and PlanError, after the rows of the others,
    for hosts without a plan.
    """
    parser = _parser()
    options = parser.parse_args(argv)
    if len(options.batch) not in (1, len(options.hosts)):
        parser.error("give one --batch, or one for each --hosts")
    require_writable(options.json)
    from ..distributed import forecast as of

    declared = [Hosts.declare(text) for text in options.hosts]
    model = _captured(options)
    print(
        f"{options.factory}: {model.parameters:,} parameters in {model.dtype}, "
        f"{model.row_flops:.3g} FLOP a row{'' if options.infer else ', forward and backward'}\n"
        "declared hosts, not run: rates are shares of datasheets\n"
    )
    forecasts, refused = [], []
    batches = options.batch * len(declared) if len(options.batch) == 1 else options.batch
    for text, hosts, batch in zip(options.hosts, declared, batches):
        try:
            forecast = of.forecast(
                model, hosts, batch, optimizer=options.optimizer, tensor=options.tensor,
                recompute={"auto": None, "always": True, "never": False}[options.recompute],
                objective=options.infer or "training", schedules=options.schedule or SCHEDULES,
                rows=options.micro_batch, replicas=options.replicas, stages=options.stages,
                shard_replicas={"always": True, "never": False}.get(options.shard_replicas, "auto"),
            )  # fmt: skip
        except AutoparError as error:
            refused.append(f"{text}: {error}" if len(declared) > 1 else str(error))
            continue
        forecasts.append((text, forecast))
        if options.verbose:
            print(f"{forecast.plan}\n")
    if forecasts:
        print(_table([each for _, each in forecasts]))
    if forecasts and options.json:
        rows = [{"hosts": text, "forecast": encode(each)} for text, each in forecasts]
        contents = json.dumps({"factory": options.factory, "rows": rows}, indent=1) + "\n"
        write(options.json, lambda beside: beside.write_text(contents))
    if refused:
        # The others are told first.
        raise PlanError("\n".join(refused))
    return 0


def _table(forecasts: Sequence[Any]) -> str:
    """Return a row for each forecast, and what the columns mean."""
    paces = [each.tokens_per_s or each.rows_per_s for each in forecasts]
    pace = "tokens/s" if forecasts[0].tokens_per_s else "rows/s"
    rows = [("chips", "layout", "schedule", "batches", "step", pace, "of peak", "waits", "memory", "with")]
    for each, per_s in zip(forecasts, paces):
        plan, idle = each.plan, each.accelerators - each.used
        chunks = len(plan.stages) // plan.positions
        rows.append((
            f"{each.used}{f' of {each.accelerators}' if idle else ''}",
            f"{each.tensor} × {plan.positions} × {plan.replicas}",
            f"{plan.schedule}{f' × {chunks}' if chunks > 1 else ''}",
            f"{plan.micro_batches} × {plan.batch // plan.replicas // plan.micro_batches}",
            seconds(plan.step_s), f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.3g}",
            percent(each.mfu), percent(plan.bubble), size(max(plan.memory)),
            ", ".join(["sharding"] * plan.sharded + ["recompute"] * each.recompute),
        ))  # fmt: skip
    last = None if any(row[-1] for row in rows[1:]) else -1
    legend = (
        "layout: tensor × pipeline × data parallel; batches: micro-batches × rows of each; of peak: share of the "
        "datasheet FLOP/s; waits: of the busiest process; memory: of the fullest one. --json has all figures."
    )
    return f"{table([row[:last] for row in rows], right=range(4, 9), width=COLUMNS)}\n\n{wrapped(legend)}"


def _captured(options: argparse.Namespace):  # type: ignore[no-untyped-def]  # torch is not loaded for --help
    import torch

    from ..distributed import forecast as of

    with torch.device("meta"):
        model, args, kwargs = call_factory(options.factory, command="whatif")
    model = of.on_meta(model, options.dtype)
    floats = (p.dtype for p in model.parameters() if p.is_floating_point())
    dtype = next(floats, None) if options.dtype else None
    return of.captured(model, args, kwargs, train=not options.infer, dtype=dtype)


def _parser() -> Parser:
    parser = Parser(
        prog="python -m autopar whatif",
        description="Plan MODULE:FACTORY (a callable that returns a model and its example inputs, made on the meta "
        "device) for declared hosts: stages, replicas, tensor parallelism, micro-batches and schedule.",
        epilog='Example: whatif mymodel:make --hosts "8 x (cpu + 8 h100) over 8 ib-400" --batch 1024 --dtype bfloat16',
    )
    parser.add_argument("factory", help=FACTORY)
    parser.add_argument(
        "--hosts", action="append", required=True, metavar="HOSTS",
        help='such as "8 x (cpu + 8 h100) over 8 ib-400", or one host: "cpu + 2 rtx-4090"; may be repeated',
    )  # fmt: skip
    parser.add_argument(
        "--batch", type=above_zero, action="append", required=True, metavar="N",
        help="rows of a step over all replicas; once, or once for each --hosts",
    )  # fmt: skip
    parser.add_argument("--micro-batch", type=above_zero, metavar="N", help="rows of a micro-batch")
    parser.add_argument(
        "--optimizer", default="adam", metavar="NAME", help="none, sgd, momentum or adam (default)"
    )
    parser.add_argument(
        "--dtype", metavar="NAME", help="dtype of the model's weights, such as bfloat16 or bf16"
    )
    parser.add_argument("--tensor", type=above_zero, metavar="N", help="accelerators that share each layer")
    parser.add_argument("--stages", type=above_zero, metavar="N", help="stages of the pipeline")
    parser.add_argument("--replicas", type=above_zero, metavar="N", help="replicas of the whole model")
    parser.add_argument(
        "--shard-replicas", choices=("auto", "always", "never"), default="never",
        help="shard weights, gradients and optimizer state over replicas (FSDP2, ZeRO-3); auto: if memory requires it",
    )  # fmt: skip
    parser.add_argument("--schedule", action="append", choices=SCHEDULES, help="allowed; may be repeated")
    parser.add_argument(
        "--recompute", choices=("auto", "always", "never"), default="auto",
        help="recompute the activations of repeated layers in the backward, to save memory",
    )  # fmt: skip
    parser.add_argument(
        "--infer",
        choices=("latency", "throughput"),
        help="inference: least latency of one batch, or highest throughput",
    )
    parser.add_argument("--stages-shown", dest="verbose", action="store_true", help="also print the stages")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all plans")
    return parser
