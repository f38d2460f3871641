"""`python -m autopar bench`: a model beside whatever else runs models here, or the suites of this repository."""

from __future__ import annotations

import argparse
import importlib
import json
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ..bench import STACKS, SUITES, machine
from ..errors import AutoparError
from .factory import made

if TYPE_CHECKING:
    from ..bench.row import Row


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what the arguments name, print tables, and write the files that are asked for; 0 when it worked.

    It needs torch: AutoparError where it is not installed, and for names that mean nothing.
    """
    parser = _parser()
    chosen = parser.parse_args(argv)
    suites = chosen.suite or ([] if chosen.factory else [SUITES[0]])
    contests = chosen.factory or suites == [STACKS]
    if chosen.factory and suites:
        parser.error("give MODULE:FACTORY or --suite, not both")
    if STACKS in suites and not contests:
        parser.error(f"--suite {STACKS} stands alone")
    for word, there, where in (
        ("batch", chosen.factory, "MODULE:FACTORY"),
        ("train", chosen.factory, "MODULE:FACTORY"),
        ("only", suites == [STACKS], f"--suite {STACKS}"),
        *((word, contests, f"MODULE:FACTORY or --suite {STACKS}") for word in _CONTESTS),
    ):
        if getattr(chosen, word) and not there:
            parser.error(f"--{word.replace('_', '-')} goes with {where}")
    if not find_spec("torch"):
        what = f"the suite {suites[0]}" if suites else "bench"
        raise AutoparError(f"torch is not installed, and {what} measures it; install torch")
    for path in (chosen.json, chosen.plot):
        if path and not path.parent.is_dir():
            raise AutoparError(f"the folder of {path} is not there; make it, or give another name")
    print(machine(), flush=True)
    if contests:
        return _contests(chosen)
    results: dict[str, object] = {"machine": machine()}
    for suite in suites:
        module = importlib.import_module(f"..bench.{suite}", __package__)
        print(f"\n{suite}: {str(module.__doc__).splitlines()[0]}")
        results[suite] = module.run(chosen.rounds or 0)
        if chosen.json:
            _write(chosen.json, results)
    return 0


_CONTESTS = ("rivals", "devices", "seconds", "build_seconds", "plot")
"""Options of contests alone."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m autopar bench",
        description="Time MODULE:FACTORY (a callable that returns a model and its example inputs) by autopar, eager, "
        "torch.compile, ONNX Runtime and OpenVINO in turns, or run --suite NAME.",
    )
    parser.add_argument(
        "factory", nargs="?", help="MODULE:FACTORY, for example mymodel:make; make() -> (model, (x,))"
    )
    parser.add_argument(
        "--suite",
        choices=SUITES,
        action="append",
        help="which (repeat for several; without a model: overhead)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="file for all samples and medians")
    parser.add_argument(
        "--rounds",
        type=_above_zero,
        metavar="N",
        help="rounds of each contestant (default: the suite's own, 9 of a model)",
    )
    model = parser.add_argument_group("a model")
    model.add_argument(
        "--batch", type=_above_zero, action="append", default=[], metavar="N",
        help="call the factory as make(batch=N); may be given several times",
    )  # fmt: skip
    model.add_argument("--train", action="store_true", help="time a training step: loss, backward, SGD")
    both = parser.add_argument_group(f"a model, or --suite {STACKS}")
    both.add_argument(
        "--rivals", metavar="NAMES", help="which, such as compile,openvino; eager is always there"
    )
    both.add_argument(
        "--devices", metavar="NAMES", help="autopar's devices, such as cpu,cuda:0 (default cpu)"
    )
    both.add_argument("--seconds", type=float, metavar="S", help="end the timing of a batch after this (20)")
    both.add_argument(
        "--build-seconds", type=float, metavar="S", help="a rival's time to build and answer (120)"
    )
    both.add_argument("--plot", type=Path, metavar="FILE", help="draw the ratios to eager as .svg or .png")
    both.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="NAME",
        help=f"a model of --suite {STACKS}; may be repeated",
    )
    return parser


def _above_zero(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return number


def _contests(chosen: argparse.Namespace) -> int:
    """The rows of a model's batches, or of the suite, shown and written; what there is of them where one fails."""
    from ..bench import chart, stacks
    from ..bench.row import summary

    if chosen.plot:
        chart.suffix(chosen.plot)
    rows: list[Row] = []
    skipped: dict[str, str] = {}
    try:
        for name, found, reason in (
            _batches(chosen) if chosen.factory else stacks.run(chosen.only, _words(chosen))
        ):
            for row in found:
                print(f"\n{row}", flush=True)
            rows += found
            if reason:
                print(f"\n{name} skipped: {reason}", flush=True)
                skipped[name] = reason
            if chosen.json:
                data = {"machine": machine(), "rows": [row.data() for row in rows], "skipped": skipped}
                _write(chosen.json, data)
    finally:
        if rows:
            print(f"\n{summary(rows)}")
        if rows and chosen.plot:
            chart.save(rows, chosen.plot, machine())
    return 0


def _batches(chosen: argparse.Namespace) -> Iterator[tuple[str, list[Row], str]]:
    """The model's name with its row for each batch, or for none where none is asked for; nothing is skipped."""
    import torch

    from ..bench import rivals, steps
    from ..bench.case import Case
    from ..bench.contest import Budget, contest

    known = steps.RIVALS if chosen.train else rivals.RIVALS
    taking = rivals.chosen(chosen.rivals.split(",") if chosen.rivals else [], known)
    given = {"rounds": chosen.rounds, "timing_s": chosen.seconds, "build_s": chosen.build_seconds}
    budget = Budget(**{name: value for name, value in given.items() if value is not None})
    for batch in chosen.batch or [None]:
        torch.manual_seed(0)
        model, args = made(chosen.factory, batch)
        if not isinstance(model, torch.nn.Module):
            raise AutoparError(f"{chosen.factory} gives a {type(model).__name__}; bench needs an nn.Module")
        case = Case(model, args, (chosen.devices or "cpu").split(","), chosen.train)
        name = chosen.factory.partition(":")[2]
        title = ", ".join(
            [name, *([f"batch {batch}"] if batch else []), *(["training"] if chosen.train else [])]
        )
        yield name, [contest(title, case, taking, budget)], ""


def _words(chosen: argparse.Namespace) -> list[str]:
    """The options of contests as they were given."""
    words = (*_CONTESTS[:-1], "rounds")
    return [
        text
        for word in words
        if getattr(chosen, word) is not None
        for text in (f"--{word.replace('_', '-')}", str(getattr(chosen, word)))
    ]


def _write(path: Path, data: Mapping[str, object]) -> None:
    path.write_text(json.dumps(data, indent=1) + "\n")
