"""Compiled models from folders that `Compiled.save` has written: `load`."""

from __future__ import annotations

import copy
import json
import pickle
import platform
import threading
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import nn
from torch.compiler import is_dynamo_compiling

from ..capture.captured import Captured, restore_strides
from ..capture.torch_private import memory, pytree
from ..costs.calibrate import threads
from ..costs.detect import accelerators
from ..errors import AutoparError, CaptureError
from ..ir.open_size import resized
from ..ir.plan import Plan
from ..ir.program import Program
from ..runtime.bind_program import keeps_caps
from ..runtime.executor import Executor
from ..runtime.kernels import Kernel, named
from ..runtime.kernels.piece_module import LEAST, value_of
from ..runtime.replicas import Replicas
from .classes import sharing
from .kernel_build import Form, modules_of, pieces_of
from .kernel_calls import KNOWN, with_eager_layout
from .kernel_verdict import installed

FORMAT = "autopar model 1"
ABOUT, PROGRAMS, WEIGHTS = "model.json", "programs.pickle", "weights.pt"


@dataclass(frozen=True)
class SavedKernel:
    """The file of a piece's kernel, the forms of its inputs and results, and the lengths for which it holds
    (`piece_module.Bounds`). A form is shape, strides and dtype."""

    file: str
    read: tuple[tuple[Any, ...], ...]
    results: tuple[tuple[Any, ...], ...]
    bounds: dict[str, tuple[int, int]]


@dataclass(frozen=True)
class SavedProgram:
    """One program with the form of its calls.

    arguments: the form of each leaf of the arguments, which `tree` holds together: shape and dtype of a tensor, or type
        and value.
    inputs: the leaf that is each input of the graph.
    results: each leaf of the output: ("output", its index), ("argument", the leaf that it is) or ("value", itself).
    output: the tree of the output; modules: those that define its classes.
    state: the weight that is each state of the graph, by its path in the model.
    library, kernels: the kernels, by the first task of each piece, for calls of any size or of the saved ones alone.
    lengths: the length of each axis of each tensor among the arguments, as an expression in symbols; empty if the
        program serves the saved sizes alone. expressions: those of `sizes`. conditions: what must hold.
    """

    plan: Plan
    program: Program
    arguments: tuple[Any, ...]
    tree: str
    inputs: tuple[int, ...]
    results: tuple[tuple[str, Any], ...]
    output: str
    modules: tuple[str, ...]
    state: dict[str, str]
    sizes: tuple[float, ...]
    home: str
    same: tuple[tuple[int, str], ...]
    strides: tuple[tuple[int, ...] | None, ...]
    library: str
    any_size: bool
    kernels: dict[str, SavedKernel]
    lengths: tuple[tuple[str, ...] | None, ...] = ()
    expressions: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()


class _Reader(pickle.Unpickler):
    """Reads plans and programs, and nothing else: a file cannot call other code."""

    def find_class(self, module: str, name: str) -> Any:
        if module.startswith("autopar.ir.") or (module, name) == (
            SavedKernel.__module__,
            SavedKernel.__name__,
        ):
            found = super().find_class(module, name)
            if isinstance(found, type) and "." not in name:
                return found
        raise pickle.UnpicklingError(f"{module}.{name} is not allowed")


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name.removeprefix("torch."))
    assert isinstance(found, torch.dtype)
    return found


