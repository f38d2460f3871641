"""All private parts of torch used with `torch.compile`, Dynamo and symbolic sizes among them, behind one version
check."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import weakref
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FunctionType
from typing import Any

import sympy
import torch
from torch import fx, nn

from .. import system
from ..errors import CaptureError
from ..ops.composites.define import shaped_whole
from ..ops.composites.rules import LAYERS
from ..system.process import gc_paused
from ..system.text import stage
from .dynamo_settings import CAPTURES, FIXED, RECAPTURED, SETTINGS
from .operators import BY_PARTS
from .source_locations import first_line, foreign, short
from .torch_private import compiling, computed, overridden, quiet
from .trace_state import restored_state

try:
    import torch._dynamo
    from torch._dispatch.python import enable_python_dispatcher
    from torch._dynamo import eval_frame as _eval_frame
    from torch._dynamo.exc import BackendCompilerFailed, FailOnRecompileLimitHit, TorchDynamoException
    from torch._dynamo.guards import GuardBuilder, install_guard
    from torch._dynamo.source import AttrSource, GetItemSource, TypeDictSource, TypeMROSource, TypeSource
    from torch._dynamo.symbolic_convert import InstructionTranslator
    from torch._dynamo.types import ConvertFrameReturn, FrameAction, FrameExecStrategy
    from torch._dynamo.utils import counters, graph_break_reasons
    from torch._dynamo.variables.base import AttributeMutationNew, ValueMutationNew
    from torch._dynamo.variables.user_defined import UserDefinedObjectVariable
    from torch._export.utils import _collect_all_valid_cia_ops_for_aten_namespace, _special_op_to_preserve_cia
    from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
    from torch._subclasses.fake_tensor import fake_tensor_tls
    from torch.export.exported_program import _override_composite_implicit_decomp
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
    from torch.fx.traceback import preserve_node_meta
    from torch.nn.modules import module as modules
    from torch.utils._sympy.functions import FloatTrueDiv, FloorToInt
    from torch.utils._sympy.interp import sympy_interp
    from torch.utils._sympy.reference import PythonReferenceAnalysis
    from torch.utils._sympy.symbol import SymT, symbol_is_type
except ImportError as error:
    raise CaptureError(system.lacking(torch.__version__, error)) from error

__all__ = [
    "FloatTrueDiv",
    "FloorToInt",
    "TorchDynamoException",
]  # torch's own, for others to import from here

_COMPOSITES: dict[Any, Any] = {}
_count = itertools.count()


class _Entry:
    """Dynamo's entry for a frame that has no code yet; captures it under `settings`.

    `skipped(reason, place)` is called after a call for frames that Dynamo gave up without a graph. After a call of
    `code` that fails or computes nothing, Dynamo would never capture `code` again; `resume` lets it. `opens`: numbers
    are open from the first capture on.
    """

    def __init__(
        self,
        entry: Callable[..., Any],
        skipped: Callable[[str, str], None],
        settings: dict[str, Any],
        code: CodeType,
        name: str,
        opens: bool,
    ) -> None:
        self.entry, self.skipped, self.settings, self.code, self.name = entry, skipped, settings, code, name
        self._torchdynamo_orig_backend = entry
        self.opens = opens
        self.failures = self.resting = self.captures = 0
        """Number of captures without a graph since the last graph, of calls until the next attempt, and of graphs."""
        self.given_up: list[tuple[str, str]] = []
        """The reasons of the current call's frames without a graph, each with its place."""

    def resume(self) -> None:
        """Let Dynamo capture `code` again, after a number of calls that doubles with each failure."""
        self.resting -= 1
        if self.resting <= 0:
            self.resting = 0
            again = FrameExecStrategy(FrameAction.DEFAULT, FrameAction.DEFAULT)
            _eval_frame.set_code_exec_strategy(self.code, again)

    def ended(self, raised: bool) -> None:
        """Tell the reasons of a call. If it has raised an error, take back what it led to, which may be false of
        others."""
        reasons, self.given_up = self.given_up, []
        for why, place in () if raised else reasons:
            self.skipped(why, place)
        if raised:
            self.resting //= 2
            if not self.resting:
                self.resume()

    def __call__(self, frame: Any, *args: Any, **kwargs: Any) -> Any:
        settings, whole = torch._dynamo.config.patch(**self.settings), frame.f_code is self.code
        tracing = stage(f"torch.compile traces {self.name}") if whole else contextlib.nullcontext()
        with tracing, settings, quiet, gc_paused(), shaped_whole(LAYERS), restored_state():
            try:
                result, known, before = self._captured(frame, *args, **kwargs)
            except FailOnRecompileLimitHit:
                raise CaptureError(f"{self.name}: {RECAPTURED}") from None
            except BackendCompilerFailed as error:
                raise error.inner_exception from None
        if frame.f_code is self.code:
            if result.guarded_code is not None and not _calls_graph(result.guarded_code.code):
                # Without a graph nothing of the arguments is guarded: it would serve all calls, as written.
                result = ConvertFrameReturn()
            given_up = result.guarded_code is None
            if not given_up:
                self.captures += 1
            elif self.captures >= CAPTURES:
                self.given_up.append((RECAPTURED, self.name))
            self.failures = self.failures + 1 if given_up else 0
            self.resting = 1 << (self.failures - 1) if given_up else 0
        places = {first_line(each.reason): _place(each) for each in graph_break_reasons[before:]}
        here = f"{short(frame.f_code.co_filename)}:{frame.f_code.co_firstlineno}"
        for text, count in counters["graph_break"].items():
            if count > known.get(text, 0):
                self.given_up.append((first_line(text), places.get(first_line(text)) or here))
        return result

    def _captured(self, *frame: Any, **options: Any) -> tuple[Any, dict[str, int], int]:
        """Return what Dynamo makes of a frame: with its numbers open if it can, else for these values of them; and the
        graph breaks known before."""
        known, before = dict(counters["graph_break"]), len(graph_break_reasons)
        opens = self.opens or self.captures
        try:
            result = self.entry(*frame, **options)
            if result.guarded_code is not None or not opens:
                return result, known, before
        except TorchDynamoException as error:
            if isinstance(error, FailOnRecompileLimitHit) or not opens:
                raise
        # Not all that torch can do with a number can it do with a symbol.
        known, before = dict(counters["graph_break"]), len(graph_break_reasons)
        with torch._dynamo.config.patch(**FIXED):
            return self.entry(*frame, **options), known, before

    def __getattr__(self, name: str) -> Any:
        return getattr(self.entry, name)


