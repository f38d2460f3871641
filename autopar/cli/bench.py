"""`python -m autopar bench`: compare a model under autopar with other stacks on this machine."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..bench import machine
from ..errors import AutoparError
from . import (
    FACTORY,
    Parser,
    above_zero,
    call_factory,
    duration,
    names,
    require_writable,
    write,
)

if TYPE_CHECKING:
    from ..bench.contest import Row

_PASSED = ("rivals", "devices", "seconds", "build_seconds", "rounds")
"""Options that are passed on to the contests of a suite."""


def main(argv: Sequence[str]) -> int:
    """Run the benchmarks, print tables and write the requested files; return 0 on success.

    Raises AutoparError if torch is not installed, and for unknown names.
    """
    parser = _parser()
    options = parser.parse_args(argv)
    if bool(options.factory) == bool(options.suite):
        parser.error("give MODULE:FACTORY or --suite")
    for word in ("only",) if options.factory else ("batch", "train"):
        if getattr(options, word):
            parser.error(f"--{word} goes with {'--suite' if options.factory else 'MODULE:FACTORY'}")
    require_writable(options.json)
    if options.suite == "gpu":
        only = [f"--only={name}" for name in options.only]
        return int(_suite("gpu").main([*only, *_words(options, ("rounds", "json"))]))
    from ..costs.detect import parse_devices

    parse_devices(names(options.devices))
    print(machine(), flush=True)
    return _contests(options)


def _parser() -> Parser:
    parser = Parser(
        prog="python -m autopar bench",
        description="Time MODULE:FACTORY (a callable that returns a model and its example inputs) under autopar, "
        "eager, torch.compile, ONNX Runtime and OpenVINO, interleaved; or run a suite.",
    )
    parser.add_argument("factory", nargs="?", help=FACTORY)
    parser.add_argument(
        "--suite",
        choices=("stacks", "gpu"),
        help="stacks: eleven models, each in its own process; gpu: what CUDA adds, from overlap to kernels",
    )
    parser.add_argument(
        "--batch", type=above_zero, action="append", default=[], metavar="N",
        help="call the factory as make(batch=N); may be repeated",
    )  # fmt: skip
    parser.add_argument("--train", action="store_true", help="time a training step: loss, backward, SGD")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="NAME",
        help="a model or row of the suite; may be repeated",
    )
    parser.add_argument(
        "--rivals", metavar="NAMES", help="stacks to compare, such as compile,openvino; eager always runs"
    )
    parser.add_argument(
        "--devices", metavar="NAMES", help="autopar's devices, such as cpu,cuda:0 (default cpu)"
    )
    parser.add_argument("--rounds", type=above_zero, metavar="N", help="timed blocks of each (default 9)")
    parser.add_argument(
        "--seconds", type=duration, metavar="S", help="limit on timing each batch, in seconds (default 20)"
    )
    parser.add_argument(
        "--build-seconds", type=duration, metavar="S", help="limit on build and first call (default 120)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples and medians")
    parser.set_defaults(rivals="", devices="cpu", seconds=20.0, build_seconds=120.0)
    return parser


def _suite(name: str) -> Any:
    """Return the module of a suite, from tests/benchmarks of this clone."""
    clone = Path(__file__).resolve().parents[2]
    path = clone / "tests" / "benchmarks" / "timed" / f"{name}.py"
    if not path.is_file():
        raise AutoparError(
            f"the suite needs {path}, which only a clone of the repository has; run the command there"
        )
    sys.path.insert(0, str(clone))
    return importlib.import_module(f"tests.benchmarks.timed.{name}")


def _contests(options: argparse.Namespace) -> int:
    """Print and write the rows of the model's batches or of the suite; if one fails, the rows so far."""
    from ..bench.contest import summary

    rows: list[Row] = []
    skipped: dict[str, str] = {}
    try:
        for name, batch_rows, reason in (
            _batches(options)
            if options.factory
            else _suite("stacks").run(options.only, _words(options, _PASSED))
        ):
            for row in batch_rows:
                print(f"\n{row}", flush=True)
            rows += batch_rows
            if reason:
                print(f"\n{name} skipped: {reason}", flush=True)
                skipped[name] = reason
            if options.json:
                data = {"machine": machine(), "rows": [row.data() for row in rows], "skipped": skipped}
                write(options.json, partial(Path.write_text, data=json.dumps(data, indent=1) + "\n"))
    finally:
        if rows:
            print(f"\n{summary(rows)}")
    return 0


def _batches(options: argparse.Namespace) -> Iterator[tuple[str, list[Row], str]]:
    """Yield the model's name with its row for each batch, or one row without `--batch`; none is skipped."""
    import torch

    from ..bench import rivals
    from ..bench.contest import contest

    known = rivals.TRAINERS if options.train else rivals.RIVALS
    taking = rivals.chosen(names(options.rivals), known)
    for batch in options.batch or [None]:
        torch.manual_seed(0)
        model, args, kwargs = call_factory(options.factory, batch, "bench")
        case = rivals.Case(model, args, names(options.devices), options.train, kwargs=kwargs)
        name = options.factory.rpartition(":")[2]
        title = ", ".join(filter(None, (name, batch and f"batch {batch}", options.train and "training")))
        row = contest(
            title, case, taking,
            rounds=options.rounds or 9, timing_s=options.seconds, build_s=options.build_seconds,
        )  # fmt: skip
        yield name, [row], ""


def _words(options: argparse.Namespace, names: Sequence[str]) -> list[str]:
    """Return the options of these names that have a value, as they are typed."""
    values = {name: getattr(options, name) for name in names}
    return [f"--{name.replace('_', '-')}={value}" for name, value in values.items() if value is not None]
