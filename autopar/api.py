"""The public functions `compile`, `plan` and `train_step`."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any, Literal, TypeAlias

import torch
from torch import nn

from .capture.ahead import ahead
from .costs.detect import detect
from .costs.pins import Home, unused
from .errors import CaptureError, DeviceError, PlanError
from .ir.device import Device
from .ir.machine import Machine
from .ir.plan import Plan
from .planner import Policy
from .session.batch_split import Split
from .session.compiled import Compiled, CompiledModule, placed
from .session.loaded import SavedModel
from .session.options import Kernels, Options, Pins, require_changing
from .session.own_loop import plan_training
from .session.stages import at_home, plan_captured, timed
from .session.would_fit import fitting
from .system.process import keep_freed_memory
from .training.losses import Loss
from .training.step import TrainStep
from .training.step_ahead import step_ahead

log = logging.getLogger("autopar")

Devices: TypeAlias = str | Sequence[str | Device] | Machine


def compile(
    model: Callable[..., Any],
    devices: Devices = "auto",
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
    home: Home = "auto",
    kernels: Kernels = "eager",
    fullgraph: bool = False,
    dynamic: bool | None = None,
) -> Compiled:
    """Compile a model so that each call runs on all of `devices` at once and returns what `model` returns.

    Args:
        model: An `nn.Module` or a function of tensors. A module keeps its parameters, with their names and identity.
        devices: "cpu", "cpu*2" (two lanes), "cuda:0", another torch accelerator, "emulated:0", or a `Machine`. "cuda"
            or "mps": the current one. "auto": the CPU and all accelerators; under torchrun, this rank's share.
        example_inputs, example_kwargs: Arguments of one call. If given, capture and plan now.
        pins: Module path or glob → device; the longest match wins. A device map of accelerate is accepted: "" is the
            whole model, a number an accelerator.
        memory: Device → cap in bytes, or text such as "6GiB".
        policy: "auto", "single", "round_robin", "heft", or callable(costed) → {task or cluster: device}.
        split: "auto", a number of equal parts, {device: share of the batch}, "features", or None.
        measure: Time each operation on each device once, about 1 s in all. None: if there are several lanes, none
            emulated (for one lane, `explain` does it). True: also the plan and the best single device as a whole.
        check: Compare with eager at the "first" call of each signature, "always" or "never".
        outputs: "as_input": on the device of the first input; "as_placed": on the device that computed them.
        plan: An existing `Plan` or its file, edited or not, used as it is.
        batch_norm: Statistics in training with a split batch: "full" batch, or "per_part" as in nn.DataParallel.
        recompute: "auto": recompute activations if a cap requires it. A number: share of their bytes to keep.
        home: "auto": each device keeps a copy of the weights it reads, or streams them if they fit on no accelerator. A
            device, or module path or glob → device: the weights stay only there, and each call transfers them.
        kernels: "eager": PyTorch's own, bit for bit. "auto": compile in the first call with each installed library
            ("inductor", "inductor frozen", "onnxruntime", "openvino", "cudagraphs"), compare each with eager, and use
            the fastest on this machine. Or a library, or a backend of `torch.compile`, by name. See `prepare`.
        fullgraph: As in `torch.compile`: refuse a model that is not one graph.
        dynamic: As in `torch.compile`: dynamic shapes always (True), never (False), or after the first change (None).

    The result trains like the model: grad mode on, `loss.backward()`, any torch optimizer. Raises DeviceError,
    CaptureError, PlanError or MemoryCapError; each says what to type next.
    """
    _require_callable(model)
    _require_plain(model, "compile")
    args, kwargs = _examples(example_inputs, example_kwargs)
    machine, options, existing = prepared(
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
        home=home,
        kernels=kernels,
    )
    compiled = placed(model, machine, options, existing, fullgraph, dynamic)
    if example_inputs is not None or example_kwargs is not None:
        compiled.prepare(*args, **kwargs)
    return compiled


def prepared(
    model: Callable[..., Any] | None,
    devices: Devices = "auto",
    *,
    memory: Mapping[str, int | str] | None = None,
    plan: Plan | str | PathLike[str] | None = None,
    **options: Any,
) -> tuple[Machine, Options, Plan | None]:
    """Check the keywords of `compile` and return the machine, the options and the given plan, if any. `model`
    is None while it is not known. Raises DeviceError or PlanError."""
    machine = _machine(devices, memory, here=True)
    checked = Options(**{**options, "pins": options.get("pins") or {}}).fitting(machine, model)
    checked.require_homes(machine, model)
    existing = Plan.load(plan) if isinstance(plan, (str, PathLike)) else plan
    if existing is not None and not isinstance(existing, Plan):
        raise PlanError(
            f"plan={existing!r} is not a plan; give fast.plan, a result of autopar.plan, or a file of Plan.save"
        )
    return machine, checked, existing


def plan(
    model: Callable[..., Any],
    devices: Devices = "auto",
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
    """Return the plan that `compile` would use, for any machine, even one that is only declared.

    Arguments that are not listed are those of `compile`. Times are in seconds, memory in bytes. The model does not run,
    but on a machine that is present its operations are timed once, about 1 s in all, unless `measure=False`.
    Tensors and parameters may be on the meta device. As in a call, grad mode decides: if it is on and an output
    requires grad, forward and backward are planned; within `torch.no_grad()` only the forward, for which `batch_norm`
    and `recompute` have no effect.

    Args:
        devices: Also a declared machine, such as `Machine.declare("cpu", "h100-sxm")`.
        example_inputs: Positional arguments of one call; with a `criterion`, `(inputs, *targets)`.
        home: As in `compile`; the weights need not be on that device yet. On a declared machine, "auto" also tries the
            trained weights on the best single device if the plan is otherwise slower than that device alone.
        criterion: `criterion(outputs, *targets)`, planned with the model.
        optimizer: Built on the model's parameters: plan the whole step of `train_step`, update included. Only the
            shapes and dtypes of its state are read; the state need not exist yet.

    Raises CaptureError, with the line, if the model is not one graph (as `torch.compile(fullgraph=True)`); PlanError,
    also for an optimizer whose update cannot be planned; DeviceError or MemoryCapError.
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
        _require_instances(criterion=criterion, optimizer=optimizer)
        if not (criterion is None or callable(criterion)):
            raise CaptureError(
                f"criterion={criterion!r} is not a function; give criterion(outputs, *targets)"
            )
        _require_trainable(plain, optimizer)
        captured, tensors = timed("capture", step_ahead, plain, criterion, optimizer, args, kwargs)

        def stepping(on: Machine) -> Plan:
            return at_home(lambda each: plan_captured(captured, on, each, tensors), options, on)

        return fitting(machine, stepping)
    captured, tensors = timed("capture", ahead, plain, args, kwargs)
    if isinstance(plain, nn.Module):
        for remark in unused([captured.graph], options.pins):
            log.info("%s: %s", captured.graph.name, remark)
        options = options.within(captured.graph)

    def planned(on: Machine) -> Plan:
        if not captured.tangents:
            return plan_captured(captured, on, options, tensors)
        return at_home(lambda each: plan_training(captured, on, each, tensors, None)[1].plan, options, on)

    return fitting(machine, planned)


