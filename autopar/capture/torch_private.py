"""All private parts of torch that calls use too, behind one version check. Loading them loads neither Dynamo nor sympy
(`dynamo_private` does), which takes a second."""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import torch
from torch import fx
from torch.autograd import forward_ad, grad_mode

from .. import system
from ..errors import CaptureError

try:
    from torch._decomp import decompositions
    from torch._higher_order_ops.wrap import tag_activation_checkpoint
    from torch._ops import OpOverload, OpOverloadPacket
    from torch._subclasses import fake_impls as _fakes
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed.distributed_c10d import _world as process_groups
    from torch.distributions import Distribution
    from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode
    from torch.nn.attention import _cur_sdpa_kernel_backends, _sdpa_kernel
    from torch.optim import optimizer as _optimizer
    from torch.utils import _pytree as pytree
    from torch.utils.flop_counter import conv_flop_count, flop_registry, sdpa_flop_count
except ImportError as error:
    raise CaptureError(system.lacking(torch.__version__, error)) from error

if not system.supported(torch.__version__):
    logging.getLogger("autopar").warning(
        "torch %s was never tested with autopar, which supports %s: %s",
        torch.__version__, system.SUPPORTED, system.TO_TYPE,
    )  # fmt: skip

# Torch's own names, for other modules to import from here.
__all__ = [
    "FakeTensorMode", "OpOverload", "OpOverloadPacket", "conv_flop_count", "decompositions", "flop_registry",
    "process_groups", "pytree", "sdpa_flop_count", "tag_activation_checkpoint",
]  # fmt: skip


CONTEXT_FN = "_checkpoint_context_fn"
"""The key under which Dynamo keeps the `context_fn` of a checkpoint in the `meta` of its region."""


def conditions_of(size: Any) -> list[str]:
    """Return what a capture takes for granted of the symbols of its sizes, as expressions; `size` is one of them."""
    env = size.node.shape_env
    limits = [
        f"{env.replace(name)} {relation} {bound}"
        for name, own in env.var_to_range.items()
        for relation, bound in ((">=", own.lower), ("<=", own.upper))
        if bound.is_Integer
    ]
    # Symbols that must be equal are replaced by one of them.
    conditions = (str(env.replace(guard.expr)) for guard in env.guards)
    return [each for each in dict.fromkeys([*limits, *conditions]) if each != "True"]


def holds_for(size: Any, lengths: Mapping[Any, int]) -> bool:
    """Return True if what a capture takes for granted of its sizes, of which `size` is one, can be so for the lengths
    of some symbols."""
    env = size.node.shape_env
    ranges = ((lengths.get(name), own) for name, own in env.var_to_range.items())
    if any(length is not None and not own.lower <= length <= own.upper for length, own in ranges):
        return False
    return all(env.replace(guard.expr).xreplace(dict(lengths)) != False for guard in env.guards)  # noqa: E712


INFERENCE_MODE = (grad_mode._enter_inference_mode, grad_mode._exit_inference_mode)
"""The functions by which a graph of Dynamo's enters inference mode and leaves it."""
_KERNELS: list[list[Any]] = []
"""For each operator that `overridden` overrides, its Python kernels before and within, and its fake kernel."""
_LOGGERS = ("torch._dynamo", "torch._subclasses.fake_tensor", "torch.fx", "torch._functorch")


class _Undefined(ArithmeticError, ValueError):
    """Python's `math` cannot compute a number; as its error is a ValueError."""


