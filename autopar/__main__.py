"""`python -m autopar`: demo, doctor, plan, bench."""

from __future__ import annotations

import argparse
import importlib
import logging
import runpy
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from .errors import AutoparError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 0 when all went well, 2 for bad input (one sentence on stderr)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    commands = {"demo": demo, "doctor": doctor, "plan": plan, "bench": bench}
    parser = argparse.ArgumentParser(
        prog="python -m autopar",
        description="Make an ordinary PyTorch model use every device of the machine it is on.",
        epilog="demo: the two-layer MLP across CPU + 2 devices, with its pictures. doctor: what this machine has. "
        "plan: plan a model for a machine. bench: measure, rivals in the same run. Each takes --help.",
    )
    parser.add_argument("command", choices=commands)
    parser.add_argument("-v", "--verbose", action="store_true", help="say on stderr what each stage does")
    split = next((i + 1 for i, word in enumerate(arguments) if word in commands), len(arguments))
    chosen = parser.parse_args(arguments[:split])
    logging.basicConfig(
        level=logging.INFO if chosen.verbose else logging.WARNING, format="autopar: %(message)s"
    )
    try:
        return commands[chosen.command](arguments[split:])
    except AutoparError as error:
        print(f"autopar {chosen.command}: {error}", file=sys.stderr)
        return 2


def demo(argv: Sequence[str]) -> int:
    """Run examples/two_layer_mlp.py of this clone."""
    script = Path(__file__).resolve().parent.parent / "examples" / "two_layer_mlp.py"
    if not script.exists():
        raise AutoparError(
            f"the demo is {script.name} in a clone of the repository, and {script.parent} is not there"
        )
    # torch says so once when it traces without numpy, which nothing here needs.
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
    sys.argv = [str(script), *argv]
    runpy.run_path(str(script), run_name="__main__")
    return 0


def doctor(argv: Sequence[str]) -> int:
    """Print the devices, links and caches of this machine."""
    from .doctor import main as run

    return run(argv)


def plan(argv: Sequence[str]) -> int:
    """Plan `MODULE:FACTORY` (a callable that returns a model and its example inputs) for a machine."""
    parser = argparse.ArgumentParser(prog="python -m autopar plan", description=plan.__doc__)
    parser.add_argument("factory", help="MODULE:FACTORY, for example mymodel:make; make() -> (model, (x,))")
    parser.add_argument(
        "--machine",
        required=True,
        help="chips such as cpu-16,h100-sxm,h100-sxm, or devices of this machine: cpu,cuda:0",
    )
    parser.add_argument("--policy", default="auto", help="auto, single, round_robin or heft")
    parser.add_argument("--split", default="auto", help="auto, none or a number of parts")
    parser.add_argument("--out", help="write the plan as JSON, or draw it (.html .svg .png .dot .txt)")
    chosen = parser.parse_args(argv)

    import torch

    from . import api
    from .machine import Machine
    from .view import draw, explain

    made = _factory(chosen.factory)()
    if not isinstance(made, tuple) or len(made) != 2 or not isinstance(made[1], (tuple, list)):
        raise AutoparError(
            f"{chosen.factory} must return (model, (x, …)): a model and the tuple of its arguments"
        )
    model, inputs = made
    names = chosen.machine.split(",")
    real = all(name.split(":")[0].split("*")[0] in ("cpu", "cuda", "xpu", "emulated") for name in names)
    split = {"auto": "auto", "none": None}.get(chosen.split, chosen.split)
    if split not in ("auto", None):
        try:
            split = int(split)
        except ValueError:
            raise AutoparError(
                f"--split {split} is not known; give auto, none or a number of parts"
            ) from None
    with torch.no_grad():
        found = api.plan(model, names if real else Machine.declare(*names), example_inputs=inputs,
                        policy=chosen.policy, split=split)  # fmt: skip
    print(explain(found))
    if chosen.out and chosen.out.endswith(".json"):
        found.save(chosen.out)
    elif chosen.out:
        draw(found, chosen.out)
    return 0


def bench(argv: Sequence[str]) -> int:
    """Measure against eager and rivals."""
    from .bench import main as run

    return run(argv)


def _factory(text: str):  # type: ignore[no-untyped-def]
    module, _, name = text.partition(":")
    if not name:
        raise AutoparError(f"{text!r} is not MODULE:FACTORY; write for example mymodel:make")
    sys.path.insert(0, "")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise AutoparError(f"{text!r} cannot be loaded: {error}") from None
    if not callable(found):
        raise AutoparError(f"{text!r} is {found!r}; name a function that returns (model, (x, …))")
    return found


if __name__ == "__main__":
    raise SystemExit(main())