def train_step(
    model: nn.Module,
    criterion: Callable[..., torch.Tensor] | None,
    optimizer: torch.optim.Optimizer,
    devices: Devices = "auto",
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
    home: Home = "auto",
    kernels: Kernels = "eager",
    process_group: Any = None,
) -> TrainStep:
    """Return a training step that runs on all of `devices`: `loss = step(inputs, *targets)`.

    Gradients already in `.grad` are added to those of the next step, as `backward` does. `TrainStep` describes a
    step. Arguments that are not listed are those of `compile`.

    Args:
        model: An `nn.Module`. It keeps its parameters, which `optimizer` holds and updates.
        criterion: `criterion(outputs, *targets)` returns the loss, a tuple that begins with it, or a dict with "loss".
        optimizer: Any optimizer of torch.
        step_fn: Instead of the criterion: `step_fn(model, *batch)`, for `loss = step(*batch)`.
        clip_norm: Clip gradients to this global 2-norm, as `torch.nn.utils.clip_grad_norm_` does.
        scaler: A `torch.amp.GradScaler`.
        autocast: The dtype to which the forward is cast, such as `torch.bfloat16`.
        kernels: As in `compile`, but of the libraries only those that do not fold the weights into their kernels.
        process_group: True (all ranks of the job) or a group of `torch.distributed`. Each rank trains on its own rows,
            on its own `devices`, and gradients are averaged over the ranks; each rank's mean has the same weight,
            whatever its number of rows. All ranks construct the step. Weights and buffers are broadcast from the first
            rank on construction, buffers also after each step.

    Raises DeviceError, CaptureError, PlanError or MemoryCapError; each says what to type next.
    """
    _require_step(model, criterion, step_fn, optimizer, autocast, scaler, clip_norm)
    require_changing(kernels)
    machine, options, _ = prepared(
        model,
        devices,
        memory=memory,
        pins=pins,
        policy=policy,
        split=split,
        batch_norm=batch_norm,
        recompute=recompute,
        check=check,
        measure=measure,
        home=home,
        kernels=kernels,
    )
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
    """Raise CaptureError or PlanError if the arguments cannot make a training step."""
    _require_instances(model=model, criterion=criterion, step_fn=step_fn, optimizer=optimizer)
    _require_trainable(model, None)
    _require_plain(model, "train_step")
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
            f"{type(optimizer).__name__} is not a torch optimizer; the order is "
            "train_step(model, criterion, optimizer, devices)"
        )
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise CaptureError(
            f"{type(optimizer).__name__}.step() evaluates the loss again by a closure, which a training step has none "
            "of; use fast = autopar.compile(model, devices) and your own loop, optimizer.step(closure)"
        )
    if scaler is not None and not isinstance(scaler, torch.amp.GradScaler):
        raise PlanError(f"scaler={scaler!r} is not a GradScaler; give torch.amp.GradScaler(…), or None")
    numeric = isinstance(clip_norm, (int, float)) and not isinstance(clip_norm, bool)
    if clip_norm is not None and not (numeric and clip_norm > 0):
        raise PlanError(f"clip_norm={clip_norm!r}: give a norm above 0, or None")