def computed(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return the number that a function of Python's returns. Raises ArithmeticError where that raises an error."""
    try:
        return function(*args, **kwargs)
    except ValueError as error:
        raise _Undefined(str(error)) from error


def timeout_of(group: Any, device: torch.device) -> Any:
    """Return the timeout of a process group's backend for a device, a timedelta; None if the backend does not tell."""
    return getattr(getattr(group._get_backend(device), "options", None), "_timeout", None)


class _Quiet:
    """A block of any threads within which torch does not log failed captures (the call continues) unless asked to, and
    does not time guards, which empties caches (30 ms a graph)."""

    def __init__(self) -> None:
        self._lock, self._entered, self._levels = threading.Lock(), 0, dict[logging.Logger, int]()
        self._timed: Any = None

    def __enter__(self) -> None:
        from torch._dynamo import guards

        with self._lock:
            self._entered += 1
            if self._entered == 1:
                names = () if os.environ.get("TORCH_LOGS") else _LOGGERS
                self._levels = {logger: logger.level for logger in map(logging.getLogger, names)}
                for logger in self._levels:
                    logger.setLevel(logging.CRITICAL + 1)
                self._timed, guards.profile_guard_manager = guards.profile_guard_manager, lambda *_: 0.0

    def __exit__(self, *_: object) -> None:
        from torch._dynamo import guards

        with self._lock:
            self._entered -= 1
            if not self._entered:
                guards.profile_guard_manager = self._timed
                for logger, level in self._levels.items():
                    logger.setLevel(level)


quiet = _Quiet()


def decisions(module: fx.GraphModule) -> list[Any]:
    """Return the conditions on sizes and numbers that Dynamo found true when it captured a graph, and guards."""
    modes = (getattr(node.meta.get("example_value"), "fake_mode", None) for node in module.graph.nodes)
    mode = next(filter(None, modes), None)
    return [] if mode is None or mode.shape_env is None else [guard.expr for guard in mode.shape_env.guards]


def memory(item: Any) -> int | None:
    """Return a key that is equal for tensors in the same memory; None for other values."""
    if not isinstance(item, torch.Tensor):
        return None
    return int(item.untyped_storage()._cdata) if item.layout is torch.strided else id(item)


_interpreter, _tracing = torch._C._functorch.peek_interpreter_stack, torch._C._is_tracing
_modes, _function_modes = torch._C._len_torch_dispatch_stack, torch._C._len_torch_function_stack


def transformed() -> str:
    """Return the name of a mode or transform, active in this thread, that no graph supports; "" if none is.

    After a call under a user's dispatch mode, Dynamo would never capture the function again.
    """
    if _interpreter() is not None:
        return "a torch.func transform (grad, vmap, jvp, ...)"
    if forward_ad._current_level >= 0:
        return "torch.autograd.forward_ad.dual_level"
    if _tracing():
        return "torch.jit.trace"
    for index in range(_modes()):
        mode = torch._C._get_dispatch_stack_at(index)
        if isinstance(mode, (FakeTensorMode, ProxyTorchDispatchMode)) or not mode.is_infra_mode():
            return f"{type(mode).__name__}, a TorchDispatchMode,"
    for mode in map(torch._C._get_function_stack_at, range(_function_modes())):
        if not isinstance(mode, torch.utils._device.DeviceContext):
            return f"{type(mode).__name__}, a TorchFunctionMode,"
    return ""


_DIFFERENTIATES = frozenset({"grad", "_grad_increment_nesting", "_jvp_increment_nesting"})
"""Names of `torch.autograd.grad`, and of the functions by which a graph enters a derivative of torch.func."""


def differentiates(graph: fx.Graph) -> bool:
    """Return True if Dynamo's graph itself takes a derivative."""
    return any(getattr(node.target, "__name__", "") in _DIFFERENTIATES for node in graph.nodes)


set_grad_mode = torch._C._set_grad_enabled
"""Sets the grad mode. It is in C, so that no interrupt falls between its call and its effect."""


def enables_grad(graph: fx.Graph) -> bool:
    """Return True if a part of Dynamo's graph is within `torch.enable_grad()`."""
    return any(node.target is set_grad_mode and node.args == (True,) for node in graph.nodes)


transform_depth = torch._C._functorch.get_dynamic_layer_stack_depth
"""Returns the number of transforms of torch.func that are active in this thread."""


def leave_transforms(depth: int) -> None:
    """Leave all but the outermost `depth` transforms of torch.func, and the level of forward-mode AD."""
    with suppress(RuntimeError):
        # In torch 2.11 this raises an error once it has left the outermost one.
        torch._C._functorch.pop_dynamic_layer_stack_and_undo_to_depth(depth)
    if forward_ad._current_level < 0:
        # There is but one level, which only torch's C++ knows to be entered: this raises an error if it is not.
        with suppress(RuntimeError):
            torch._C._exit_dual_level(level=0)


def _set_refused(reason: str | None) -> None:
    if reason is None:
        torch._C._autograd._saved_tensors_hooks_enable()
    else:
        torch._C._autograd._saved_tensors_hooks_disable(reason)


InferenceGuard = torch._C._InferenceMode
"""Class of the object that `INFERENCE_MODE[0]` returns."""
PRIVATE_STATE: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (torch._C._is_fwd_grad_enabled, torch._C._set_fwd_grad_enabled),
    (torch._C._autograd._saved_tensors_hooks_get_disabled_error_message, _set_refused),
    (
        functools.partial(_cur_sdpa_kernel_backends, with_priority=True),
        functools.partial(_sdpa_kernel, set_priority=True),
    ),
    (lambda: Distribution._validate_args, Distribution.set_default_validate_args),
)
"""Functions that read and write state which graphs of Dynamo's, or Dynamo itself, change: forward-mode AD, the reason
why tensors cannot be saved by hooks, the kernels of attention, and the checks of distributions."""


