"""All private parts of torch used with `torch.compile`, behind one version check."""

from __future__ import annotations

import contextlib
import itertools
import logging
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from types import CodeType
from typing import Any, TypeAlias

import torch
from torch import fx, nn

from ..errors import CaptureError
from ..ops.composites.rules import whole_layers
from ..system import versions
from ..system.process import uncollected
from .source_locations import foreign, short
from .torch_private import overridden, quiet

try:
    import torch._dynamo
    from torch._dispatch.python import enable_python_dispatcher
    from torch._dynamo import eval_frame as _eval_frame
    from torch._dynamo.exc import TorchDynamoException
    from torch._dynamo.guards import GuardManagerType
    from torch._dynamo.symbolic_convert import InstructionTranslator
    from torch._dynamo.types import FrameAction, FrameExecStrategy
    from torch._dynamo.utils import counters, graph_break_reasons
    from torch._dynamo.variables.base import AttributeMutationNew, ValueMutationNew
    from torch._export.utils import _collect_all_valid_cia_ops_for_aten_namespace, _special_op_to_preserve_cia
    from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
    from torch.export.exported_program import _override_composite_implicit_decomp
    from torch.fx.traceback import preserve_node_meta
    from torch.nn.modules import module as modules
    from torch.utils.hooks import RemovableHandle
except ImportError as error:
    raise CaptureError(versions.lacking(torch.__version__, error)) from error

__all__ = ["TorchDynamoException"]  # torch's own, for others to import from here

Arguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments of a call."""
Check: TypeAlias = Callable[[tuple[Any, ...], dict[str, Any]], bool]
"""A predicate on the arguments of a call."""
Guard: TypeAlias = Callable[[Arguments, Mapping[str, Any], Collection[str]], Check | None]
"""`guard(arguments, pinned, watched)` returns the check that is true for arguments if the code that serves these
serves them too; None if unknown. It runs Dynamo's own guards, with two exceptions: `pinned`, objects by their source,
must be these very objects, and those of the sources in `watched` are not looked at further; and hooks of modules are
checked together once any hook has been registered."""
Store: TypeAlias = tuple[str, Any, str, Any]
"""A side effect that sets an attribute to a constant: source of the object, the object, the attribute's name, value."""

_SETTINGS: dict[str, Any] = {
    # A recurrent layer is otherwise a graph break.
    "allow_rnn": True,
    # Hooks that are added later are otherwise not seen.
    "skip_nnmodule_hook_guards": False,
    # Floats are otherwise tensors whose values nobody knows.
    "specialize_float": True,
    # A default of a parameter that is changed later is otherwise not seen.
    "skip_guards_on_constant_func_defaults": False,
    # Numpy's random numbers are otherwise drawn by torch, as others.
    "use_numpy_random_stream": True,
    # A gradient that forward itself asks for is otherwise a graph break.
    "trace_autograd_ops": True,
    # A frame that Dynamo cannot take runs as the user wrote it, whose errors are then the user's own.
    "suppress_errors": True,
    # It looks at all that capture has made, most of which is kept.
    "run_gc_after_compile": False,
    # Beyond it a model runs eagerly for ever: each constant that a forward reads may be changed so often.
    "recompile_limit": 64,
    # DistributedDataParallel otherwise has graphs cut at its buckets of gradients, and no plan sees the whole.
    "optimize_ddp": False,
}
if versions.release(torch.__version__) < (2, 13):
    # It otherwise takes modules for unchanged whose tensors, or what their forward reads, have changed.
    _SETTINGS |= {
        "use_recursive_dict_tags_for_guards": False,
        "skip_tensor_guards_with_matching_dict_tags": False,
    }
_HOOKS = tuple(
    f"_{way}_{kind}" for way in ("forward", "forward_pre") for kind in ("hooks", "hooks_with_kwargs")
) + ("_backward_hooks", "_backward_pre_hooks")
_CONSTANTS = (type(None), bool, int, float, str)
_COMPOSITES: dict[Any, Any] = {}
_count = itertools.count()


