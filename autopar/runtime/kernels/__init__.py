"""The libraries that compile several tasks together to kernels: `LIBRARIES` by name, `named` also backends of
`torch.compile`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from warnings import catch_warnings

import torch

from ...capture.torch_private import backend_named, captures_lock, compiling
from ..thread_state import capture_lock
from . import cuda_graphs, inductor, onnx_runtime, open_vino
from .library import Kernel, Library, Refusal

PATIENCE_S = 60.0
"""Seconds that a call waits until no other thread captures. Not forever: the call may hold the lock of its model, for
which the other thread may wait."""


def _converting(library: ModuleType) -> Library:
    """Return a library that converts a piece to a model of its own with the weights, and loads that."""
    return Library(
        missing=library.missing,
        keeps=library.keeps,
        folds=True,
        any_size=True,
        model=library.model,
        load=library.load,
        store=library.store,
    )


LIBRARIES: dict[str, Library] = {
    "cudagraphs": Library(cuda_graphs.build, cuda_graphs.missing, devices=frozenset({"cuda"})),
    "onnxruntime": _converting(onnx_runtime),
    "openvino": _converting(open_vino),
    "inductor frozen": Library(
        partial(inductor.build, frozen=True), inductor.missing, inductor.keeps, folds=True, any_size=True
    ),
    "inductor": Library(
        inductor.build, inductor.missing, inductor.keeps, any_size=True, devices=frozenset({"cpu", "cuda"})
    ),
}
"""The libraries that "auto" compiles with, the fastest to compile first."""


def named(name: str) -> Library | None:
    """Return the library of this name, or that of a backend registered with `torch.compile`, autopar's own excluded;
    None if there is neither."""
    if name in LIBRARIES:
        return LIBRARIES[name]
    build = backend_named(name)
    return None if build is None or name == "autopar" else Library(build, keeps=inductor.keeps, devices=None)


@contextmanager
def tracing() -> Iterator[None]:
    """Within the block, let this thread alone capture and trace: two traces at once break each other, and calls of
    other models would mistake this one for their own. Raises Refusal if others trace for too long."""
    captures = captures_lock()
    if not captures.acquire(timeout=PATIENCE_S):
        raise Refusal("another thread captures a model", passing=True)
    try:
        with capture_lock(PATIENCE_S) as locked:
            if not locked:
                raise Refusal("another thread captures a model", passing=True)
            # Libraries warn of what concerns their developers.
            with compiling(), torch.no_grad(), catch_warnings(action="ignore"):
                yield
    finally:
        captures.release()


__all__ = ["LIBRARIES", "Kernel", "Library", "Refusal", "named", "tracing"]
