"""The command line `python -m autopar`: demo, doctor, plan, bench, whatif."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from . import __version__
from .cli import Parser
from .errors import AutoparError
from .system.text import printable

COMMANDS = ("demo", "doctor", "plan", "bench", "whatif")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return 0 on success, 2 for invalid input, with one sentence on stderr."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = Parser(
        prog="python -m autopar",
        description="Run an unmodified PyTorch model on all devices of your machine at once.",
        epilog="demo: a two-layer MLP on the CPU and two devices, with pictures. doctor: what this machine has. "
        "plan: plan a model or a task graph for a machine. bench: compare a model with other stacks. whatif: "
        "predict a model on declared hosts. Each command has --help.",
    )
    parser.add_argument("--version", action="version", version=f"autopar {__version__}")
    # Optional, or argparse would report a missing command before an unknown option.
    parser.add_argument("command", nargs="?", choices=COMMANDS)
    parser.add_argument("-v", "--verbose", action="store_true", help="log each stage to stderr")
    split = next((i + 1 for i, word in enumerate(arguments) if word in COMMANDS), len(arguments))
    if not arguments:
        parser.print_help()
        return 0
    options = parser.parse_args(arguments[:split])
    if options.command is None:
        parser.error(f"give a command: {', '.join(COMMANDS)}")
    logging.basicConfig(
        level=logging.INFO if options.verbose else logging.WARNING, format="autopar: %(message)s"
    )
    try:
        # Each command loads only what it needs: planning a task graph never loads torch.
        return int(import_module(f".cli.{options.command}", "autopar").main(arguments[split:]))
    except AutoparError as error:
        # Names that the user chose may contain line breaks and control characters.
        print(f"autopar {options.command}: {printable(' '.join(str(error).splitlines()))}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        print(
            f"autopar {options.command}: torch is not installed, which models need; install it",
            file=sys.stderr,
        )
        return 2
    except BrokenPipeError:
        # The reader, such as `head`, has enough. Python would complain of the rest when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if error.filename is None:
            raise
        print(
            f"autopar {options.command}: {error.filename}: {error.strerror}; give another name",
            file=sys.stderr,
        )
        return 2


if __name__ == "__main__":
    raise SystemExit(main())