class _Entry:
    """Dynamo's entry to a frame without code yet, under `_SETTINGS`, which are read during capture.

    `skipped(reason, place)` is called for frames that Dynamo gives up without a graph. After such a call of `code`,
    one that fails or computes nothing, Dynamo would capture no other call of it ever again: `resume` ends that.
    """

    def __init__(
        self,
        entry: Callable[..., Any],
        skipped: Callable[[str, str], None],
        settings: dict[str, Any],
        code: CodeType,
    ) -> None:
        self.entry, self.skipped, self.settings, self.code = entry, skipped, settings, code
        self._torchdynamo_orig_backend = entry
        self.failures = self.resting = 0
        """Number of captures without a graph since the last graph, and of calls until the next attempt."""

    def resume(self) -> None:
        """Let Dynamo capture calls of `code` again, once in twice as many calls after each failure."""
        self.resting -= 1
        if self.resting <= 0:
            self.resting = 0
            _eval_frame.set_code_exec_strategy(
                self.code, FrameExecStrategy(FrameAction.DEFAULT, FrameAction.DEFAULT)
            )

    def __call__(self, frame: Any, *args: Any, **kwargs: Any) -> Any:
        known, before = dict(counters["graph_break"]), len(graph_break_reasons)
        with torch._dynamo.config.patch(**self.settings), quiet, uncollected(), whole_layers():
            found = self.entry(frame, *args, **kwargs)
        if frame.f_code is self.code:
            given_up = found.guarded_code is None
            self.failures = self.failures + 1 if given_up else 0
            self.resting = 1 << (self.failures - 1) if given_up else 0
        places = {first_line(each.reason): _place(each) for each in graph_break_reasons[before:]}
        own = f"{short(frame.f_code.co_filename)}:{frame.f_code.co_firstlineno}"
        for text, count in counters["graph_break"].items():
            if count > known.get(text, 0):
                self.skipped(first_line(text), places.get(first_line(text)) or own)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self.entry, name)


def effects() -> list[Store] | None:
    """Return the attributes that the call being captured in this thread sets to constants; None if it has other side
    effects in Python, such as a list that grows."""
    found = InstructionTranslator.current_tx().output.side_effects
    stores: list[Store] = []
    for item in found.id_to_variable.values():
        source = getattr(item, "source", None)
        made = isinstance(item.mutation_type, (AttributeMutationNew, ValueMutationNew))
        if source is None or made or not found.is_modified(item):
            continue
        stored, owner = found.store_attr_mutations.get(item), getattr(item, "value", None)
        # What a collection holds may be changed too.
        if not stored or owner is None or isinstance(owner, Collection):
            return None
        for name, value in stored.items():
            if not (value.is_python_constant() and isinstance(value.as_python_constant(), _CONSTANTS)):
                return None
            stores.append((_named(source), owner, name, value.as_python_constant()))
    return None if found.tensor_hooks else stores


def outermost() -> bool:
    """Return True if the frame being captured in this thread is a call made by `compiled`, not an inner function or
    the rest after a graph break."""
    code = InstructionTranslator.current_tx().output.root_tx.f_code
    return code.co_filename == __file__ and code.co_name.startswith("call_")


def first_line(text: str) -> str:
    """Return the first sentence of Dynamo's explanation."""
    return text.strip().split("\n", 1)[0].rstrip(".")


def broken(module: fx.GraphModule) -> tuple[str, str]:
    """Return reason and user's line of the graph break at the end of a graph; empty texts if there is none."""
    reason = getattr(module, "compile_subgraph_reason", None)
    if reason is None or not reason.graph_break:
        return "", ""
    why = "what runs depends on the values in a tensor" if reason.reason.startswith("generic_jump") else ""
    return why or first_line(reason.reason), _place(reason)


def _place(reason: Any) -> str:
    """Return the user's line of a graph break."""
    stack = list(reason.user_stack or ())
    frames = [frame for frame in stack if foreign(frame.filename)] or stack
    return "".join(f"{short(frame.filename)}:{frame.lineno}: `{frame.line}`" for frame in frames[-1:])


