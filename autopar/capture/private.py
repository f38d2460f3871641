"""Every private corner of torch that capture leans on, behind one version check."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .. import versions
from ..errors import CaptureError

try:
    from torch._C._dynamo import eval_frame as _eval_frame
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
    from torch._subclasses.functional_tensor import FunctionalTensor
    from torch.autograd.function import FunctionMeta
    from torch.export import _trace
    from torch.fx.node import has_side_effect
    from torch.optim import optimizer as _optimizer
    from torch.utils import _pytree as pytree
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.flop_counter import conv_flop_count, flop_registry, sdpa_flop_count
except ImportError as error:
    raise CaptureError(
        f"torch {torch.__version__} lacks {error.name or error}, which capture needs; autopar supports "
        f"{versions.SUPPORTED}: {versions.TO_TYPE}"
    ) from error

if not versions.supported(torch.__version__):
    logging.getLogger("autopar").warning(
        "torch %s was never tested with autopar, which supports %s: %s",
        torch.__version__, versions.SUPPORTED, versions.TO_TYPE,
    )  # fmt: skip

__all__ = [
    "FakeTensor",
    "FakeTensorMode",
    "FunctionMeta",
    "FunctionalTensor",
    "TorchDispatchMode",
    "conv_flop_count",
    "differentiated",
    "exporting",
    "flop_registry",
    "has_context",
    "has_side_effect",
    "mapping",
    "norm_of",
    "origin",
    "packs_saved",
    "pytree",
    "quiet",
    "raising",
    "registration",
    "result",
    "sdpa_flop_count",
    "step_hooks",
    "transformed",
    "untraced",
]

_LOGGERS = (
    "torch._subclasses.fake_tensor",
    "torch.export",
    "torch._export",
    "torch.fx",
    "torch._dynamo",
    "torch._logging",
)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """For as long as export runs: silence what it says about its own working, and let it drop no random draw.

    A draw whose result nobody reads still moves the generator. Errors raise as ever.
    """
    from torch._inductor import config

    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    # What export prints of the graph so far, when it fails, would bury the sentence that matters.
    vars(_trace)["print"] = lambda *args, **kwargs: None
    try:
        with warnings.catch_warnings(), config.patch(fallback_random=True):
            warnings.simplefilter("ignore")
            yield
    finally:
        vars(_trace).pop("print", None)
        for logger, level in zip(loggers, levels):
            logger.setLevel(level)


def mapping() -> bool:
    """True if a torch.func transform is active in this thread."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def has_context(function: Any) -> bool:
    """True if an `autograd.Function` has a `setup_context`, so that its `forward` is given no context."""
    return function.setup_context is not torch.autograd.Function.setup_context


def transformed() -> str:
    """The torch.func transform or forward-mode AD that is active in this thread, in words; "" outside of both."""
    if mapping():
        return "torch.func (grad, vmap, jvp, ...)"
    return "torch.autograd.forward_ad.dual_level" if torch.autograd.forward_ad._current_level >= 0 else ""


def packs_saved() -> bool:
    """Whether hooks of the caller's see what autograd saves in this thread."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def raising(message: str, tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """The same tensors, which raise RuntimeError when they are differentiated."""
    if not tensors:
        return ()
    found = torch._C._functions.DelayedError(message.encode(), len(tensors))(*tensors)
    # Given one tensor, torch returns it bare.
    return (found,) if isinstance(found, torch.Tensor) else tuple(found)


def exporting() -> bool:
    """True if this thread is tracing a model for torch.export, whose own flag is one for all threads.

    The flag itself is read: torch.compile of 2.11 takes `torch.compiler.is_exporting()` to be true.
    """
    return torch.compiler._is_exporting_flag and (
        torch.compiler.is_dynamo_compiling()
        or torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None
    )


def untraced(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a function that torch.compile is to call, not to trace: a graph break. It stays the function it is, with
    nothing round it, and torch._dynamo is not loaded for it."""
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    function._torchdynamo_disable_msg = "autopar places it itself"  # type: ignore[attr-defined]
    skip = _eval_frame._FrameExecStrategy(_eval_frame._FrameAction.SKIP, _eval_frame._FrameAction.SKIP)
    _eval_frame.set_code_exec_strategy(function.__code__, skip)
    return function


def differentiated(
    module: torch.nn.Module, tensors: tuple[torch.Tensor, ...], decompositions: dict[Any, Callable[..., Any]]
) -> torch.fx.Graph:
    """The graph of a module without parameters, forward and backward, as AOTAutograd traces it with operators replaced
    by their `decompositions`.

    Each placeholder has `meta["desc"]`, the output a list of them: what it is in the module's own terms.
    """
    from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
    from torch.fx.traceback import preserve_node_meta

    with contextlib.ExitStack() as stack, preserve_node_meta():
        made = aot_export_joint_with_descriptors(stack, module, tensors, decompositions=decompositions)
        return made.graph_module.graph


def step_hooks(optimizer: torch.optim.Optimizer) -> list[Any]:
    """What torch calls before and after each step of an optimizer, the hooks of all optimizers included."""
    before, after = _optimizer._global_optimizer_pre_hooks, _optimizer._global_optimizer_post_hooks
    own = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
    return [hook for hooks in (before, after, *own) for hook in hooks.values()]


def forget_unscaled(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> None:
    """Let a scaler forget that it has unscaled the gradients of an optimizer, which were then put back."""
    scaler._per_optimizer_states.pop(id(optimizer), None)


def norm_of(tensor: torch.Tensor) -> torch.Tensor:
    """The 2-norm of a tensor, summed in the order of `torch.nn.utils.clip_grad_norm_`."""
    return torch._foreach_norm([tensor], 2.0)[0]


def origin(node: torch.fx.Node) -> str:
    """Name of the node of the undecomposed graph that a decomposed node came from, "" when torch kept
    none.
    """
    sources = node.meta.get("from_node") or ()
    return str(sources[0].name) if sources else ""


def result(node: torch.fx.Node) -> Any:
    """The fake result of a call, None when it has none.

    torch 2.11 gives the last states of an LSTM an axis too many; they are shaped like the first states, in memory of
    their own.
    """
    output: Any = node.meta.get("val")
    if node.target is torch.ops.aten.lstm.input:
        states: Any = node.args[1]
        hidden, cell = (state.meta["val"] for state in states)
        return output[0], torch.empty_like(hidden), torch.empty_like(cell)
    return output


def registration(kind: type[Any]) -> str:
    """The line that tells export how to open a container of this type, and how to make one anew."""
    name = kind.__name__
    return (
        f"torch.utils._pytree.register_pytree_node({name}, "
        "lambda value: (list(vars(value).values()), list(vars(value))), lambda leaves, names: "
        f"(made := {name}.__new__({name}), vars(made).update(zip(names, leaves)))[0], "
        f"serialized_type_name={kind.__module__ + '.' + kind.__qualname__!r})"
    )
