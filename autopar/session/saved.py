"""A compiled model as a folder of files, and `load`, which serves it in other processes without a capture.

`model.json` says what the folder holds and for what it holds. `programs.pickle` has a `SavedProgram` for each program;
its reader takes no class but those of plans and programs. `weights.pt` is read by `torch.load` as weights only, into
memory that all processes of a machine share. Each kernel is a file of its library.
"""

from __future__ import annotations

import ast
import copy
import copyreg
import dataclasses
import json
import logging
import os
import pickle
import platform
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any

import sympy
import torch
from torch import nn
from torch.utils import _pytree as pytree

from ..capture.captured import Captured, restore_strides
from ..capture.results import expressions
from ..capture.torch_private import conditions_of
from ..costs.calibrate import threads
from ..costs.detect import accelerators
from ..errors import AutoparError, CaptureError
from ..ir.open_size import resized
from ..ir.plan import Plan
from ..ir.program import Program
from ..runtime.executor import Executor
from ..runtime.kernels import Kernel, named, tracing
from ..runtime.kernels.piece_module import LEAST
from ..runtime.replicas import Replicas
from .classes import sharing
from .kernel_build import Candidate, Form, modules_of, pieces_of, seen_in
from .kernel_calls import KNOWN, with_eager_layout
from .kernel_selection import KernelExecutor
from .kernel_verdict import installed
from .other_sizes import keeps_caps
from .session import WATCHED, Session
from .stages import Prepared

log = logging.getLogger("autopar")

FORMAT = "autopar model 1"
ABOUT, PROGRAMS, WEIGHTS = "model.json", "programs.pickle", "weights.pt"


@dataclasses.dataclass(frozen=True)
class SavedKernel:
    """The file of a piece's kernel, the forms of its inputs and results, and the lengths for which it holds
    (`piece_module.Bounds`). A form is shape, strides and dtype."""

    file: str
    read: tuple[tuple[Any, ...], ...]
    results: tuple[tuple[Any, ...], ...]
    bounds: dict[str, tuple[int, int]]


