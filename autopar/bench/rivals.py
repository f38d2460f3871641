"""The case of a contest, a model with its arguments, and its rivals: stacks that run or train a model as a user would.

A training step is zero_grad, forward, loss, backward and a step of SGD.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from ..api import compile, train_step
from ..errors import AutoparError, DeviceError
from ..session.compiled import Compiled

RATE = 1e-2
"""Learning rate of SGD."""
SETTLING = 5
"""Steps after which the programs of a training step exist, and their kernels."""


@dataclass(frozen=True)
class Case:
    """`model(*args, **kwargs)`, or with `train` a training step of it; `devices` are autopar's."""

    model: nn.Module
    args: tuple[Any, ...]
    devices: Sequence[str] = ("cpu",)
    train: bool = False
    kwargs: dict[str, Any] = field(default_factory=dict)

    def nudged(self, seed: int) -> Case:
        """Return the case with other last bits in its weights and arguments."""
        generator = torch.Generator().manual_seed(seed)

        def nudge(item: Any) -> Any:
            if not isinstance(item, torch.Tensor) or not item.is_floating_point():
                return item
            noise = torch.randn(item.shape, generator=generator, dtype=item.dtype).to(item.device)
            return item.detach() * (1 + 8 * torch.finfo(item.dtype).eps * noise)

        model = copy.deepcopy(self.model)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(nudge(parameter))
        args, kwargs = tree_map(nudge, (self.args, self.kwargs))
        return replace(self, model=model, args=args, kwargs=kwargs)


@dataclass(frozen=True)
class Entrant:
    """A built rival: a `call` to time, and its `answers`, which must be requested once, before the timing.
    `serving()`: what computes its calls, if it chooses between several."""

    call: Callable[[], Any]
    answers: Callable[[], list[torch.Tensor]]
    close: Callable[[], None] = lambda: None
    serving: Callable[[], str] = str


def tensors(answer: Any) -> list[torch.Tensor]:
    """Return the tensors in a nested answer, in order."""
    return [leaf for leaf in tree_leaves(answer) if isinstance(leaf, torch.Tensor)]


def inference(case: Case, model: Callable[..., Any], close: Callable[[], None] = lambda: None) -> Entrant:
    """Return the entrant that calls `model`. It also answers rotated arguments, to detect stored answers."""
    args, kwargs = case.args, case.kwargs

    def answers() -> list[torch.Tensor]:
        both = (args, kwargs), tree_map(_rolled, (args, kwargs))
        return [tensor.clone() for each, named in both for tensor in tensors(model(*each, **named))]

    return Entrant(lambda: model(*args, **kwargs), answers, close)


def _rolled(item: Any) -> Any:
    """Return other numbers of the same kind. Integers, which may be increasing offsets, stay."""
    floating = isinstance(item, torch.Tensor) and item.is_floating_point() and item.dim()
    return item.roll(1, -1) if floating else item


@dataclass(frozen=True)
class Rival:
    """A way to run a model: `build(case)`. It needs `packages`, which autopar's `extra` installs.

    one_thread: torch has one thread for it, else all.
    on_request: it only takes part if named.
    """

    name: str
    build: Callable[[Case], Entrant]
    packages: tuple[str, ...] = ("torch",)
    extra: str = ""
    one_thread: bool = False
    on_request: bool = False

    def missing(self) -> str:
        """Return the sentence with the missing packages and what to type; "" if all are installed."""
        lacking = [name for name in self.packages if not find_spec(name)]
        return f"{lacking[0]} is not installed; pip install 'autopar[{self.extra}]'" if lacking else ""

    def versions(self) -> dict[str, str]:
        """Return the versions of its packages."""
        versions = {}
        for name in self.packages:
            try:
                versions[name] = version(name)
            except PackageNotFoundError:
                versions[name] = ""
        return versions


def run(case: Case, wrap: Callable[[nn.Module], Any] = lambda model: model) -> Entrant:
    """Return calls of the model, or of `wrap` of it; for a training case, the plain loop on a copy."""
    model = copy.deepcopy(case.model) if case.train else case.model
    call = wrap(model)
    close = call.close if isinstance(call, Compiled) else lambda: None
    if not case.train:
        return inference(case, call, close)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(call(*case.args, **case.kwargs))
        loss.backward()
        optimizer.step()
        return loss

    return _training(model, step, close)


def loss_of(answer: Any) -> torch.Tensor:
    """Return the `.loss` of an answer, the answer if it is one number, else the mean squares of its floating-point
    tensors, with which weights stay finite over thousands of steps."""
    loss = getattr(answer, "loss", None)
    if isinstance(loss, torch.Tensor):
        return loss
    if isinstance(answer, torch.Tensor) and answer.dim() == 0:
        return answer
    return torch.stack([leaf.square().mean() for leaf in tensors(answer) if leaf.is_floating_point()]).sum()


def _training(model: nn.Module, step: Callable[[], torch.Tensor], close: Callable[[], None]) -> Entrant:
    before = [parameter.detach().clone() for parameter in model.parameters()]

    def answers() -> list[torch.Tensor]:
        """Return the loss of the first step, and the change of each weight in units of the learning rate."""
        loss = step().detach().clone()
        changes = (after.detach() - was for after, was in zip(model.parameters(), before))
        return [loss, *(way / RATE for way in changes)]

    return Entrant(step, answers, close)


def autopar(case: Case) -> Entrant:
    """Build `autopar.compile`."""
    return run(case, lambda model: compile(model, list(case.devices)))