def _calls_graph(code: CodeType) -> bool:
    """Return True if code that Dynamo made calls a graph."""
    return any(name.startswith("__compiled_fn") for name in code.co_names)


def has_side_effects() -> bool:
    """Return True if the call under capture in this thread changes objects that outlive it, such as an attribute or
    a growing list, or registers a hook of a tensor. An attribute that ends with its value before is not changed, such
    as the switches that transformers sets within a call."""
    effects = InstructionTranslator.current_tx().output.side_effects
    new = AttributeMutationNew, ValueMutationNew
    changed = (
        getattr(item, "source", None) is not None
        and not isinstance(item.mutation_type, new)
        and effects.is_modified(item)
        and not _unchanged(item, effects.store_attr_mutations.get(item, {}))
        for item in effects.id_to_variable.values()
    )
    return bool(effects.tensor_hooks) or any(changed)


def _unchanged(item: Any, attributes: dict[str, Any]) -> bool:
    """Return True if all that a call sets of an object is `attributes`, to the constants that it has already."""
    before = getattr(getattr(item, "value", None), "__dict__", {})
    return type(item) is UserDefinedObjectVariable and all(
        name in before and each.is_python_constant() and each.as_python_constant() is before[name]
        for name, each in attributes.items()
    )


_LACKS: Callable[..., None] = getattr(GuardBuilder, "DICT_NOT_CONTAINS", None) or functools.partial(
    GuardBuilder.DICT_CONTAINS, invert=True
)
"""Guard on the absence of a key; the name depends on the version of torch."""


def guard_methods() -> None:
    """Let Dynamo guard the methods that the call under capture in this thread has run, as their classes hold them.

    Dynamo guards the classes of objects, and the constants of a class, but not its functions.
    """
    output = InstructionTranslator.current_tx().output
    run, kinds = {*output.tracing_context.traced_code}, set[type]()
    for item in output.side_effects.id_to_variable.values():
        if not isinstance(item, UserDefinedObjectVariable) or item.source is None:
            continue
        if isinstance(item.mutation_type, AttributeMutationNew):
            # No guard can reach an object that the call itself makes, such as a result or a cache.
            continue
        kind = type(item.value)
        if kind in kinds:
            continue
        kinds.add(kind)
        at = TypeSource(item.source)
        # A trace in another thread replaces methods of nn.Module while it lasts.
        bases = [base for base in kind.__mro__ if base is not nn.Module]
        members = {name: value for base in reversed(bases) for name, value in vars(base).items()}
        for name, value in members.items():
            if isinstance(value, FunctionType) and (value.__code__ in run or name == "__call__"):
                function = AttrSource(at, name)
                # A function that is replaced, and one whose code is, as by autoreload in notebooks.
                install_guard(*map(function.make_guard, (GuardBuilder.ID_MATCH, GuardBuilder.CLOSURE_MATCH)))
        if issubclass(kind, nn.Module) and "__call__" not in members:
            for place in range(kind.__mro__.index(nn.Module)):
                names = TypeDictSource(GetItemSource(TypeMROSource(at), place))
                install_guard(names.make_guard(functools.partial(_LACKS, key="__call__")))