def compiled(
    function: Callable[..., Any],
    backend: Callable[..., Any],
    fullgraph: bool,
    dynamic: bool | None,
    skipped: Callable[[str, str], None] = lambda why, place: None,
) -> tuple[Callable[..., Any], Guard]:
    """Compile a module or function by `torch.compile`, captured under `_SETTINGS`; return it and its guard.

    Dynamo caches by code object, and all models of a class share that of `forward`: each gets its own entry. `skipped`
    is called with reason and place of each frame without a graph.
    """

    def call(hooks: str, /, *args: Any, **kwargs: Any) -> Any:
        if hooks:  # read, and so guarded
            pass
        return function(*args, **kwargs)

    # What sizes have varied Dynamo remembers by file, line and name: two models are none of each other's business.
    call.__code__ = call.__code__.replace(co_name=f"call_{next(_count)}")
    own = weakref.ref(backend)

    def entered(module: fx.GraphModule, examples: list[Any], **options: Any) -> Any:
        # Dynamo holds its backends for ever.
        return own()(module, examples, **options)  # type: ignore[misc]

    # Where there is no GPU torch's CUDA builds replace their device guard at the first capture, and crash where two
    # threads capture at once.
    torch._C._ensureCUDADeviceGuardSet()
    context = torch._dynamo.optimize(entered, nopython=fullgraph, dynamic=dynamic)
    # There is none where torch.compile is switched off.
    callback: Any = getattr(context, "callback", None)
    entry: _Entry | None = None
    if callback is not None:
        # A line in a log is no reason to refuse a call; where graphs may break it is written.
        settings = {**_SETTINGS, "ignore_logging_functions": _logging()} if fullgraph else _SETTINGS
        vars(context)["callback"] = entry = _Entry(callback, skipped, settings, call.__code__)
    made, code = context(call), call.__code__

    def called(*args: Any, **kwargs: Any) -> Any:
        if entry is not None and entry.resting:
            entry.resume()
        return made(_hooks(), *args, **kwargs)

    def guard(arguments: Arguments, pinned: Mapping[str, Any], watched: Collection[str]) -> Check | None:
        try:
            return _check(function, code, arguments, pinned, watched)
        except (AttributeError, LookupError, TypeError, RuntimeError):
            # Another release of torch.
            return None

    return called, guard


