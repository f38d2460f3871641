"""Every private corner of torch that the way through `torch.compile` leans on, behind one version check."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx, nn

from .. import versions
from ..errors import CaptureError

try:
    import torch._dynamo
    from torch._dispatch.python import enable_python_dispatcher
    from torch._dynamo.exc import BackendCompilerFailed, TorchDynamoException, Unsupported
    from torch._export.utils import _collect_all_valid_cia_ops_for_aten_namespace, _special_op_to_preserve_cia
    from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
    from torch.export.exported_program import _override_composite_implicit_decomp
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
    from torch.fx.traceback import preserve_node_meta
except ImportError as error:
    raise CaptureError(
        f"torch {torch.__version__} lacks {error.name or error}, which capture needs; autopar supports "
        f"{versions.SUPPORTED}: {versions.TO_TYPE}"
    ) from error

__all__ = [
    "BackendCompilerFailed",
    "TorchDynamoException",
    "Unsupported",
    "autograd_keys",
    "compiled",
    "depends_on_values",
    "differentiated",
    "flattened",
    "settings",
    "source_of",
]

_SETTINGS = {
    # A recurrent layer is otherwise a graph break.
    "allow_rnn": True,
    # Hooks that are added later are otherwise not seen.
    "skip_nnmodule_hook_guards": False,
    # Floats are otherwise tensors whose values nobody knows.
    "specialize_float": True,
    # A frame that Dynamo cannot take runs as the user wrote it, whose errors are then the user's own.
    "suppress_errors": True,
    # Beyond it a model runs eagerly for ever: each constant that a forward reads may be changed so often.
    "recompile_limit": 64,
}
_COMPOSITES: dict[Any, Any] = {}


class _Set:
    """Dynamo's entry to a frame that it has no code for yet, under `_SETTINGS`: they are read while it captures."""

    def __init__(self, entry: Callable[..., Any]) -> None:
        self.entry = entry
        self._torchdynamo_orig_backend = entry

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with torch._dynamo.config.patch(**_SETTINGS):
            return self.entry(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.entry, name)


def compiled(
    function: Callable[..., Any], backend: Callable[..., Any], fullgraph: bool, dynamic: bool | None
) -> Callable[..., Any]:
    """What `torch.compile` makes of a module or a function, captured under `_SETTINGS`.

    What Dynamo learns and keeps is by code object, those of `forward` being shared by all models of a class: each has
    an entry of its own.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    call.__code__ = call.__code__.replace()
    context = torch._dynamo.optimize(backend, nopython=fullgraph, dynamic=dynamic)
    # There is none where torch.compile is switched off.
    if getattr(context, "callback", None) is not None:
        context.callback = _Set(context.callback)
    made: Callable[..., Any] = context(call)
    return made


def source_of(node: fx.Node) -> str:
    """Where Dynamo found what a placeholder stands for, such as `L['self']._modules['0']._parameters['weight']`; ""
    where it does not say."""
    name = getattr(getattr(node.meta.get("grapharg"), "source", None), "name", "")
    # A method before torch 2.12.
    return str(name() if callable(name) else name)


def depends_on_values(made: Any) -> bool:
    """True if a number, or a size of a tensor, is known only once the values in a tensor are."""
    tensor = isinstance(made, torch.Tensor) and made.layout is torch.strided
    return (tensor or isinstance(made, (torch.SymInt, torch.SymFloat))) and bool(free_unbacked_symbols(made))


def flattened(module: nn.Module, tensors: tuple[Any, ...], decompositions: dict[Any, Any]) -> fx.Graph:
    """The graph of a module without parameters, without autograd, functional, operators kept whole that torch could
    compose of others, such as `linear`.

    Each placeholder has `meta["desc"]`, the output a list of them: what it is in the module's own terms.
    """
    if not _COMPOSITES:
        kept = _collect_all_valid_cia_ops_for_aten_namespace()
        _COMPOSITES.update(dict.fromkeys(kept, _special_op_to_preserve_cia))
    with torch.no_grad(), _override_composite_implicit_decomp(_COMPOSITES):
        return _exported(module, tensors, decompositions)


def differentiated(module: nn.Module, tensors: tuple[Any, ...], decompositions: dict[Any, Any]) -> fx.Graph:
    """The same of forward and backward, in torch's own kernels."""
    with torch.enable_grad():
        return _exported(module, tensors, decompositions)


def _exported(module: nn.Module, tensors: tuple[Any, ...], decompositions: dict[Any, Any]) -> fx.Graph:
    with contextlib.ExitStack() as stack, _undropped(), enable_python_dispatcher(), preserve_node_meta():
        made = aot_export_joint_with_descriptors(stack, module, tensors, decompositions=decompositions)
        return made.graph_module.graph


@contextlib.contextmanager
def _undropped() -> Iterator[None]:
    """Let no random draw be dropped whose result nobody reads: it still moves the generator."""
    from torch._inductor import config

    with config.patch(fallback_random=True):
        yield


def autograd_keys(kinds: set[str]) -> list[Any]:
    """The dispatch keys of autograd for these types of device."""
    private = torch._C._get_privateuse1_backend_name()
    names = ["PrivateUse1" if kind == private else kind.upper() for kind in sorted(kinds)]
    names = [{"META": "Meta"}.get(name, name) for name in names]
    found = (getattr(torch._C.DispatchKey, f"Autograd{name}", None) for name in names)
    return [key for key in found if key is not None]
