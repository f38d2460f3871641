"""A contest's question, a model with its arguments, and its rivals: what may run or train a model, whether it is here,
and how a user would have it do so.

A training step is zero_grad, forward, loss, backward and a step of SGD.
"""

from __future__ import annotations

import copy
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from ..engine.api import compile, train_step
from ..engine.compiled import Compiled
from ..errors import AutoparError, DeviceError
from ..runtime import trial

RATE = 1e-2
"""Learning rate of SGD."""
SETTLING = 5
"""Steps after which the programs of a training step are made, and its kernels being compiled."""


@dataclass(frozen=True)
class Case:
    """`model(*args)`, or with `train` a training step of it; `devices` are autopar's."""

    model: nn.Module
    args: tuple[Any, ...]
    devices: Sequence[str] = ("cpu",)
    train: bool = False
    patience_s: float | None = None
    """Seconds that a rival may take to become faster, where it answers before."""

    def left(self, began: float) -> float | None:
        """The rest of `patience_s` for a rival that was begun at `began`, of `time.perf_counter`."""
        return None if self.patience_s is None else max(0.0, began + self.patience_s - time.perf_counter())

    def nudged(self, seed: int) -> Case:
        """The same but for the last bits of its weights and arguments."""
        made = torch.Generator().manual_seed(seed)

        def nudge(item: Any) -> Any:
            if not isinstance(item, torch.Tensor) or not item.is_floating_point():
                return item
            noise = torch.randn(item.shape, generator=made, dtype=item.dtype).to(item.device)
            return item.detach() * (1 + 8 * torch.finfo(item.dtype).eps * noise)

        model = copy.deepcopy(self.model)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(nudge(parameter))
        return replace(self, model=model, args=tree_map(nudge, self.args))


@dataclass(frozen=True)
class Entrant:
    """What a rival made of a case: a `call` to be timed, and the tensors it `answers`, to be asked once and before."""

    call: Callable[[], Any]
    answers: Callable[[], list[torch.Tensor]]
    close: Callable[[], None] = lambda: None


def tensors(answer: Any) -> list[torch.Tensor]:
    """The tensors in a nested answer, in order."""
    return [leaf for leaf in tree_leaves(answer) if isinstance(leaf, torch.Tensor)]


def inference(case: Case, model: Callable[..., Any], close: Callable[[], None] = lambda: None) -> Entrant:
    """The entrant that calls `model`. It answers the case's arguments, and the same with their numbers moved along,
    so that one that computed its answer ahead is found out."""
    args = case.args

    def answers() -> list[torch.Tensor]:
        return [
            tensor.clone() for each in (args, tree_map(_rolled, args)) for tensor in tensors(model(*each))
        ]

    return Entrant(lambda: model(*args), answers, close)


def _rolled(item: Any) -> Any:
    """Other numbers of the same kind. Integers may be offsets, which must rise, and stay as they are."""
    floating = isinstance(item, torch.Tensor) and item.is_floating_point() and item.dim()
    return item.roll(1, -1) if floating else item


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


def run(case: Case, wrap: Callable[[nn.Module], Any] = lambda model: model) -> Entrant:
    """Calls of the model, or of what `wrap` makes of it; of a training case the plain loop about a copy."""
    model = copy.deepcopy(case.model) if case.train else case.model
    call = wrap(model)
    close = call.close if isinstance(call, Compiled) else lambda: None
    if not case.train:
        return inference(case, call, close)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(call(*case.args))
        loss.backward()
        optimizer.step()
        return loss

    return _training(model, step, close)


def loss_of(answer: Any) -> torch.Tensor:
    """The `.loss` of an answer, or the answer where it is one number, else the means of the squares of its floating
    tensors: thousands of steps on these leave weights finite."""
    loss = getattr(answer, "loss", None)
    if isinstance(loss, torch.Tensor):
        return loss
    if isinstance(answer, torch.Tensor) and answer.dim() == 0:
        return answer
    return torch.stack([leaf.square().mean() for leaf in tensors(answer) if leaf.is_floating_point()]).sum()


def _training(model: nn.Module, step: Callable[[], torch.Tensor], close: Callable[[], None]) -> Entrant:
    before = [parameter.detach().clone() for parameter in model.parameters()]

    def answers() -> list[torch.Tensor]:
        """The loss of the first step, and how far each weight has moved in it by the unit of the rate."""
        loss = step().detach().clone()
        moved = (after.detach() - was for after, was in zip(model.parameters(), before))
        return [loss, *(way / RATE for way in moved)]

    return Entrant(step, answers, close)


def autopar(case: Case) -> Entrant:
    """`autopar.compile`."""
    return run(case, lambda model: compile(model, list(case.devices)))


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


def whole(case: Case, kernels: Literal["eager", "auto"] = "eager") -> Entrant:
    """`autopar.train_step`, from the first weights on once its kernels are chosen."""
    model, began = copy.deepcopy(case.model), time.perf_counter()
    step = train_step(
        model,
        None,
        torch.optim.SGD(model.parameters(), lr=RATE),
        list(case.devices),
        step_fn=lambda model, *batch: loss_of(model(*batch)),
        kernels=kernels,
    )
    if kernels != "eager":
        first = copy.deepcopy(model.state_dict())
        for _ in range(SETTLING):
            step(*case.args)
        step.wait(case.left(began))
        step.close()
        step.wait()
        tried(lambda: step(*case.args))
        model.load_state_dict(first)
    return _training(model, lambda: step(*case.args), step.close)


def compiled(case: Case, **settings: Any) -> Entrant:
    """`torch.compile`."""
    return run(case, lambda model: torch.compile(model, **settings))


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

_BOTH = [Rival(EAGER, run), Rival("eager-1", run, one_thread=True), Rival("autopar", autopar)]
_COMPILED = Rival("compile", compiled)
_TUNED = Rival("max-autotune", partial(compiled, mode="max-autotune"), on_request=True)
RIVALS: list[Rival] = [
    *_BOTH,
    Rival("autopar-auto", autopar_auto),
    _COMPILED,
    Rival("compile-frozen", frozen),
    _TUNED,
    Rival("onnxruntime", onnxruntime, ("onnxruntime", "onnx", "onnxscript"), "onnxruntime"),
    Rival("openvino", openvino, ("openvino",), "openvino"),
]
"""Who may run a model."""
TRAINERS: list[Rival] = [
    *_BOTH,
    Rival("autopar-step", whole),
    Rival("autopar-step-auto", partial(whole, kernels="auto")),
    _COMPILED,
    _TUNED,
]
"""Who may train it."""


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