def autograd_keys(kinds: set[str]) -> list[Any]:
    """Return the dispatch keys of autograd for these device types."""
    private = torch._C._get_privateuse1_backend_name()
    names = ["PrivateUse1" if kind == private else kind.upper() for kind in sorted(kinds)]
    names = [{"META": "Meta"}.get(name, name) for name in names]
    keys = (getattr(torch._C.DispatchKey, f"Autograd{name}", None) for name in names)
    return [key for key in keys if key is not None]


@contextmanager
def overridden(
    override: Callable[[dict[Any, Any]], AbstractContextManager[None]], operators: dict[Any, Any]
) -> Iterator[None]:
    """Within the block, do what torch's `override(operators)` does, for the same operators each time.

    torch makes some thousand kernels anew, which takes as long as tracing a small graph. Here they are made once, and
    again only after other code has changed the kernels of an operator.
    """
    before = [dict(each.py_kernels) for each in operators]
    if _KERNELS[:1] != [before]:
        with override(operators):
            within = [dict(each.py_kernels) for each in operators]
            _KERNELS[:] = before, within, [*map(_fakes.op_implementations_dict.get, operators)]
            yield
        return
    try:
        for each, kernels, fake in zip(operators, *_KERNELS[1:]):
            _set_kernels(each, kernels)
            if fake is not None and each not in _fakes.op_implementations_dict:
                _fakes.register_op_impl(each)(fake)
        yield
    finally:
        for each, kernels in zip(operators, before):
            _set_kernels(each, kernels)
            _fakes._deregister_op_impl(each)


def _set_kernels(operator: Any, kernels: dict[Any, Any]) -> None:
    operator.py_kernels.clear()
    operator.py_kernels.update(kernels)
    operator._dispatch_cache.clear()


def by_parts(composite: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the result of a composite operator, computed by its parts."""
    return composite._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)


anywhere = torch._C._is_any_autocast_enabled
"""Returns True if autocast is on in this thread for any device type."""


def packs_saved() -> bool:
    """Return True if saved-tensor hooks are active in this thread."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def keeps_graph() -> bool:
    """Return True if the backward that runs in this thread may run again (`retain_graph`)."""
    return bool(torch._C._autograd._get_current_graph_task_keep_graph())


def raising(message: str, tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Return the same tensors, which raise RuntimeError when differentiated."""
    if not tensors:
        return ()
    found = torch._C._functions.DelayedError(message.encode(), len(tensors))(*tensors)
    # For one tensor, torch returns a tensor instead of a tuple.
    return (found,) if isinstance(found, torch.Tensor) else tuple(found)


def step_hooks(optimizer: torch.optim.Optimizer) -> list[Any]:
    """Return the pre- and post-step hooks of an optimizer, global ones included."""
    before, after = _optimizer._global_optimizer_pre_hooks, _optimizer._global_optimizer_post_hooks
    own = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
    return [hook for hooks in (before, after, *own) for hook in hooks.values()]


def forget_unscaled(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> None:
    """Clear a scaler's record that it has unscaled an optimizer's gradients, after these were restored."""
    scaler._per_optimizer_states.pop(id(optimizer), None)


def norm_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the 2-norm of a tensor, summed in the order of `torch.nn.utils.clip_grad_norm_`."""
    return torch._foreach_norm([tensor], 2.0)[0]


@contextmanager
def compiling() -> Iterator[None]:
    """Within the block, set the flag that Dynamo sets during capture from torch 2.13 on. Without it, a call
    in another thread mistakes this trace for its own and refuses. Dynamo captures in one thread at a time."""
    before = torch.compiler._is_compiling_flag
    try:
        torch.compiler._is_compiling_flag = True
        yield
    finally:
        torch.compiler._is_compiling_flag = before


def captures_lock() -> threading.RLock:
    """Return the lock under which Dynamo captures, in one thread at a time. Take it before that of
    `thread_state.capture_lock`."""
    from torch._dynamo import convert_frame

    return convert_frame.compile_lock


def backend_named(name: str) -> Callable[..., Any] | None:
    """Return a backend of `torch.compile`; None if there is none of this name."""
    import torch._dynamo

    known = torch._dynamo.list_backends(exclude_tags=())
    return torch._dynamo.lookup_backend(name) if name in known else None