def outermost() -> bool:
    """Return True if the frame under capture in this thread is a call made by `compiled`, not an inner
    function or the rest after a graph break."""
    code = InstructionTranslator.current_tx().output.root_tx.f_code
    return code.co_filename == __file__ and code.co_name.startswith("call_")


def broken(module: fx.GraphModule) -> tuple[str, str]:
    """Return the reason and user's line of the graph break that ends a graph; empty texts if none does."""
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


@contextlib.contextmanager
def numbers_on_meta() -> Iterator[None]:
    """Within the block, captures take tensors that code makes from numbers on the meta device, such as
    `torch.tensor([1.0], device="meta")`. A trace does not see how torch makes them, and refuses them otherwise."""
    before = fake_tensor_tls.allow_non_fake_inputs_override
    fake_tensor_tls.allow_non_fake_inputs_override = True
    try:
        yield
    finally:
        fake_tensor_tls.allow_non_fake_inputs_override = before


def open_first_axis(tensor: torch.Tensor) -> None:
    """Leave the length of a tensor's first axis open in captures, as far as the captured code does not fix it."""
    torch._dynamo.maybe_mark_dynamic(tensor, 0)


def compiled(
    function: Callable[..., Any],
    backend: Callable[..., Any],
    fullgraph: bool,
    dynamic: bool | None,
    skipped: Callable[[str, str], None] = lambda why, place: None,
) -> Callable[..., Any]:
    """Compile a module or function by `torch.compile`, captured under `SETTINGS`.

    Dynamo caches by code object. All models of a class share the code of `forward`, so each model gets its
    own entry. `skipped` is called with the reason and place of each frame without a graph.
    """

    def call(hooks: str, floats: tuple[Any, ...], /, *args: Any, **kwargs: Any) -> Any:
        if hooks:  # Dynamo guards `hooks` because this reads it.
            pass
        for key in floats:
            # Read first within a checkpoint or an autograd.Function, a float would be unknown outside of it.
            isinstance(kwargs[key] if key in kwargs else args[key], float)
        return function(*args, **kwargs)

    # Dynamo remembers by file, line and name which sizes varied; a name of its own keeps each model apart.
    call.__code__ = call.__code__.replace(co_name=f"call_{next(_count)}")
    reference = weakref.ref(backend)

    def entered(module: fx.GraphModule, examples: list[Any], **options: Any) -> Any:
        guard_methods()
        # Dynamo never releases a backend, hence the weak reference.
        return reference()(module, examples, **options)  # type: ignore[misc]

    # Without a GPU, torch's CUDA builds replace their device guard at the first capture. They crash if two
    # threads then capture at once.
    torch._C._ensureCUDADeviceGuardSet()
    with restored_state():
        # The first of a process switches the checks of torch.distributions off.
        context = torch._dynamo.optimize(entered, nopython=fullgraph, dynamic=dynamic)
    # There is no callback if torch.compile is switched off.
    callback: Any = getattr(context, "callback", None)
    entry: _Entry | None = None
    if callback is not None:
        # Do not refuse a call because it logs; if graphs may break, the line is logged.
        settings = {**SETTINGS, "ignore_logging_functions": _logging()} if fullgraph else SETTINGS
        name = getattr(function, "__name__", type(function).__name__)
        vars(context)["callback"] = entry = _Entry(
            callback, skipped, settings, call.__code__, name, dynamic is True
        )
    entered_call = context(call)

    def called(*args: Any, **kwargs: Any) -> Any:
        if entry is not None and entry.resting:
            entry.resume()
        raised = True
        try:
            output = entered_call(_hooks(), _floats(args, kwargs), *args, **kwargs)
            raised = False
        finally:
            if entry is not None and entry.given_up:
                entry.ended(raised)
        return output

    return called


