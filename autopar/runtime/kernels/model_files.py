"""Files of models in a library's own form, with which later processes need neither trace nor convert."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import fx

from ...system import cache

log = logging.getLogger("autopar")

ROOM = 2 << 30
"""Limit on the bytes of all files. The least recently used are deleted."""


def folder() -> Path:
    """Return the folder of the files."""
    return cache.folder() / "kernels"


def stored(
    library: str,
    version: str,
    module: fx.GraphModule,
    inputs: Sequence[torch.Tensor],
    make: Callable[[], bytes],
) -> bytes:
    """Return the bytes of `make()`, stored for later processes with a module of the same code and weights, inputs of
    the same form, and the same versions. `module.meta["bounds"]` is stored too. Raises the errors of `make`."""
    path = _path(library, version, module, inputs)
    try:
        header, _, data = path.read_bytes().partition(b"\n")
        module.meta["bounds"] = {name: tuple(limits) for name, limits in json.loads(header).items()}
        os.utime(path)
        return data
    except (OSError, ValueError):
        data = make()
    try:
        folder().mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}.part")
        part.write_bytes(json.dumps(module.meta.get("bounds", {})).encode() + b"\n" + data)
        part.replace(path)
        _prune()
    except OSError as error:
        log.info("a model is not stored for later processes: %s", error)
    return data


def _path(library: str, version: str, module: fx.GraphModule, inputs: Sequence[torch.Tensor]) -> Path:
    about = hashlib.sha256(module.code.encode())
    forms = [(tuple(t.shape), t.stride(), str(t.dtype)) for t in inputs]
    about.update(repr((forms, module.meta.get("axes"), torch.get_num_threads())).encode())
    for name, tensor in module.named_buffers():
        about.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        if tensor.numel():
            about.update(tensor.contiguous().view(-1).view(torch.uint8).numpy(force=True).data)
    file = cache.file_for(library, [torch.__version__, version, about.hexdigest()])
    return folder() / file.with_suffix(".model").name


def _prune() -> None:
    """Delete the least recently used files beyond `ROOM`, parts of processes that have ended among them."""
    files = [(each.stat().st_mtime, each.stat().st_size, each) for each in folder().iterdir()]
    room = ROOM
    for _, size, path in sorted(files, reverse=True):
        room -= size
        if room < 0:
            path.unlink(missing_ok=True)
