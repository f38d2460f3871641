"""CUDA graphs: the kernels of a piece, recorded once and launched together, so that the host no longer limits a lane of
short operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import torch
from torch import fx

from ...costs.calibrate import best
from .library import Call

WARM = 3
"""Calls before the recording: libraries choose their algorithms in the first ones."""
TIMES = 10
"""Timed calls of a kernel and of its recording."""


def missing() -> str:
    """Return the reason why CUDA graphs cannot be used; "" if they can."""
    return "" if torch.cuda.is_available() else "torch.cuda is not available"


def build(module: fx.GraphModule, inputs: Sequence[torch.Tensor]) -> Call:
    """Record a piece; return the function that replays it. Raises CUDA's errors: an operator that waits for the host
    cannot be recorded."""
    return recorded(module, module, inputs)


def recorded(kernel: Call, module: fx.GraphModule, inputs: Sequence[torch.Tensor]) -> Call:
    """Record a call of the `kernel` of a piece; return the function that replays it. Raises CUDA's errors.

    A replay reads weights where they are; with weights elsewhere, the kernel itself runs. Other arguments are
    copied into the memory of the recording, and results out of it, since the next replay overwrites them.
    """
    device, weights = module.meta["device"], module.meta["stays"]
    static = [item if stays else item.clone() for item, stays in zip(inputs, weights)]
    fixed = [place for place, stays in enumerate(weights) if stays]
    copied = [(place, static[place]) for place, stays in enumerate(weights) if not stays]
    addresses = [static[place].data_ptr() for place in fixed]
    graph, warm, ready = torch.cuda.CUDAGraph(), torch.cuda.Stream(device), torch.cuda.Event()
    # PyTorch keeps a workspace of cuBLAS for each stream. If this stream had one, the recording would use it, and
    # whoever clears these workspaces, as `torch.compile` does for its own recordings, would free memory that replays
    # write to. Few use streams of high priority, so the workspace is results, and stays, in the recording's own memory.
    side = torch.cuda.Stream(device, priority=-1)
    with torch.no_grad(), torch.cuda.device(device):
        warm.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(warm):
            for _ in range(WARM):
                kernel(*static)
        torch.cuda.current_stream().wait_stream(warm)
        results = _captured(graph, side, lambda: kernel(*static))
    latest = [side]

    def call(*tensors: torch.Tensor) -> Sequence[torch.Tensor]:
        if [tensors[place].data_ptr() for place in fixed] != addresses:
            return kernel(*tensors)
        stream = torch.cuda.current_stream(device)
        with torch.no_grad():
            if stream != latest[0]:
                # The previous replay may still be running.
                ready.record(latest[0])
                stream.wait_event(ready)
                latest[0] = stream
                for _, copy in copied:
                    copy.record_stream(stream)
            for place, copy in copied:
                copy.copy_(tensors[place], non_blocking=True)
            graph.replay()
            return [tensor.clone() for tensor in results]

    return call


def _captured(
    graph: torch.cuda.CUDAGraph, side: torch.cuda.Stream, call: Callable[[], Sequence[torch.Tensor]]
) -> Sequence[torch.Tensor]:
    """Record a call in a graph on a stream; return its results. Raises CUDA's errors."""
    before, pool = torch.cuda.current_stream(), torch.cuda.graph_pool_handle()
    try:
        # Other threads of the process may use the device meanwhile.
        with torch.cuda.graph(graph, pool=pool, stream=side, capture_error_mode="thread_local"):
            return call()
    except BaseException:
        # After a failure, torch leaves `side` as the current stream and its allocator still recording.
        torch.cuda.set_stream(before)
        with suppress(RuntimeError):
            torch._C._cuda_endAllocateToPool(side.device_index, pool)
        raise


def faster(kernel: Call, module: fx.GraphModule, inputs: Sequence[torch.Tensor]) -> Call:
    """Return the `kernel` of a piece or a recording of it, whichever takes less time; the kernel if it cannot
    be recorded."""
    try:
        replay = recorded(kernel, module, inputs)
    except RuntimeError:
        return kernel
    took = [best(partial(each, *inputs), module.meta["device"], TIMES) for each in (kernel, replay)]
    return replay if took[1] < took[0] else kernel