def _logging() -> set[Any]:
    """Return the logging methods of loggers, including those that libraries added."""
    kinds = ("debug", "info", "warning", "warn", "error", "exception", "critical", "log")
    return {method for name, method in vars(logging.Logger).items() if name.partition("_")[0] in kinds}


def _hooks() -> str:
    """Return the global module hooks by number: Dynamo takes them for constants and misses changes."""
    if not modules._has_any_global_hook():
        return ""
    ways = ("forward_pre", "forward", "backward_pre", "backward")
    kinds = (getattr(modules, f"_global_{way}_hooks") for way in ways)
    return " ".join(",".join(map(str, kind)) or "-" for kind in kinds)


def _floats(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Return the positions and names of the arguments that are floats."""
    return tuple([key for key, item in (*enumerate(args), *kwargs.items()) if type(item) is float])


def source_of(node: fx.Node) -> str:
    """Return the source of a placeholder in Dynamo's terms, such as `L['self']._modules['0']._parameters['weight']`;
    "" if unknown."""
    return _named(getattr(node.meta.get("grapharg"), "source", None))


def holds_number(node: fx.Node) -> bool:
    """Return True for the placeholder of a tensor that Dynamo makes of a Python number."""
    return bool(getattr(node.meta.get("grapharg"), "pass_arg_as_tensor", False))


def _named(source: Any) -> str:
    name = getattr(source, "name", "")  # a method before torch 2.12
    return str(name() if callable(name) else name)


def flattened(module: nn.Module, tensors: tuple[Any, ...], decompositions: dict[Any, Any]) -> fx.GraphModule:
    """Return the functional graph of a module without parameters; composites such as `linear` stay whole.

    Autograd is off. `meta["desc"]` is each placeholder's role in the module's own terms, the output's a list.
    """
    if not _COMPOSITES:
        whole = _collect_all_valid_cia_ops_for_aten_namespace()
        _COMPOSITES.update(dict.fromkeys(whole, _special_op_to_preserve_cia))
        _COMPOSITES.update(BY_PARTS)
    with torch.no_grad(), overridden(_override_composite_implicit_decomp, _COMPOSITES):
        return _exported(module, tensors, decompositions)


def differentiated(
    module: nn.Module, tensors: tuple[Any, ...], decompositions: dict[Any, Any], training: bool
) -> fx.GraphModule:
    """Return the functional graph of forward and, in training, backward, decomposed as in torch's own kernels."""
    with torch.set_grad_enabled(training):
        return _exported(module, tensors, decompositions)


def _exported(module: nn.Module, tensors: tuple[Any, ...], decompositions: dict[Any, Any]) -> fx.GraphModule:
    from torch._inductor import config

    # The contexts on the stack must exit first; later, they would restore Python's dispatcher.
    with (
        compiling(),
        # Random draws with unused results stay: they advance the generator.
        config.patch(fallback_random=True),
        # A call may be under autocast; its backward is not.
        torch._functorch.config.patch(backward_pass_autocast="off"),
        enable_python_dispatcher(),
        preserve_node_meta(),
        contextlib.ExitStack() as stack,
    ):
        exported = aot_export_joint_with_descriptors(stack, module, tensors, decompositions=decompositions)
        return exported.graph_module


class _Python(PythonReferenceAnalysis):
    """Python's arithmetic; torch's own largest and smallest of numbers take no constants of sympy's."""

    maximum, minimum = staticmethod(max), staticmethod(min)


def in_python(expression: sympy.Expr, numbers: Mapping[Any, float]) -> Any:
    """Return the value of a symbolic number as Python computes it, to the sign of a zero; as sympy does, whose zeros
    have none, if torch knows no other way. Raises ArithmeticError where Python raises an error."""
    try:
        return computed(sympy_interp, _Python, dict(numbers), expression)
    except (AttributeError, NotImplementedError):
        return expression.xreplace(
            {symbol: sympy.sympify(numbers[symbol]) for symbol in expression.free_symbols}
        )


def of_floats(expression: sympy.Expr) -> bool:
    """Return True if an expression depends on a float that varies."""
    return any(symbol_is_type(symbol, SymT.FLOAT) for symbol in expression.free_symbols)


def depends_on_values(made: Any) -> bool:
    """Return True if a number, or a size of a tensor, depends on the values in a tensor."""
    tensor = isinstance(made, torch.Tensor) and made.layout is torch.strided
    return (tensor or isinstance(made, (torch.SymInt, torch.SymFloat))) and bool(free_unbacked_symbols(made))