def _require_trainable(model: Any, optimizer: Any) -> None:
    """Raise CaptureError if `model` is not a module, or `optimizer` is given and is not a torch optimizer."""
    if not isinstance(model, nn.Module):
        raise CaptureError(f"{model!r} is not a model; give an nn.Module, whose parameters can be trained")
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        raise CaptureError(
            f"optimizer={optimizer!r} is not a torch optimizer; give one of model.parameters()"
        )


def _require_instances(**arguments: Any) -> None:
    for what, kind in arguments.items():
        if isinstance(kind, type):
            raise CaptureError(
                f"the {what} is the class {kind.__name__}; give an instance: {kind.__name__}(…)"
            )


def _examples(inputs: Any, keywords: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return example arguments as `(args, kwargs)`. Raises CaptureError for any other type."""
    if inputs is not None and not isinstance(inputs, (tuple, list)):
        raise CaptureError(
            f"example_inputs is a {type(inputs).__name__}; give the arguments of one call as a tuple, such as (x,)"
        )
    if not isinstance(keywords or {}, Mapping):
        raise CaptureError(
            f'example_kwargs is a {type(keywords).__name__}; give the keywords of one call, such as {{"mask": mask}}'
        )
    return tuple(inputs or ()), dict(keywords or {})


def _require_plain(model: Any, function: str) -> None:
    if isinstance(model, CompiledModule):
        raise CaptureError(f"the model is compiled already; give {function} the plain one, compiled.module")
    if isinstance(model, SavedModel):
        raise CaptureError(f"the model was loaded, compiled, from a folder; give {function} the Python model")


def _require_callable(model: Any) -> None:
    _require_instances(model=model)
    if not callable(model):
        raise CaptureError(f"{model!r} is not a model; give an nn.Module or a function of tensors")


def _machine(devices: Devices, memory: Mapping[str, int | str] | None, *, here: bool = False) -> Machine:
    if here:
        # Before anything is measured, since it changes how long allocations take.
        keep_freed_memory()
    if isinstance(devices, Machine):
        machine = devices.check()
    else:
        machine = detect([devices] if isinstance(devices, (str, Device, torch.device)) else devices)
    if here and machine.absent:
        raise DeviceError(
            "this machine is declared, not here, so nothing can run on it: use autopar.plan(model, machine, …) to plan "
            "for it, or Machine.emulate(…) to run on stand-ins"
        )
    return machine.limited(memory)
