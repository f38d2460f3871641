"""`torch.strict`: the Python face of the device, with the functions that `torch.cuda` has for its own and controls of
how unforgiving it is."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import importlib
import os
import random
import sys
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from .build import built

NAME = "strict"
DEFAULTS = {
    "STRICT_SEED": lambda: random.SystemRandom().getrandbits(32),
    "STRICT_DELAY_US": lambda: 1000,
    "STRICT_DELAY_SHARE": lambda: 0.3,
}
"""Defaults of the settings that the environment may give."""
CHIP = "strict asynchronous CPU"
MODES = {"default": 0, "warn": 1, "error": 2}


class Properties(NamedTuple):
    """The result of `get_device_properties`; memory in bytes."""

    name: str
    total_memory: int
    multi_processor_count: int


def load() -> types.ModuleType:
    """Build and register the device, and return `torch.strict`; the same module when called again.

    `torch.accelerator` knows the device from then on. Settings are those of the environment; those it lacks are put
    there, so that processes started later have the same seed. Raises CompilerError where it cannot be built,
    RuntimeError where this process has another private backend.
    """
    if f"torch.{NAME}" in sys.modules:
        return sys.modules[f"torch.{NAME}"]
    taken = torch._C._get_privateuse1_backend_name()
    if taken not in ("privateuseone", NAME):
        raise RuntimeError(f"this process has the backend {taken!r}; set TORCH_DEVICE_BACKEND_AUTOLOAD=0")
    path = built()
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, str(value()))
    # Shapes of operators that have no Meta kernel in C++.
    importlib.import_module("torch._meta_registrations")

    library = ctypes.CDLL(str(path))
    torch.utils.rename_privateuse1_backend(NAME)
    module = _module(library)
    torch._register_device_module(NAME, module)
    torch.utils.generate_methods_for_privateuse1_backend(for_tensor=True, for_module=True, for_storage=True)
    # Threads of streams must not be at work while the interpreter and torch's libraries are taken down.
    atexit.register(_finish)
    return module


def _finish() -> None:
    for index in range(torch.accelerator.device_count()):
        try:
            torch.accelerator.synchronize(index)
        except RuntimeError as error:
            print(f"strict:{index} at exit: {error}", file=sys.stderr)


def _index(which: Any = None) -> int:
    """The index of a device given as torch lets one give it; of the current device for None or no index."""
    if isinstance(which, int):
        return which
    index = None if which is None else torch.device(which).index
    return torch.accelerator.current_device_index() if index is None else index


class device:  # noqa: N801 - as torch.cuda.device
    """A context in which a device is the current one."""

    def __init__(self, which: Any) -> None:
        self.index, self.before = _index(which), -1

    def __enter__(self) -> None:
        self.before = torch.accelerator.current_device_index()
        torch.accelerator.set_device_index(self.index)

    def __exit__(self, *_: object) -> None:
        torch.accelerator.set_device_index(self.before)


def _module(library: ctypes.CDLL) -> types.ModuleType:
    """The module, its functions those of the library or of `torch.accelerator`."""

    def control(name: str, *takes: Any, gives: Any = None) -> Any:
        function = getattr(library, f"strict_{name}")
        function.argtypes, function.restype = takes, gives
        return function

    number, times, bytes_ = ctypes.c_int, ctypes.c_int64, ctypes.c_size_t
    seed_number, share = ctypes.c_uint64, ctypes.c_double
    device_count = control("device_count", gives=number)
    memory = control("device_memory", gives=bytes_)
    manual_seed = control("manual_seed", number, seed_number)
    initial_seed = control("initial_seed", number, gives=seed_number)
    get_state = control("get_rng_state", number, ctypes.c_void_p)
    set_state = control("set_rng_state", number, ctypes.c_void_p)
    launches, waits = control("launches", gives=times), control("host_waits", gives=times)
    blocking = control("blocking", ctypes.c_char_p, bytes_, gives=bytes_)
    hold = control("hold", number, times, gives=ctypes.c_void_p)
    release = control("release", ctypes.c_void_p)
    set_mode = control("set_sync_debug_mode", number)

    def get_rng_state(which: Any = NAME) -> torch.Tensor:
        state = torch.empty_like(torch.get_rng_state())
        get_state(_index(which), state.data_ptr())
        return state

    def set_rng_state(state: torch.Tensor, which: Any = NAME) -> None:
        state = state.to("cpu", torch.uint8).contiguous()
        if state.shape != torch.get_rng_state().shape:
            raise RuntimeError(f"a state of {state.numel()} bytes is not one of this generator")
        set_state(_index(which), state.data_ptr())

    def told() -> dict[str, int]:
        text = ctypes.create_string_buffer(1 << 20)
        size = blocking(text, len(text))
        lines = text.raw[:size].decode().splitlines()
        return {name: int(count) for name, _, count in (line.rpartition(" ") for line in lines)}

    @contextlib.contextmanager
    def held(stream: torch.Stream) -> Iterator[None]:
        """Work given to the stream in this context is done after it. The host must not wait for it meanwhile."""
        handle = hold(stream.device_index, stream.stream_id)
        try:
            yield
        finally:
            release(handle)

    def set_sync_debug_mode(mode: int | str) -> None:
        set_mode(MODES[mode] if isinstance(mode, str) else mode)

    def seed_all(seed: int) -> None:
        for index in range(device_count()):
            manual_seed(index, seed)

    module = types.ModuleType(f"torch.{NAME}", __doc__)
    module.__dict__.update(
        # As on `torch.cuda`.
        device=device,
        is_available=lambda: True,
        is_initialized=lambda: True,
        _initialized=True,  # what torch.utils.checkpoint reads before it keeps the state of the generators
        _is_in_bad_fork=lambda: False,
        _lazy_init=lambda: None,
        init=lambda: None,
        device_count=device_count,
        current_device=torch.accelerator.current_device_index,
        set_device=lambda which: torch.accelerator.set_device_index(_index(which)),
        synchronize=lambda which=None: torch.accelerator.synchronize(_index(which)),
        get_device_name=lambda which=None: CHIP,
        get_device_properties=lambda which=None: Properties(CHIP, memory(), 1),
        get_amp_supported_dtype=lambda: [torch.float16, torch.bfloat16],
        get_rng_state=get_rng_state,
        set_rng_state=set_rng_state,
        manual_seed=lambda seed: manual_seed(_index(), seed),
        manual_seed_all=seed_all,
        initial_seed=lambda: initial_seed(_index()),
        _sleep=control("sleep", times),
        set_sync_debug_mode=set_sync_debug_mode,
        get_sync_debug_mode=control("sync_debug_mode", gives=number),
        # Of its own.
        held=held,
        set_seed=control("set_seed", seed_number),
        seed=control("seed", gives=seed_number),
        set_delay=control("set_delay", times, share),
        set_poison=control("set_poison", ctypes.c_bool),
        set_serial=control("set_serial", ctypes.c_bool),
        counts=lambda: (launches(), sum(told().values())),
        told=told,
        host_waits=waits,
        delayed_us=control("delay_us", gives=times),
    )
    return module
