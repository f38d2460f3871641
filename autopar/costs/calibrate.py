"""Measured rates and links of real devices: a few products and copies each, the best of several runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import torch

from ..capture import autocast as casting

_CPU_SIDES = (("float32", 384), ("float64", 256), ("bfloat16", 128), ("float16", 128))
_GPU_SIDES = (("float32", 2048), ("float64", 1024), ("bfloat16", 4096), ("float16", 4096))
_FIRST_SIDE = 256
"""First side of the products that measure an accelerator of unknown speed; each is twice the previous."""
ENOUGH_S = 0.05
"""Seconds of a product after which no larger one is timed: one of twice the side takes eight times as long."""
_SMALL, _LARGE = 4 << 10, 32 << 20
_BEYOND, _COPIES = 64 << 20, 4
"""Bytes of a copy within an accelerator, more than its caches hold, and copies that share a launch's cost."""


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Run the block with `count` intra-op threads, then restore their number."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def as_tasks(kind: str) -> Iterator[None]:
    """In the block, let operators on devices of type `kind` compute as in tasks: without autograd, and
    without the caller's autocast, under which another dtype would be timed."""
    with torch.no_grad(), casting.off((kind,)):
        yield


def rates(device: str, count: int) -> dict[str, float]:
    """Measure FLOP/s by dtype name, `bytes_per_s` and `launch_s` of a real device, a CPU with `count` threads.

    A CPU takes about 50 ms for one thread and again for all. An accelerator takes about as long once its
    libraries are loaded, or one or two seconds if it is as slow as a CPU.
    """
    kind = torch.device(device).type
    # On a shared machine, threads that wait for each other can make many look slower than one.
    alone = rates(device, 1) if kind == "cpu" and count > 1 else {}
    with as_tasks(kind), threads(count):
        figures: dict[str, float] = {}
        for name, side in _CPU_SIDES if kind == "cpu" else _GPU_SIDES:
            first = side if kind == "cpu" else _FIRST_SIDE
            rate = max(_product(device, getattr(torch, name), first, side) or 0.0, alone.get(name, 0.0))
            if rate:
                figures[name] = rate
        size, times = (_LARGE, 1) if kind == "cpu" else (_BEYOND, _COPIES)
        source = torch.empty(size, dtype=torch.uint8, device=device).fill_(1)
        target = torch.empty_like(source)
        copied = 2 * size * times / best(lambda: [target.copy_(source) for _ in range(times)], device, 2)
        figures["bytes_per_s"] = max(copied, alone.get("bytes_per_s", 0.0))
        one = torch.ones(1, device=device)
        figures["launch_s"] = best(lambda: [torch.add(one, one) for _ in range(50)], device, 3) / 50
    return figures


def link(src: str, dst: str) -> dict[str, float]:
    """Measure `latency_s` and `bytes_per_s` of copies from one real device to another, with pinned host memory."""
    device = src if torch.device(src).type != "cpu" else dst
    small = best(_copier(src, dst, _SMALL), device, 5)
    large = best(_copier(src, dst, _LARGE), device, 3)
    return {"latency_s": small, "bytes_per_s": _LARGE / max(large - small, large / 2)}


def memcpy() -> dict[str, float]:
    """Measure `latency_s` and `bytes_per_s` of a copy within host memory into fresh memory: the link of an emulated
    device, whose copies allocate their target."""
    small, large = (torch.ones(size, dtype=torch.uint8, device="cpu") for size in (_SMALL, _LARGE // 4))
    few = best(lambda: small.clone(), "cpu", 20)
    many = best(lambda: large.clone(), "cpu", 10)
    return {"latency_s": few, "bytes_per_s": large.numel() / max(many - few, many / 2)}


def best(call: Callable[[], Any], device: str | torch.device, times: int) -> float:
    """Return the shortest of `times` durations in seconds, after one warm-up."""
    return min(durations(call, device, times))


def durations(call: Callable[[], Any], device: str | torch.device, times: int) -> list[float]:
    """Return the seconds of `times` calls, after one warm-up."""
    return [seconds(call, device) for _ in range(times + 1)][1:]


def seconds(call: Callable[[], Any], device: str | torch.device) -> float:
    """Return the seconds of a call on an idle device, until it is idle again."""
    synchronize(device)
    start = time.perf_counter()
    call()
    synchronize(device)
    return time.perf_counter() - start


def synchronize(device: str | torch.device) -> None:
    """Wait until the device is idle; a CPU always is."""
    if torch.device(device).type != "cpu":
        torch.accelerator.synchronize(torch.device(device))


def _product(device: str, dtype: torch.dtype, side: int, last: int) -> float | None:
    """Return the FLOP/s of square matrix products, with sides doubled up to the last, or until one takes long."""
    try:
        while True:
            left = torch.ones(side, side, device=device, dtype=dtype)
            took = best(partial(torch.mm, left, left), device, 3)
            if 2 * side > last or took > ENOUGH_S:
                return 2 * side**3 / took
            side *= 2
    except (RuntimeError, TypeError):
        return None  # the device has no such product, or no such dtype


def warm(device: str) -> None:
    """Load what an accelerator needs for a first product, so that the loading is not timed."""
    side = torch.ones(_FIRST_SIDE, _FIRST_SIDE, device=device)
    torch.mm(side, side)
    synchronize(device)


@cache
def pins_memory() -> bool:
    """Return True if host memory can be pinned for the present accelerator."""
    try:
        return torch.empty(1, device="cpu", pin_memory=True).is_pinned()
    except RuntimeError:  # its backend has no allocator of such memory
        return False


def _copier(src: str, dst: str, size: int) -> Callable[[], Any]:
    source = _buffer(src, size)
    target = _buffer(dst, size)
    return lambda: target.copy_(source, non_blocking=True)


def _buffer(device: str, size: int) -> torch.Tensor:
    if torch.device(device).type == "cpu":
        buffer = torch.ones(size, dtype=torch.uint8, device="cpu")
        return buffer.pin_memory() if pins_memory() else buffer
    return torch.ones(size, dtype=torch.uint8, device=device)