def autopar_auto(case: Case) -> Entrant:
    """Build `autopar.compile` with compiled kernels, which the first call chooses."""
    fast = compile(case.model, list(case.devices), kernels="auto")
    return replace(inference(case, fast, fast.close), serving=lambda: fast.serving)


def whole(case: Case, kernels: Literal["eager", "auto"] = "eager") -> Entrant:
    """Build `autopar.train_step`. Once its kernels are chosen, it starts again from the initial weights."""
    model = copy.deepcopy(case.model)
    devices, optimizer = list(case.devices), torch.optim.SGD(model.parameters(), lr=RATE)
    batch, named = (*case.args, *case.kwargs.values()), [*case.kwargs]

    def loss(net: nn.Module, *batch_tensors: Any) -> torch.Tensor:
        cut = len(batch_tensors) - len(named)
        return loss_of(net(*batch_tensors[:cut], **dict(zip(named, batch_tensors[cut:]))))

    step = train_step(model, None, optimizer, devices, step_fn=loss, kernels=kernels)
    if kernels != "eager":
        first = copy.deepcopy(model.state_dict())
        for _ in range(SETTLING):
            step(*batch)
        model.load_state_dict(first)
    entrant = _training(model, lambda: step(*batch), step.close)
    return entrant if kernels == "eager" else replace(entrant, serving=lambda: step.serving)


def compiled(case: Case, **settings: Any) -> Entrant:
    """Build `torch.compile`."""
    return run(case, lambda model: torch.compile(model, **settings))


def frozen(case: Case) -> Entrant:
    """Build `torch.compile` with weights as constants."""
    from torch._inductor import config

    # The option alone comes too late: parameters are arguments by then. Without it, Dynamo would reuse the
    # code of another rival.
    call = torch.compile(case.model, options={"freezing": True})
    with config.patch(freezing=True):
        call(*case.args, **case.kwargs)
    return inference(case, call)


def onnxruntime(case: Case) -> Entrant:
    """Build ONNX Runtime on the result of `torch.onnx.export`, with torch's number of threads."""
    import onnxruntime

    _require_cpu(case, "onnxruntime")
    program = torch.onnx.export(case.model, case.args, kwargs=case.kwargs, dynamo=True, verbose=False)
    assert program is not None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory() as folder:
        # A single protobuf message cannot hold a model above 2 GB.
        path = Path(folder) / "model.onnx"
        program.save(str(path), external_data=True)
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [item.name for item in session.get_inputs()]

    def call(*args: Any, **named: Any) -> list[torch.Tensor]:
        arrays = dict(zip(names, (tensor.numpy() for tensor in tensors((args, named))), strict=True))
        return [torch.from_numpy(array) for array in session.run(None, arrays)]

    return inference(case, call)


def openvino(case: Case) -> Entrant:
    """Build OpenVINO on the result of `torch.export`, with its sizes, in float32 instead of any bfloat16."""
    import openvino

    _require_cpu(case, "openvino")
    model = openvino.convert_model(torch.export.export(case.model, case.args, case.kwargs))
    sizes = [list(tensor.shape) for tensor in tensors((case.args, case.kwargs))]
    model.reshape(dict(zip(model.inputs, sizes, strict=True)))
    settings = {
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "PERFORMANCE_HINT": "LATENCY",
    }
    fast = openvino.Core().compile_model(model, "CPU", settings)

    def call(*args: Any, **named: Any) -> list[torch.Tensor]:
        arrays = [tensor.numpy() for tensor in tensors((args, named))]
        return [torch.from_numpy(array) for array in fast(arrays, share_inputs=True).values()]

    return inference(case, call)


def _require_cpu(case: Case, name: str) -> None:
    used = {
        str(tensor.device) for tensor in (*case.model.parameters(), *tensors((case.args, case.kwargs)))
    } - {"cpu"}
    if used:
        raise DeviceError(f"{name} runs on the CPU here, and the model is on {min(used)}")


EAGER = "eager"
"""The rival with which all others are compared."""

_BOTH = [Rival(EAGER, run), Rival("eager-1", run, one_thread=True), Rival("autopar", autopar)]
_COMPILED = Rival("compile", compiled)
_RECORDED = Rival("reduce-overhead", partial(compiled, mode="reduce-overhead"), on_request=True)
_TUNED = Rival("max-autotune", partial(compiled, mode="max-autotune"), on_request=True)
RIVALS: list[Rival] = [
    *_BOTH,
    Rival("autopar-auto", autopar_auto),
    _COMPILED,
    Rival("compile-frozen", frozen),
    _RECORDED,
    _TUNED,
    Rival("onnxruntime", onnxruntime, ("onnxruntime", "onnx", "onnxscript"), "onnxruntime"),
    Rival("openvino", openvino, ("openvino",), "openvino"),
]
"""Rivals that run a model."""
TRAINERS: list[Rival] = [
    *_BOTH,
    Rival("autopar-step", whole),
    Rival("autopar-step-auto", partial(whole, kernels="auto")),
    _COMPILED,
    _RECORDED,
    _TUNED,
]
"""Rivals that train a model."""


def chosen(names: Sequence[str], rivals: Sequence[Rival]) -> list[Rival]:
    """Return the rivals of these names, or all that are not on request; eager is always the first.

    Raises AutoparError for an unknown name.
    """
    known = [rival.name for rival in rivals]
    for name in names:
        if name not in known:
            raise AutoparError(f"the rival {name!r} is not known; there are {', '.join(known)}")
    taking_part = names or [rival.name for rival in rivals if not rival.on_request]
    return [rival for rival in rivals if rival.name in (EAGER, *taking_part)]