@dataclasses.dataclass(frozen=True)
class SavedProgram:
    """One program with the form of its calls.

    arguments: the form of each leaf of the arguments, which `tree` holds together: shape and dtype of a tensor, or type
        and value.
    inputs: the leaf that is each input of the graph.
    results: each leaf of the output: ("output", its index), ("argument", the leaf that it is) or ("value", itself).
    output: the tree of the output; modules: those that define its classes.
    state: the weight that is each state of the graph.
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


def save(session: Session, run: Callable[..., Any], folder: str | PathLike[str]) -> None:
    """Write the programs of a session to a folder; `run` calls the model through them. Raises AutoparError as
    `Compiled.save` says."""
    known = [
        prepared
        for graph in session.graphs
        for prepared in [*graph.programs.values()]
        if isinstance(prepared, Prepared) and prepared.example is not None
    ]
    if not known:
        why = "; ".join(session.notes())
        raise AutoparError(
            "there is nothing to save: call the compiled model under torch.no_grad(), or fast.prepare(…) its arguments"
            + (f" ({why})" if why else "")
        )
    path = Path(folder)
    if path.exists() and not (path / ABOUT).exists() and (not path.is_dir() or any(path.iterdir())):
        raise AutoparError(f"{path} is there and is no saved model; give a new folder")
    path.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent))
    try:
        _write(part, session, run, known)
        os.chmod(part, 0o777 & ~_umask())
        if path.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".old", dir=path.parent))
            path.replace(old)
            part.replace(path)
            shutil.rmtree(old, ignore_errors=True)
        else:
            part.replace(path)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _write(part: Path, session: Session, run: Callable[..., Any], known: Sequence[Prepared]) -> None:
    weights: dict[str, torch.Tensor] = {}
    programs = [_saved(part, number, session, run, each, weights) for number, each in enumerate(known)]
    torch.save(weights, part / WEIGHTS)
    with (part / PROGRAMS).open("wb") as file:
        _Writer(file, pickle.HIGHEST_PROTOCOL).dump([_fields(each) for each in programs])
    about = {
        "format": FORMAT,
        "versions": _versions({each.library for each in programs}),
        "processor": platform.machine(),
        "accelerators": sorted(
            device.name
            for device in session.machine.devices
            if torch.device(device.torch_device).type != "cpu"
        ),
        "calls": [_shown(each.arguments) for each in programs],
        "bytes": {file.name: file.stat().st_size for file in sorted(part.iterdir())},
    }
    (part / ABOUT).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def _versions(libraries: set[str]) -> dict[str, str]:
    names = ("autopar", "torch", *sorted(libraries - {"eager"}))
    return {name: installed(name) for name in names}


def _saved(
    part: Path,
    number: int,
    session: Session,
    run: Callable[..., Any],
    prepared: Prepared,
    weights: dict[str, torch.Tensor],
) -> SavedProgram:
    """Return a program as it is saved, after a call of zeros that shows how arguments and outputs belong to its graph;
    write its kernels, and add its weights."""
    assert prepared.example is not None and prepared.source is not None
    args, kwargs = prepared.example.filled()
    watched: list[Any] = []
    with torch.inference_mode(prepared.example.inference), torch.set_grad_enabled(prepared.example.grad):
        token = WATCHED.set(watched)
        try:
            output = run(*args, **kwargs)
        finally:
            WATCHED.reset(token)
    if len(watched) != 1 or watched[0][0].written or not watched[0][0].whole:
        why = "; ".join(session.notes()) or "Python runs between or beside its graphs"
        raise CaptureError(f"a folder holds models that are one graph, and this one is not: {why}")
    graph, given, results = watched[0]
    if session.latest is None or prepared is not session.latest[1]:
        raise CaptureError(
            "a call like the first one runs another program: save within the same contexts, such as autocast"
        )
    captured, runs = prepared.source, prepared.plan.costed.graph
    own = {task.target for task in runs.tasks} & captured.calls.keys()
    if own:
        raise CaptureError(f"a folder cannot hold functions of your own: {', '.join(sorted(own))}")
    leaves, tree = pytree.tree_flatten((args, kwargs))
    places = {id(leaf): at for at, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)}
    read = graph.region.inputs(given)
    for name, tensor in zip(runs.inputs, read):
        if id(tensor) not in places:
            raise CaptureError(
                f"{name} is not an argument but comes from Python, such as a tensor that the model holds and is no "
                "parameter or buffer; register_buffer it"
            )
    made = [id(item) for item in results if isinstance(item, torch.Tensor)]
    found, form = pytree.tree_flatten(output)
    inputs = tuple(places[id(tensor)] for tensor in read)
    opened = _opened(graph.region, prepared, inputs, leaves)
    library, program, any_size, kernels = _kernels(part, number, prepared, read, bool(opened[0]))
    state = {}
    for name, (owner, key) in captured.state.items():
        tensor = owner[key].detach()
        state[name] = next((known for known, other in weights.items() if other is tensor), "")
        if not state[name]:
            state[name] = f"{name} {number}" if name in weights else name
            weights[state[name]] = tensor
    return SavedProgram(
        prepared.plan,
        program,
        tuple(_form(leaf) for leaf in leaves),
        pytree.treespec_dumps(tree),
        inputs,
        tuple(_source(leaf, made, places, bool(captured.sizes)) for leaf in found),
        _tree(form, "its output"),
        tuple({kind.__module__: None for kind in _classes(form)}),
        state,
        captured.sizes,
        str(captured.home),
        captured.same,
        tuple(strides and tuple(strides) for strides in prepared.captured.strides),
        library,
        any_size,
        kernels,
        *opened,
    )


def _opened(region: Any, prepared: Prepared, inputs: Sequence[int], leaves: Sequence[Any]) -> tuple[Any, Any, Any]:
    """Return `lengths`, `expressions` and `conditions` of a program; empty if it is to serve the saved sizes alone:
    lengths that are no plain expressions in the lengths of tensors, or layouts that depend on them."""
    captured, made = prepared.captured, prepared.plan.costed.graph.outputs
    value = prepared.plan.costed.graph.value
    plain = all(
        wanted is None or tuple(wanted) == torch.empty(value[name].shape, device="meta").stride()
        for wanted, name in zip(captured.strides, made)
    )
    if not captured.sizes or not prepared.resizable or not plain:
        return (), (), ()
    fakes = dict(zip(inputs, region.inputs([place.fake for place in region.places])))
    lengths = tuple(
        tuple(str(getattr(getattr(size, "node", None), "expr", size)) for size in fakes[at].shape)
        if at in fakes
        else tuple(map(str, leaf.shape))
        if isinstance(leaf, torch.Tensor)
        else None
        for at, leaf in enumerate(leaves)
    )
    texts = tuple(map(str, expressions(captured.open or ())))
    conditions = tuple(conditions_of((captured.open or ())[0]))
    try:
        held = _lengths_of(lengths, leaves)
        if held is None or [_value(text, held) for text in texts] != [*captured.sizes]:
            return (), (), ()
        if not all(_value(text, held) for text in conditions):
            return (), (), ()
    except (ValueError, NameError):
        return (), (), ()
    return lengths, texts, conditions


_PLAIN = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.Compare, ast.Name, ast.Constant, ast.Load, ast.operator, ast.unaryop,
    ast.cmpop,
)  # fmt: skip


def _value(text: str, names: Mapping[str, Any]) -> Any:
    """Return the value of an arithmetic expression. Raises ValueError for any other, NameError for unknown names."""
    tree = ast.parse(text, mode="eval")
    if not all(isinstance(node, _PLAIN) for node in ast.walk(tree)):
        raise ValueError(f"{text} is not plain arithmetic")
    return eval(compile(tree, text, "eval"), {"__builtins__": {}}, dict(names))


def _lengths_of(lengths: Sequence[tuple[str, ...] | None], leaves: Sequence[Any]) -> dict[str, int] | None:
    """Return the number for each symbol in a call; None if its tensors have other forms than these."""
    held: dict[str, int] = {}
    pairs = []
    for own, leaf in zip(lengths, leaves, strict=True):
        if own is None:
            continue
        if not isinstance(leaf, torch.Tensor) or leaf.dim() != len(own):
            return None
        pairs += zip(own, leaf.shape)
    for text, length in pairs:
        if text.isidentifier():
            held.setdefault(text, length)
    return held if all(_value(text, held) == length for text, length in pairs) else None


def _source(leaf: Any, made: Sequence[int], places: Mapping[int, int], sized: bool) -> tuple[str, Any]:
    """Return what a leaf of the output is (`SavedProgram.results`)."""
    if isinstance(leaf, torch.Tensor):
        if id(leaf) in made:
            return "output", made.index(id(leaf))
        if id(leaf) in places:
            return "argument", places[id(leaf)]
    elif leaf is None or isinstance(leaf, (bool, str)) or (isinstance(leaf, (int, float)) and not sized):
        return "value", leaf
    raise CaptureError(
        f"a folder cannot hold an output of type {type(leaf).__name__}; return tensors, in tuples, lists, dicts or "
        "classes that torch.utils._pytree knows"
    )


def _tree(tree: pytree.TreeSpec, what: str) -> str:
    try:
        return pytree.treespec_dumps(tree)
    except NotImplementedError as error:
        raise CaptureError(f"the class of {what} cannot be written to a file: {error}") from None


def _classes(tree: pytree.TreeSpec) -> Iterator[type]:
    if tree.type is not None and tree.type.__module__ != "builtins":
        yield tree.type
    for child in tree.children():
        yield from _classes(child)


def _form(leaf: Any) -> tuple[Any, ...]:
    """Return the form of one leaf of the arguments. Raises CaptureError for one that a file cannot hold."""
    if isinstance(leaf, torch.Tensor):
        return tuple(leaf.shape), str(leaf.dtype)
    if leaf is None or isinstance(leaf, (bool, int, float, str)):
        return type(leaf).__name__, leaf
    raise CaptureError(
        f"a folder cannot hold an argument of type {type(leaf).__name__}; pass tensors, numbers and text, in tuples, "
        "lists and dicts"
    )


def _shown(arguments: Sequence[tuple[Any, ...]]) -> str:
    """Return the forms of arguments as text."""
    items = (
        f"{kind.removeprefix('torch.')} {list(shape)}" if isinstance(shape, tuple) else repr(kind)
        for shape, kind in arguments
    )
    return ", ".join(items)


def _kernels(
    part: Path, number: int, prepared: Prepared, inputs: Sequence[Any], opened: bool
) -> tuple[str, Program, bool, dict[str, SavedKernel]]:
    """Return the library of a program's kernels, the program in their pieces, whether they are for all sizes, and the
    kernels, whose files it writes."""
    executor = prepared.executor
    candidate = executor.selection.storable(inputs) if isinstance(executor, KernelExecutor) else None
    if candidate is None:
        if isinstance(executor, KernelExecutor) and executor.serving not in ("eager", "the model itself"):
            log.warning("kernels of %s cannot be saved: PyTorch's own are", executor.serving)
        return "eager", prepared.program, True, {}
    assert isinstance(executor, KernelExecutor)
    form = executor.selection.form
    if not (opened and candidate.any_size):
        form = dataclasses.replace(form, symbols=())
    kernels = {}
    for at, (name, (data, kernel)) in enumerate(_files(candidate, form, inputs)):
        file = f"{candidate.name}-{number}-{at}"
        (part / file).write_bytes(data)
        kernels[name] = dataclasses.replace(kernel, file=file)
    return candidate.name, candidate.program, bool(form.symbols), kernels


def _files(
    candidate: Candidate, form: Form, inputs: Sequence[Any]
) -> Iterator[tuple[str, tuple[bytes, SavedKernel]]]:
    library: Any = named(candidate.name)
    modules = modules_of(library, form, candidate.program)
    seen = seen_in(form, candidate.program, Replicas(), modules, inputs)
    for piece, _, count in pieces_of(form, candidate.program):
        module, (read, results) = modules[piece.tasks[0]][0], seen[piece.tasks[0]]
        with tracing(), threads(count):
            data = library.model(module, read)
        forms = (
            tuple((tuple(each.shape), each.stride(), str(each.dtype)) for each in tensors)
            for tensors in (read, results)
        )
        yield piece.tasks[0], (data, SavedKernel("", *forms, module.meta.get("bounds", {})))


class _Writer(pickle.Pickler):
    """Pickles plans and programs without what they have computed about themselves."""

    def reducer_override(self, item: Any) -> Any:
        if not dataclasses.is_dataclass(item) or isinstance(item, type) or not hasattr(item, "__dict__"):
            return NotImplemented
        return copyreg.__newobj__, (type(item),), _fields(item)  # type: ignore[attr-defined]


def _fields(item: Any) -> dict[str, Any]:
    return {field.name: getattr(item, field.name) for field in dataclasses.fields(item)}


class _Reader(pickle.Unpickler):
    """Reads plans and programs, and nothing else: a file cannot call other code."""

    def find_class(self, module: str, name: str) -> Any:
        if module.startswith("autopar.ir.") or (module == __name__ and name == "SavedKernel"):
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

    __slots__ = ("__weakref__", "_calls", "_folder", "_lock", "_pool", "_programs")

    def __init__(self, folder: Path) -> None:
        self._folder, self._pool, self._lock = folder, Replicas(), threading.RLock()
        programs, weights = _read(folder)
        self._programs: list[_Bound] = []
        self._calls: dict[tuple[Any, ...], _Bound] = {}
        for fields in programs:
            try:
                bound = _Bound(folder, SavedProgram(**fields), weights, self._pool, self._lock)
            except (ImportError, AttributeError) as error:
                raise AutoparError(f"{folder} needs what is not here: {error}; install it") from None
            self._programs.append(bound)
            self._calls.setdefault(bound.key, bound)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs for these arguments. Raises AutoparError for arguments of another form than those that
        were saved, and RunError if a task fails."""
        leaves: Sequence[Any] = args
        if kwargs or not all([isinstance(item, torch.Tensor) for item in args]):
            leaves, tree = pytree.tree_flatten((args, kwargs))
            key = (tree, *[_key(leaf) for leaf in leaves])
        else:
            key = (len(args), *[(item.shape, item.dtype) for item in args])
        bound = self._calls.get(key) or self._resized(key, leaves)
        if bound is None:
            saved = "; ".join(dict.fromkeys(_shown(each.saved.arguments) for each in self._programs))
            given = _shown([_form(leaf) for leaf in leaves])
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
    """A saved model that is also an instance of the class of the Python model it was loaded with, and shares its
    attributes. Its weights are those that were saved."""

    __slots__ = ()

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
        state = {name: (weights, key) for name, key in saved.state.items()}
        home = torch.device(saved.home)
        captured = Captured(graph, state, {}, list, list, home, sizes=saved.sizes).with_slices(graph)
        kernels = _restored(folder, saved, captured) if saved.kernels else None
        self.executor = self._any_size = Executor(captured, saved.plan, saved.program, pool, kernels)
        self._lock = lock if captured.stateful else nullcontext()
        self._state, self._inputs, self._kind = state, saved.inputs, home.type
        self._same = [(at, state.get(name), name) for at, name in saved.same]
        self._strides, self._dense = saved.strides if any(saved.strides) else (), False
        for name in saved.modules:
            import_module(name)
        self._output = pytree.treespec_loads(saved.output)
        self._single = len(saved.results) == 1 and self._output.is_leaf() and saved.results[0][0] == "output"
        tree = pytree.treespec_loads(saved.tree)
        tensors = all(isinstance(shape, tuple) for shape, _ in saved.arguments)
        args, kwargs = tree.children()
        flat = tensors and not kwargs.num_leaves and all(each.is_leaf() for each in args.children())
        forms = ((torch.Size(a), _dtype(b)) if isinstance(a, tuple) else (a, b) for a, b in saved.arguments)
        self.key = (args.num_leaves if flat else tree, *forms)

    def resized(self, key: tuple[Any, ...], leaves: Sequence[Any]) -> _Bound | None:
        """Return the program for arguments of other lengths; None if it does not serve them."""
        saved, program = self.saved, self.saved.program
        kinds = [kind for _, kind in self.key[1:]] == [kind for _, kind in key[1:]]
        held = _lengths_of(saved.lengths, leaves) if saved.lengths and saved.any_size and kinds else None
        if held is None or not all(_value(text, held) for text in saved.conditions):
            return None
        sizes = tuple(_value(text, held) for text in saved.expressions)
        graph = resized(saved.plan.costed.graph, sizes)
        if min(held.values()) < LEAST or graph is None or not keeps_caps(program, graph):
            return None
        other = copy.copy(self)
        other.executor = self._any_size.resized(sizes)
        other._strides, other._dense = (), bool(self._strides)
        return other

    def __call__(self, leaves: Sequence[Any]) -> Any:
        """Return the output of a call."""
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
    free = {name: sympy.Symbol(name) for own in saved.lengths for name in own or () if name.isidentifier()}
    symbols = tuple(sympy.sympify(_value(text, free)) for text in saved.expressions) if saved.any_size else ()
    form = Form(captured, saved.plan, saved.program, torch.get_num_threads(), symbols=symbols)
    modules, kernels = modules_of(library, form, saved.program), {}
    for piece, device, count in pieces_of(form, saved.program):
        (module, takes), kernel = modules[piece.tasks[0]], saved.kernels[piece.tasks[0]]
        module.meta["bounds"] = kernel.bounds
        read = [_like(form, device).zero_() for form in kernel.read]
        results = [_like(form, torch.device("meta")) for form in kernel.results]
        with threads(count), torch.no_grad():
            call = library.load((folder / kernel.file).read_bytes(), module, read)
            call = with_eager_layout(call, module, read, results)
        kernels[piece.tasks[0]] = Kernel(saved.library, call, takes)
    return kernels


def _like(form: tuple[Any, ...], device: torch.device) -> torch.Tensor:
    shape, strides, dtype = form
    return torch.empty_strided(shape, strides, dtype=_dtype(dtype), device=device)


def _key(leaf: Any) -> tuple[Any, ...]:
    """Return what a leaf of the arguments of a call must equal."""
    return (leaf.shape, leaf.dtype) if isinstance(leaf, torch.Tensor) else (type(leaf).__name__, leaf)


def _read(folder: Path) -> tuple[list[dict[str, Any]], dict[str, torch.Tensor]]:
    """Return the programs and weights in a folder. Raises AutoparError for a folder that is not one that `save` wrote."""
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
        raise AutoparError(f"{folder} is damaged: {error}; write it with fast.save({str(folder)!r})") from None
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
    fast = sharing(SavedModule, model, type(model))
    for name in SavedModel.__slots__[1:]:
        object.__setattr__(fast, name, getattr(saved, name))
    return fast
