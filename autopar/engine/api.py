"""`compile` a model to run on the devices at hand, or `plan` it for any machine."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any, Literal

import torch
from torch import nn

from ..capture.ahead import ahead
from ..costs.detect import detect
from ..costs.pins import Home, unused
from ..errors import CaptureError, DeviceError, PlanError
from ..ir.device import Device
from ..ir.machine import Machine
from ..ir.plan import Plan
from ..pipeline.batch_split import Split
from ..pipeline.options import Kernels, Options, Pins
from ..pipeline.stages import at_home, plan_captured, timed
from ..planner import Policy
from ..training.dropin import plan_training
from ..training.losses import Loss
from ..training.signatures import step_ahead
from ..training.step import TrainStep
from .compiled import Compiled, CompiledModule, placed

log = logging.getLogger("autopar")


def compile(
    model: Callable[..., Any],
    devices: str | Sequence[str | Device] | Machine = "auto",
    *,
    example_inputs: Sequence[Any] | None = None,
    example_kwargs: Mapping[str, Any] | None = None,
    pins: Pins | None = None,
    memory: Mapping[str, int | str] | None = None,
    policy: Policy = "auto",
    split: Split = "auto",
    measure: bool | None = None,
    check: Literal["first", "always", "never"] = "first",
    outputs: Literal["as_input", "as_placed"] = "as_input",
    plan: Plan | str | PathLike[str] | None = None,
    batch_norm: Literal["full", "per_part"] = "full",
    recompute: Literal["auto"] | float | None = None,
    reassociate: bool = False,
    verify_replicas: bool = False,
    home: Home = "auto",
    kernels: Kernels = "eager",
    fullgraph: bool = False,
    dynamic: bool | None = None,
) -> Compiled:
    """A callable that gives what `model` gives, computed on all of `devices` at once.

    model: an `nn.Module` or a function of tensors; it keeps its parameters, and they keep their names and identity.
    devices: `"cpu"`, `"cpu*2"` (two lanes), `"cuda:0"`, any other torch accelerator, `"emulated:0"`, or a Machine;
    `"cuda"` or `"mps"` is the current one of the kind, as in torch; `"auto"` is the CPU and every accelerator here,
    under torchrun this rank's share of them.
    example_inputs, example_kwargs: capture and plan now. memory: device → cap in bytes or "6GiB".
    pins: module path or glob → device; the longest match wins. A device map of accelerate is one: "" is the whole
    model, a number an accelerator.
    policy: "auto", "single", "round_robin", "heft", or callable(costed graph) → {task or run: device}.
    split: "auto", a number of even parts, {device: share of the batch}, "features", or None.
    measure: time each operation on each device here, about a second in all, kept from then on: None, where there are
    several lanes to choose from and none is emulated (for one lane `explain` does so); True, also what the plan and the
    best single device take as a whole; False, nothing.
    check: compare with eager at the first call of each signature, always, or never.
    outputs: "as_input" delivers them where the first input was, "as_placed" leaves them where they were made.
    plan: a Plan (or file) made before, edited or not, to be used as it is.
    batch_norm: in training with a split batch, statistics of the "full" batch, or "per_part" as nn.DataParallel does.
    recompute: "auto" computes activations again where a cap needs it; or the share of their bytes that may stay saved.
    reassociate: turn chains of additions into trees, which rounds differently.
    verify_replicas: compare checksums of the copies of weights on other devices at each call.
    home: "auto", copies of weights stay on each device that reads them; or the device that all weights are on, or
    module path or glob → device: these live there alone, and each call brings them to who reads them elsewhere.
    kernels: "eager" computes with PyTorch's own, bit for bit as the model does. "auto" compiles in the background with
    every library that is here ("inductor", "inductor frozen", "onnxruntime", "openvino"), holds each against eager, and
    goes on with the fastest on this machine, which is remembered; a library's name takes that one. See `wait`.
    fullgraph, dynamic: as in `torch.compile`: refuse a model that is not one graph; leave sizes open from the start
    (True), never (False), or once they have varied (None).

    The result trains as the model does: call it with grad mode on, `loss.backward()`, any torch optimizer.
    Raises DeviceError, CaptureError, PlanError or MemoryCapError, each saying what to type next.
    """
    _require_callable(model)
    _require_plain(model)
    args, kwargs = _examples(example_inputs, example_kwargs)
    machine, options, given = prepared(
        model,
        devices,
        pins=pins,
        memory=memory,
        policy=policy,
        split=split,
        measure=measure,
        check=check,
        outputs=outputs,
        plan=plan,
        batch_norm=batch_norm,
        recompute=recompute,
        reassociate=reassociate,
        verify_replicas=verify_replicas,
        home=home,
        kernels=kernels,
    )
    compiled = placed(model, machine, options, given, fullgraph, dynamic)
    if example_inputs is not None or example_kwargs is not None:
        compiled.prepare(*args, **kwargs)
    return compiled


def prepared(
    model: Callable[..., Any] | None,
    devices: str | Sequence[str | Device] | Machine = "auto",
    *,
    memory: Mapping[str, int | str] | None = None,
    plan: Plan | str | PathLike[str] | None = None,
    **options: Any,
) -> tuple[Machine, Options, Plan | None]:
    """The machine, the options and the plan that keywords of `compile` mean for a model (None: not known yet), checked.
    Raises DeviceError or PlanError."""
    machine = _machine(devices, memory, here=True)
    checked = Options(**{**options, "pins": options.get("pins") or {}}).fitting(machine, model)
    checked.living(machine, model)
    given = Plan.load(plan) if isinstance(plan, (str, PathLike)) else plan
    if given is not None and not isinstance(given, Plan):
        raise PlanError(
            f"plan={given!r} is no plan; give fast.plan, what autopar.plan made, or a file of Plan.save"
        )
    return machine, checked, given


def plan(
    model: Callable[..., Any],
    devices: str | Sequence[str | Device] | Machine = "auto",
    *,
    example_inputs: Sequence[Any] = (),
    example_kwargs: Mapping[str, Any] | None = None,
    pins: Pins | None = None,
    memory: Mapping[str, int | str] | None = None,
    policy: Policy = "auto",
    split: Split = "auto",
    batch_norm: Literal["full", "per_part"] = "full",
    recompute: Literal["auto"] | float | None = None,
    measure: bool | None = None,
    home: Home = "auto",
    criterion: Callable[..., torch.Tensor] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> Plan:
    """The plan `compile` would use, for any machine, also one that is not here: `Machine.declare("cpu", "h100-sxm")`.

    Keywords as in `compile`; times in seconds, memory in bytes. The model is not run, but on a machine that is here
    its operations are timed, about a second in all, once (`measure=False`: they are not); tensors and parameters may be
    on the meta device. As in a call, grad mode decides: where it is on and an output requires grad,
    forward and backward are planned; within `torch.no_grad()` the forward, for which `batch_norm` and `recompute` mean
    nothing.

    optimizer: built on the model's parameters; the whole step of `train_step` is planned, its update included. Of its
    state only the form is asked, before the first step too.
    criterion: `criterion(outputs, *targets)`, a part of the plan; `example_inputs` are then `(inputs, *targets)`.
    home: as in `compile`; weights need not be there yet. On a machine that is not here "auto" also tries the weights of
    what is trained on the best single device, where a plan is else slower than that device alone.

    Raises CaptureError, with the line, where the model is not one graph (as `torch.compile(fullgraph=True)`);
    PlanError, also for an optimizer whose update cannot be planned; DeviceError or MemoryCapError.
    """
    _require_callable(model)
    args, kwargs = _examples(example_inputs, example_kwargs)
    machine = _machine(devices, memory)
    options = Options(
        pins or {}, policy, split, measure, batch_norm=batch_norm, recompute=recompute, home=home
    )
    plain = model.module if isinstance(model, CompiledModule) else model
    options = options.fitting(machine, plain)
    if options.measure is None:
        options = replace(options, measure=options.explains(machine))
    if criterion is not None or optimizer is not None:
        _require_trainable(plain, optimizer)
        captured, tensors = timed("capture", step_ahead, plain, criterion, optimizer, args, kwargs)
        return at_home(lambda asked: plan_captured(captured, machine, asked, tensors), options, machine)
    captured, tensors = timed("capture", ahead, plain, args, kwargs)
    if isinstance(plain, nn.Module):
        for remark in unused([captured.graph], options.pins):
            log.info("%s: %s", captured.graph.name, remark)
        options = options.within(captured.graph)
    if captured.tangents:
        return at_home(
            lambda asked: plan_training(captured, machine, asked, tensors, None)[1].plan, options, machine
        )
    return plan_captured(captured, machine, options, tensors)


def train_step(
    model: nn.Module,
    criterion: Callable[..., torch.Tensor] | None,
    optimizer: torch.optim.Optimizer,
    devices: str | Sequence[str | Device] | Machine = "auto",
    *,
    step_fn: Callable[..., Any] | None = None,
    clip_norm: float | None = None,
    scaler: torch.amp.GradScaler | None = None,
    autocast: torch.dtype | None = None,
    pins: Pins | None = None,
    memory: Mapping[str, int | str] | None = None,
    policy: Policy = "auto",
    split: Split = "auto",
    batch_norm: Literal["full", "per_part"] = "full",
    recompute: Literal["auto"] | float | None = None,
    check: Literal["first", "always", "never"] = "first",
    measure: bool | None = None,
    reassociate: bool = False,
    verify_replicas: bool = False,
    home: Home = "auto",
    kernels: Literal["eager", "auto", "inductor"] = "eager",
    process_group: Any = None,
) -> TrainStep:
    """A whole training step placed on all of `devices`: `loss = step(inputs, *targets)`.

    model: an `nn.Module`; it keeps its parameters, which `optimizer`, any of torch's, holds and steps.
    criterion: `criterion(outputs, *targets)`, the loss, or a tuple that begins with it, or a dict with it as "loss".
    step_fn: in place of the criterion, `step_fn(model, *batch)` for `loss = step(*batch)`.
    clip_norm: clip gradients to this global 2-norm, as `torch.nn.utils.clip_grad_norm_` does.
    scaler: a `torch.amp.GradScaler`; autocast: the dtype that forward is cast to, such as `torch.bfloat16`.
    batch_norm: statistics of the "full" batch, as on one device, or of each part, as `nn.DataParallel` has them.
    recompute: "auto" computes activations again in the backward when memory needs it; a share of the bytes, from 0
    to 1, that may stay saved.
    reassociate: let long chains of additions be added in another order.
    verify_replicas: compare checksums of all copies of the weights at each call.
    kernels: as in `compile`; libraries that fold weights into their kernels have no part in training.
    process_group: True, all ranks of the job, or a group of `torch.distributed`: each rank trains on rows of its own,
    placed on its own `devices`, and gradients are averaged over the ranks, each rank's mean counting the same whatever
    its rows. All ranks make the step; weights and buffers become the first rank's here, buffers after each step too.

    Gradients that wait in `.grad`, whoever left them there, are added to those of the next step, as `backward` does.
    Other keywords as in `compile`; see `TrainStep` for what a step does. Raises DeviceError, CaptureError, PlanError
    or MemoryCapError, each saying what to type next.
    """
    _require_step(model, criterion, step_fn, optimizer, autocast, scaler, clip_norm)
    machine = _machine(devices, memory, here=True)
    options = Options(
        pins or {},
        policy,
        split,
        measure,
        check,
        "as_input",
        batch_norm,
        recompute,
        reassociate,
        verify_replicas,
        home,
        kernels,
    ).fitting(machine, model)
    options.living(machine, model)
    return TrainStep(
        Loss(model, criterion, step_fn),
        optimizer,
        machine,
        options,
        clip_norm=clip_norm,
        scaler=scaler,
        autocast=autocast,
        process_group=process_group,
    )


def _require_step(
    model: Any, criterion: Any, step_fn: Any, optimizer: Any, autocast: Any, scaler: Any, clip_norm: Any
) -> None:
    """Raise CaptureError or PlanError for what makes no training step."""
    for given, what in (
        (model, "model"),
        (criterion, "criterion"),
        (step_fn, "step_fn"),
        (optimizer, "optimizer"),
    ):
        _require_made(given, what)
    _require_trainable(model, None)
    if isinstance(model, CompiledModule):
        raise CaptureError("the model is compiled already; give train_step the plain one, compiled.module")
    rule = criterion if step_fn is None else step_fn
    if (criterion is None) == (step_fn is None) or not callable(rule):
        raise CaptureError(
            "give a criterion(outputs, *targets), or None and step_fn=callable(model, *batch), not "
            f"criterion={criterion!r} and step_fn={step_fn!r}"
        )
    if autocast not in (None, torch.bfloat16, torch.float16):
        raise PlanError(f"autocast={autocast!r} is not known; give torch.bfloat16, torch.float16, or None")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise CaptureError(
            f"{type(optimizer).__name__} is no torch optimizer; the order is train_step(model, criterion, optimizer, "
            "devices)"
        )
    if _needs_closure(optimizer):
        raise CaptureError(
            f"{type(optimizer).__name__}.step() evaluates the loss again by a closure, which a training step has none "
            "of; use fast = autopar.compile(model, devices) and your own loop, optimizer.step(closure)"
        )
    if scaler is not None and not isinstance(scaler, torch.amp.GradScaler):
        raise PlanError(f"scaler={scaler!r} is no GradScaler; give torch.amp.GradScaler(…), or None")
    numeric = isinstance(clip_norm, (int, float)) and not isinstance(clip_norm, bool)
    if clip_norm is not None and not (numeric and clip_norm > 0):
        raise PlanError(f"clip_norm={clip_norm!r}: give a norm above 0, or None")


def _require_trainable(model: Any, optimizer: Any) -> None:
    """Raise CaptureError for what is no model, and what is no optimizer."""
    if not isinstance(model, nn.Module):
        raise CaptureError(f"{model!r} is no model; give an nn.Module, whose parameters can be trained")
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        raise CaptureError(
            f"optimizer={optimizer!r} is no torch optimizer; give one made of model.parameters()"
        )


def _needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    """True if `step` cannot do without a function that evaluates the loss, as that of LBFGS."""
    asked = inspect.signature(type(optimizer).step).parameters.get("closure")
    return asked is not None and asked.default is inspect.Parameter.empty


def _require_made(given: Any, what: str) -> None:
    if isinstance(given, type):
        raise CaptureError(
            f"the {what} is the class {given.__name__}; give one made of it: {given.__name__}(…)"
        )


def _examples(inputs: Any, keywords: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Example arguments as a call takes them."""
    if inputs is not None and not isinstance(inputs, (tuple, list)):
        raise CaptureError(
            f"example_inputs is a {type(inputs).__name__}; give the arguments of one call as a tuple, such as (x,)"
        )
    if not isinstance(keywords or {}, Mapping):
        raise CaptureError(
            f'example_kwargs is a {type(keywords).__name__}; give the keywords of one call, such as {{"mask": mask}}'
        )
    return tuple(inputs or ()), dict(keywords or {})


def _require_plain(model: Any) -> None:
    if isinstance(model, CompiledModule):
        raise CaptureError("the model is compiled already; give compile the plain one, compiled.module")


def _require_callable(model: Any) -> None:
    _require_made(model, "model")
    if not callable(model):
        raise CaptureError(f"{model!r} is no model; give an nn.Module or a function of tensors")


def _machine(
    devices: str | Sequence[str | Device] | Machine,
    memory: Mapping[str, int | str] | None,
    *,
    here: bool = False,
) -> Machine:
    if isinstance(devices, Machine):
        machine = devices.check()
    else:
        machine = detect([devices] if isinstance(devices, (str, Device, torch.device)) else devices)
    if here and machine.absent:
        raise DeviceError(
            "this machine is declared, not here, so nothing can run on it: use autopar.plan(model, machine, …) to plan "
            "for it, or Machine.emulate(…) to run on stand-ins"
        )
    if not isinstance(memory or {}, Mapping):
        raise DeviceError(f'memory={memory!r} names no device; write memory={{"cuda:0": {memory!r}}}')
    return machine.limited(memory)