class SavedModel:
    """A model that `autopar.load` has read. Call it like the original, without gradients, with arguments of the dtypes
    and shapes that were saved; others raise AutoparError."""

    __slots__ = ("__weakref__", "_calls", "_folder", "_lock", "_pool", "_programs", "_weights")

    def __init__(self, folder: Path) -> None:
        self._folder, self._pool, self._lock = folder, Replicas(), threading.RLock()
        programs, self._weights = _read(folder)
        self._programs: list[_Bound] = []
        self._calls: dict[tuple[Any, ...], _Bound] = {}
        for fields in programs:
            try:
                bound = _Bound(folder, SavedProgram(**fields), self._weights, self._pool, self._lock)
            except (ImportError, AttributeError) as error:
                raise AutoparError(f"{folder} needs what is not here: {error}; install it") from None
            self._programs.append(bound)
            self._calls.setdefault(bound.key, bound)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs for these arguments. Raises AutoparError for arguments of another form than those that
        were saved, and RunError if a task fails."""
        leaves: Sequence[Any] = args
        if kwargs or not all(isinstance(item, torch.Tensor) for item in args):
            leaves, tree = pytree.tree_flatten((args, kwargs))
            key = (tree, *[_key(leaf) for leaf in leaves])
        else:
            key = (len(args), *[(item.shape, item.dtype) for item in args])
        bound = self._calls.get(key) or self._resized(key, leaves)
        if bound is None:
            saved = "; ".join(
                dict.fromkeys(shown(each.saved.arguments, each.saved) for each in self._programs)
            )
            given = shown([form_of(leaf) for leaf in leaves])
            raise AutoparError(
                f"{self._folder} was saved for ({saved}), not for ({given}); call the compiled model with such "
                "arguments, positional and by name as here, before fast.save"
            )
        return bound(leaves)

    def _resized(self, key: tuple[Any, ...], leaves: Sequence[Any]) -> _Bound | None:
        """Return a program that also serves arguments of these lengths; None if there is none."""
        for each in self._programs:
            if key[0] == each.key[0] and (found := each.resized(key, leaves)) is not None:
                if len(self._calls) >= KNOWN:
                    self._calls = {own.key: own for own in self._programs}
                self._calls[key] = found
                return found
        return None

    @property
    def serving(self) -> str:
        """Kernel libraries of the programs, each once, separated by ";"; "eager" for PyTorch's kernels."""
        return "; ".join(dict.fromkeys(each.saved.library for each in self._programs))

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plan of each program, in the order in which they were captured."""
        return tuple(each.saved.plan for each in self._programs)

    def close(self) -> None:
        """Stop the worker threads of every program. The next call starts them again."""
        for each in self._programs:
            each.executor.close()

    def __repr__(self) -> str:
        return f"autopar.load({str(self._folder)!r})"


class SavedModule(SavedModel):
    """A saved model that is also an instance of the class of the Python model it was loaded with, and has its
    attributes. Its weights are those that were saved."""

    __slots__ = ("_model",)
    _model: nn.Module

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs, as `SavedModel` does."""
        # A model around this one that is captured is placed as a whole.
        return self._model(*args, **kwargs) if is_dynamo_compiling() else super().__call__(*args, **kwargs)

    def load_state_dict(self, *_: Any, **__: Any) -> NoReturn:
        """Raise AutoparError: kernels hold the weights that were saved."""
        raise AutoparError(
            "the weights of a saved model are fixed; load them into the Python model, and save it again"
        )

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the saved model."""
        return self(*args, **kwargs)


class _Bound:
    """A saved program, ready to be called with the leaves of arguments."""

    def __init__(
        self,
        folder: Path,
        saved: SavedProgram,
        weights: dict[str, torch.Tensor],
        pool: Replicas,
        lock: threading.RLock,
    ) -> None:
        self.saved, graph = saved, saved.plan.costed.graph
        state: dict[str, tuple[Mapping[str, Any], str]] = {
            name: (weights, key) for name, key in saved.state.items()
        }
        home = torch.device(saved.home)
        captured = Captured(graph, state, {}, list, list, home, sizes=saved.sizes).with_slices(graph)
        kernels = _restored(folder, saved, captured) if saved.kernels else None
        self.executor = self._any_size = Executor(captured, saved.plan, saved.program, pool, kernels)
        self._lock = lock if captured.stateful else nullcontext()
        self._state, self._inputs, self._kind = state, saved.inputs, home.type
        self._same = [(at, state.get(name), name) for at, name in saved.same]
        self._changed = [at for name, at in zip(graph.inputs, saved.inputs) if name in graph.mutated]
        self._changed_state = [state[name] for name in state.keys() & graph.mutated]
        self._strides, self._dense = saved.strides if any(saved.strides) else (), False
        for name in saved.modules:
            import_module(name)
        self._output = pytree.treespec_loads(saved.output)
        self._single = len(saved.results) == 1 and self._output.is_leaf() and saved.results[0][0] == "output"
        tree = pytree.treespec_loads(saved.tree)
        tensors = all(isinstance(shape, tuple) for shape, _ in saved.arguments)
        args, kwargs = tree.child(0), tree.child(1)
        flat = tensors and not kwargs.num_leaves and all(each.is_leaf() for each in args.children())
        forms = ((torch.Size(a), _dtype(b)) if isinstance(a, tuple) else (a, b) for a, b in saved.arguments)
        self.key: tuple[Any, ...] = (args.num_leaves if flat else tree, *forms)

    def resized(self, key: tuple[Any, ...], leaves: Sequence[Any]) -> _Bound | None:
        """Return the program for arguments of other lengths; None if it does not serve them."""
        saved, program = self.saved, self.saved.program
        opened = saved.lengths and saved.any_size and _kinds(key) == _kinds(self.key)
        held = lengths_of(saved.lengths, leaves) if opened else None
        if held is None or not all(value_of(text, held) for text in saved.conditions):
            return None
        sizes = tuple(value_of(text, held) for text in saved.expressions)
        graph = resized(saved.plan.costed.graph, sizes)
        if min(held.values()) < LEAST or graph is None or not keeps_caps(program, graph):
            return None
        other = copy.copy(self)
        other.executor = self._any_size.resized(sizes)
        other._strides, other._dense = (), bool(self._strides)
        return other

    def _require_memory_of_its_own(self, leaves: Sequence[Any]) -> None:
        """Raise AutoparError if a tensor that the model changes in place shares its memory with another of the call."""
        keys = [memory(leaves[at]) for at in self._inputs]
        state = {memory(owner[key]) for owner, key in self._state.values()}
        changed = [memory(leaves[at]) for at in self._changed]
        if any(keys.count(key) > 1 or key in state for key in changed) or any(
            memory(owner[key]) in keys for owner, key in self._changed_state
        ):
            raise AutoparError(
                "a tensor that the model changes in place shares its memory with another argument or with a buffer; "
                "pass a copy, x.clone()"
            )

    def __call__(self, leaves: Sequence[Any]) -> Any:
        """Return the output of a call."""
        if self._changed or self._changed_state:
            self._require_memory_of_its_own(leaves)
        with self._lock:
            outputs = self.executor([leaves[at] for at in self._inputs])
        if self._strides:
            restore_strides(outputs, self._strides, self._kind)
        elif self._dense:
            outputs = [tensor.contiguous() for tensor in outputs]
        for index, place, name in self._same:
            if place is not None:
                outputs[index] = place[0][place[1]]
            else:
                at = self.saved.plan.costed.graph.inputs.index(name)
                outputs[index] = leaves[self._inputs[at]]
        if self._single:
            return outputs[self.saved.results[0][1]]
        values = {"output": outputs, "argument": leaves}
        found = [item if kind == "value" else values[kind][item] for kind, item in self.saved.results]
        return pytree.tree_unflatten(found, self._output)


def _restored(folder: Path, saved: SavedProgram, captured: Captured) -> dict[str, Kernel]:
    """Return the kernels of a program from their files. Raises AutoparError if the library is not here, and its
    errors."""
    library = named(saved.library)
    if library is None or library.load is None or library.missing():
        raise AutoparError(f"{folder} has kernels of {saved.library}: {library and library.missing()}")
    symbols = saved.expressions if saved.any_size else ()
    form = Form(captured, saved.plan, saved.program, torch.get_num_threads(), symbols=symbols)
    modules, kernels = modules_of(library, form, saved.program), {}
    for piece, device, count in pieces_of(form, saved.program):
        (module, takes), kernel = modules[piece.tasks[0]], saved.kernels[piece.tasks[0]]
        module.meta["bounds"] = kernel.bounds
        read = [_like(form, device).zero_() for form in kernel.read]
        results = [_like(form, torch.device("meta")) for form in kernel.results]
        with threads(count), torch.no_grad():
            call = library.load(str(folder / kernel.file), module, read)
            call = with_eager_layout(call, module, read, results)
        kernels[piece.tasks[0]] = Kernel(saved.library, call, takes)
    return kernels


def _like(form: tuple[Any, ...], device: torch.device) -> torch.Tensor:
    shape, strides, dtype = form
    return torch.empty_strided(shape, strides, dtype=_dtype(dtype), device=device)


def form_of(leaf: Any) -> tuple[Any, ...]:
    """Return the form of one leaf of the arguments. Raises CaptureError for one that a file cannot hold."""
    if isinstance(leaf, torch.Tensor):
        return tuple(leaf.shape), str(leaf.dtype)
    if leaf is None or isinstance(leaf, (bool, int, float, str)):
        return type(leaf).__name__, leaf
    raise CaptureError(
        f"a folder cannot hold an argument of type {type(leaf).__name__}; pass tensors, numbers and text, in tuples, "
        "lists and dicts"
    )


def shown(arguments: Sequence[tuple[Any, ...]], saved: SavedProgram | None = None) -> str:
    """Return the forms of arguments as text, with the open lengths of a saved program and what must hold for them."""
    opened = saved is not None and saved.any_size and bool(saved.lengths)
    lengths = saved.lengths if saved is not None and opened else [None] * len(arguments)
    items = [
        f"{kind.removeprefix('torch.')} [{', '.join(map(str, own or shape))}]"
        if isinstance(shape, tuple)
        else repr(kind)
        for (shape, kind), own in zip(arguments, lengths)
    ]
    where = f" where {' and '.join(saved.conditions)}" if saved is not None and opened else ""
    return ", ".join(items) + where


def lengths_of(lengths: Sequence[tuple[str, ...] | None], leaves: Sequence[Any]) -> dict[str, int] | None:
    """Return the number for each symbol in a call; None if its tensors have other forms than these."""
    held: dict[str, int] = {}
    pairs: list[tuple[str, int]] = []
    for own, leaf in zip(lengths, leaves, strict=True):
        if own is None:
            continue
        if not isinstance(leaf, torch.Tensor) or leaf.dim() != len(own):
            return None
        pairs += zip(own, leaf.shape)
    for text, length in pairs:
        if text.isidentifier():
            held.setdefault(text, length)
    return held if all(value_of(text, held) == length for text, length in pairs) else None


def _kinds(key: tuple[Any, ...]) -> list[Any]:
    """Return a key of a call without the shapes of tensors."""
    return [kind if isinstance(form, torch.Size) else (form, kind) for form, kind in key[1:]]


def _key(leaf: Any) -> tuple[Any, ...]:
    """Return what a leaf of the arguments of a call must equal."""
    return (leaf.shape, leaf.dtype) if isinstance(leaf, torch.Tensor) else (type(leaf).__name__, leaf)


def _read(folder: Path) -> tuple[list[dict[str, Any]], dict[str, torch.Tensor]]:
    """Return the programs and weights in a folder. Raises AutoparError unless `save` wrote it, whole."""
    try:
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        if about["format"] != FORMAT:
            raise ValueError(f"its format is {about['format']!r}, not {FORMAT!r}")
        for name, count in about["bytes"].items():
            if (found := (folder / name).stat().st_size) != count:
                raise ValueError(f"{name} has {found} bytes of {count}")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise AutoparError(
            f"{folder} is no saved model, or is incomplete: {error}; write it with fast.save({str(folder)!r})"
        ) from None
    _fit(folder, about)
    try:
        with (folder / PROGRAMS).open("rb") as file:
            programs = _Reader(file).load()
        weights = torch.load(folder / WEIGHTS, mmap=True, weights_only=True)
    except Exception as error:
        raise AutoparError(
            f"{folder} is damaged: {error}; write it with fast.save({str(folder)!r})"
        ) from None
    return programs, weights


def _fit(folder: Path, about: dict[str, Any]) -> None:
    """Raise AutoparError with each version, and the processor, that is not the saved one."""
    pairs = [(name, saved, installed(name)) for name, saved in about["versions"].items()]
    pairs.append(("processor", about["processor"], platform.machine()))
    wrong = [f"{name} {saved}, here is {here or 'none'}" for name, saved, here in pairs if saved != here]
    lacking = sorted({*about["accelerators"]} - {*accelerators()})
    wrong += [f"{name}, which is not here" for name in lacking]
    if wrong:
        raise AutoparError(
            f"{folder} was saved with {'; '.join(wrong)}: install what it was saved with, or save it again here"
        )


def load(folder: str | PathLike[str], model: nn.Module | None = None) -> Any:
    """Return the model that `Compiled.save` has written to a folder, ready to be called: nothing is captured or
    compiled, no guards run, and its weights are those that were saved.

    model: its Python form, of whose class the result is then also an instance, with its attributes and methods. Raises
    AutoparError for a folder that is incomplete, or was saved with other versions of torch, autopar or its kernel
    library or for other devices. A folder may name modules to import: load only those that you trust.
    """
    saved = SavedModel(Path(folder))
    if model is None:
        return saved
    twin = _with_weights(model, saved._weights)
    fast = sharing(SavedModule, twin, type(model))
    for name in SavedModel.__slots__[1:]:
        object.__setattr__(fast, name, getattr(saved, name))
    object.__setattr__(fast, "_model", twin)
    return fast


def _with_weights(model: nn.Module, weights: Mapping[str, torch.Tensor]) -> nn.Module:
    """Return a copy of a model that has these weights, by their paths, and shares everything else. Raises AutoparError
    if it has no such weight."""
    known = dict(
        (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    )
    for path, weight in weights.items():
        # Other names of weights, which are no paths, have a space.
        if " " not in path and (path not in known or known[path].shape != weight.shape):
            raise AutoparError(
                f"the saved model has a weight {path} {list(weight.shape)}, and this {type(model).__name__} has no "
                "such; give the Python model that was saved"
            )
    memo: dict[int, Any] = {}
    for path, tensor in known.items():
        if path in weights:
            parameter = isinstance(tensor, nn.Parameter)
            memo[id(tensor)] = (
                nn.Parameter(weights[path], tensor.requires_grad) if parameter else weights[path]
            )
    for part in model.modules():
        memo[id(part)] = object.__new__(type(part))
    for part in model.modules():
        for name, value in vars(part).items():
            if name in ("_parameters", "_buffers", "_modules"):
                value = {key: memo.get(id(item), item) for key, item in value.items()}
            vars(memo[id(part)])[name] = value
    twin: nn.Module = memo[id(model)]
    return twin
