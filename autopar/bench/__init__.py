"""Contests on a model: autopar and other stacks in the same run, interleaved."""

from __future__ import annotations

import os
import platform
from importlib.util import find_spec

from ..system.cache import processor


def machine() -> str:
    """Return one line that describes the machine."""
    host = f"{processor()}, {platform.machine()}, Python {platform.python_version()}"
    if not find_spec("torch"):
        return f"{host}, {os.cpu_count()} cores, no torch"
    import torch

    gpus = ", ".join(map(torch.cuda.get_device_name, range(torch.cuda.device_count()))) or "no GPU"
    return f"{host}, {torch.get_num_threads()} threads, torch {torch.__version__}, {gpus}"