def _check(
    function: Callable[..., Any],
    code: CodeType,
    arguments: Arguments,
    pinned: Mapping[str, Any],
    watched: Collection[str],
) -> Check | None:
    call = {"function": function, "hooks": _hooks(), "args": arguments[0], "kwargs": arguments[1]}
    entries = torch._C._dynamo.eval_frame._debug_get_cache_entry_list(code)
    whole = next((entry.guard_manager for entry in entries if entry.guard_manager.root.check(call)), None)
    if whole is None:
        return None
    hooks = () if _hooked(function) else _HOOKS

    def kept(node: Any) -> bool:
        source = node.get_source()
        return source not in watched and source.rpartition(".")[2] not in hooks

    root = whole.root.clone_manager(kept)
    nodes = {node.get_source(): node for node in _managers(root)}
    for source, item in pinned.items():
        owner, _, key = source[:-2].rpartition("['")
        node = nodes.get(source) or nodes[owner].dict_getitem_manager(
            key, source, item, GuardManagerType.GUARD_MANAGER
        )
        node.add_id_match_guard(id(item), [f"{source} is the same"], None)
    check, registered = root.check, RemovableHandle.next_id

    def holds(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        nonlocal registered
        if hooks and registered != (now := RemovableHandle.next_id):
            if _hooked(function):
                return False
            registered = now
        return (
            whole.cache_entry is not None
            and _eval_frame._stance.stance == "default"
            and check({"function": function, "hooks": _hooks(), "args": args, "kwargs": kwargs})
        )

    # Guards on pairs of tensors may have a state of their own, that a clone does not reset.
    same = all(whole.root.check(call) and holds(*arguments) for _ in range(2))
    return holds if same and whole.root.check(call) else None


def _managers(manager: Any) -> Iterator[Any]:
    """Yield a guard manager and all below it."""
    yield manager
    pairs = manager.get_key_value_managers().values() if hasattr(manager, "get_key_value_managers") else ()
    for child in (*manager.get_child_managers(), *(each for pair in pairs for each in pair if each)):
        yield from _managers(child)


def _hooked(function: Any) -> bool:
    """Return True if a module, or one in it, has hooks."""
    inner = function.modules() if isinstance(function, nn.Module) else ()
    return any(getattr(module, name, None) for module in inner for name in _HOOKS)


def _logging() -> set[Any]:
    """Return the logging methods of loggers, also those added by libraries."""
    kinds = ("debug", "info", "warning", "warn", "error", "exception", "critical", "log")
    return {method for name, method in vars(logging.Logger).items() if name.partition("_")[0] in kinds}


def _hooks() -> str:
    """Return the global module hooks by number: Dynamo takes them as constants, and does not notice changes."""
    if not modules._has_any_global_hook():
        return ""
    ways = ("forward_pre", "forward", "backward_pre", "backward")
    kinds = (getattr(modules, f"_global_{way}_hooks") for way in ways)
    return " ".join(",".join(map(str, kind)) or "-" for kind in kinds)


def source_of(node: fx.Node) -> str:
    """Return the source of a placeholder in Dynamo's terms, such as `L['self']._modules['0']._parameters['weight']`;
    "" if unknown."""
    return _named(getattr(node.meta.get("grapharg"), "source", None))


def _named(source: Any) -> str:
    name = getattr(source, "name", "")
    # A method before torch 2.12.
    return str(name() if callable(name) else name)


@contextlib.contextmanager
def below_autograd() -> Iterator[None]:
    """Within the block, disable autograd, so that a dispatch mode sees composite operators before torch decomposes
    them, and ignore changes of grad mode inside."""
    with torch.no_grad(), _compiling(), torch._C._AutoDispatchBelowAutograd():
        yield


def flattened(module: nn.Module, tensors: tuple[Any, ...], decompositions: dict[Any, Any]) -> fx.GraphModule:
    """Return the functional graph of a module without parameters, without autograd, with composite operators such as
    `linear` kept whole.

    Each placeholder has `meta["desc"]`, the output a list of them: its role in the module's own terms.
    """
    if not _COMPOSITES:
        kept = _collect_all_valid_cia_ops_for_aten_namespace()
        _COMPOSITES.update(dict.fromkeys(kept, _special_op_to_preserve_cia))
    with torch.no_grad(), overridden(_override_composite_implicit_decomp, _COMPOSITES):
        return _exported(module, tensors, decompositions)


def differentiated(
    module: nn.Module, tensors: tuple[Any, ...], decompositions: dict[Any, Any]
) -> fx.GraphModule:
    """Return the functional graph of forward and backward, decomposed as in torch's own kernels."""
    with torch.enable_grad():
        return _exported(module, tensors, decompositions)


def _exported(module: nn.Module, tensors: tuple[Any, ...], decompositions: dict[Any, Any]) -> fx.GraphModule:
    from torch._inductor import config

    # What torch enters on the stack has to end first, or it leaves the dispatcher as it found it: Python's.
    with (
        _compiling(),
        # Random draws with unused results stay: they advance the generator.
        config.patch(fallback_random=True),
        # A call may be under autocast; its backward is not.
        torch._functorch.config.patch(backward_pass_autocast="off"),
        enable_python_dispatcher(),
        preserve_node_meta(),
        contextlib.ExitStack() as stack,
    ):
        made = aot_export_joint_with_descriptors(stack, module, tensors, decompositions=decompositions)
        return made.graph_module


@contextlib.contextmanager
def _compiling() -> Iterator[None]:
    """Within the block, set the flag that Dynamo sets from torch 2.13 on during capture: without it, a call in another
    thread mistakes this trace for its own and refuses. Dynamo captures in one thread at a time."""
    before = torch.compiler._is_compiling_flag
    try:
        torch.compiler._is_compiling_flag = True
        yield
    finally:
        torch.compiler._is_compiling_flag = before
