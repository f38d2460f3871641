"""The rivals of an inference contest: what may run a model, whether it is here, and how a user would have it run."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from ..engine.api import compile
from ..errors import AutoparError, DeviceError
from ..runtime import trial
from .case import Case, Entrant, inference, tensors


@dataclass(frozen=True)
class Rival:
    """One way to run a model: `build(case)`, for which `packages` must be installed, which `extra` of autopar does.

    one_thread: torch has one thread for it, else all. on_request: it takes part only where it is named.
    """

    name: str
    build: Callable[[Case], Entrant]
    packages: tuple[str, ...] = ("torch",)
    extra: str = ""
    one_thread: bool = False
    on_request: bool = False

    def missing(self) -> str:
        """The sentence that says what is not installed and what to type; "" where all is here."""
        lacking = [name for name in self.packages if not find_spec(name)]
        return f"{lacking[0]} is not installed; pip install 'autopar[{self.extra}]'" if lacking else ""

    def versions(self) -> dict[str, str]:
        """The releases of its packages."""
        found = {}
        for name in self.packages:
            try:
                found[name] = version(name)
            except PackageNotFoundError:
                found[name] = ""
        return found


def eager(case: Case) -> Entrant:
    """The model as it is."""
    return inference(case, case.model)


def autopar(case: Case) -> Entrant:
    """`autopar.compile`."""
    fast = compile(case.model, list(case.devices))
    return inference(case, fast, fast.close)


SLOW_S = 4.0
"""Seconds after which calls count as slow."""


def tried(call: Callable[[], object]) -> None:
    """Call as often, and for as long, as kernels, and then the placed model, are on trial in the caller's own calls;
    slow ones less often: where each call of one is quicker than all of the other, few are enough."""
    began, calls, took = time.perf_counter(), 0, 0.0
    while took < 8 * trial.SPAN_S or calls < (6 * trial.CALLS if took < SLOW_S else 8 * trial.RUN):
        call()
        calls, took = calls + 1, time.perf_counter() - began


def autopar_auto(case: Case) -> Entrant:
    """`autopar.compile` with compiled kernels, once they are chosen."""
    began = time.perf_counter()
    fast = compile(case.model, list(case.devices), kernels="auto")
    fast.prepare(*case.args)
    fast.wait(case.left(began))
    # What is still being compiled would disturb the others.
    fast.close()
    fast.wait()
    with torch.no_grad():
        tried(lambda: fast(*case.args))
    return inference(case, fast, fast.close)


def compiled(case: Case, **settings: Any) -> Entrant:
    """`torch.compile`."""
    return inference(case, torch.compile(case.model, **settings))


def frozen(case: Case) -> Entrant:
    """`torch.compile` with its weights taken for constants."""
    from torch._inductor import config

    # The option alone comes too late, parameters are arguments by then; without it Dynamo would find the code of
    # another rival fit for this one.
    call = torch.compile(case.model, options={"freezing": True})
    with config.patch(freezing=True):
        call(*case.args)
    return inference(case, call)


def onnxruntime(case: Case) -> Entrant:
    """ONNX Runtime on what `torch.onnx.export` makes, on torch's number of threads."""
    import onnxruntime

    _require_cpu(case, "onnxruntime")
    program = torch.onnx.export(case.model, case.args, dynamo=True, verbose=False)
    assert program is not None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory() as folder:
        # A model above 2 GB is no single message of protobuf.
        path = Path(folder) / "model.onnx"
        program.save(str(path), external_data=True)
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [item.name for item in session.get_inputs()]

    def call(*args: Any) -> list[torch.Tensor]:
        given = dict(zip(names, (tensor.numpy() for tensor in tensors(args)), strict=True))
        return [torch.from_numpy(array) for array in session.run(None, given)]

    return inference(case, call)


def openvino(case: Case) -> Entrant:
    """OpenVINO on what `torch.export` makes: its sizes, and float32 where it would choose bfloat16 by itself."""
    import openvino

    _require_cpu(case, "openvino")
    model = openvino.convert_model(torch.export.export(case.model, case.args))
    model.reshape(
        {port: list(tensor.shape) for port, tensor in zip(model.inputs, tensors(case.args), strict=True)}
    )
    settings = {
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "PERFORMANCE_HINT": "LATENCY",
    }
    fast = openvino.Core().compile_model(model, "CPU", settings)

    def call(*args: Any) -> list[torch.Tensor]:
        given = [tensor.numpy() for tensor in tensors(args)]
        return [torch.from_numpy(array) for array in fast(given, share_inputs=True).values()]

    return inference(case, call)


def _require_cpu(case: Case, name: str) -> None:
    used = {str(tensor.device) for tensor in (*case.model.parameters(), *tensors(case.args))} - {"cpu"}
    if used:
        raise DeviceError(f"{name} runs on the CPU here, and the model is on {min(used)}")


EAGER = "eager"
"""The rival that all others are compared with."""

RIVALS: list[Rival] = [
    Rival(EAGER, eager),
    Rival("eager-1", eager, one_thread=True),
    Rival("autopar", autopar),
    Rival("autopar-auto", autopar_auto),
    Rival("compile", compiled),
    Rival("compile-frozen", frozen),
    Rival("max-autotune", partial(compiled, mode="max-autotune"), on_request=True),
    Rival("onnxruntime", onnxruntime, ("onnxruntime", "onnx", "onnxscript"), "onnxruntime"),
    Rival("openvino", openvino, ("openvino",), "openvino"),
]


def chosen(names: Sequence[str], rivals: Sequence[Rival]) -> list[Rival]:
    """The rivals of these names, or all that take part unasked; eager is always one of them, and the first.

    Raises AutoparError for a name that none has.
    """
    known = [rival.name for rival in rivals]
    for name in names:
        if name not in known:
            raise AutoparError(f"the rival {name!r} is not known; there are {', '.join(known)}")
    wanted = names or [rival.name for rival in rivals if not rival.on_request]
    return [rival for rival in rivals if rival.name in (EAGER, *wanted)]
