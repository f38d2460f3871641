"""A compiled model as a folder of files, which `loaded` serves in other processes without a capture.

`model.json` says what the folder holds and for what it holds. `programs.pickle` has a `SavedProgram` for each program;
its reader takes no class but those of plans and programs. `weights.pt` is read by `torch.load` as weights only, into
memory that all processes of a machine share. Each kernel is a file of its library.
"""

from __future__ import annotations

import copyreg
import dataclasses
import json
import logging
import pickle
import platform
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..capture.region import slots
from ..capture.results import expressions
from ..capture.torch_private import conditions_of
from ..costs.calibrate import threads
from ..errors import AutoparError, CaptureError
from ..ir.program import Program
from ..runtime.kernels import named, tracing
from ..runtime.kernels.piece_module import value_of
from ..runtime.replicas import Replicas
from .kernel_build import modules_of, pieces_of, seen_in
from .kernel_selection import KernelExecutor
from .kernel_verdict import installed
from .loaded import ABOUT, FORMAT, PROGRAMS, WEIGHTS, SavedKernel, SavedProgram, form_of, lengths_of, shown
from .session import WATCHED, Session
from .stages import Prepared

log = logging.getLogger("autopar")


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
    name = uuid.uuid4().hex
    part, old = (path.parent / f".{path.name}.{name}.{end}" for end in ("part", "old"))
    part.mkdir()
    try:
        _write(part, session, run, known)
        if path.exists():
            path.replace(old)
        part.replace(path)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _write(part: Path, session: Session, run: Callable[..., Any], known: Sequence[Prepared]) -> None:
    weights: dict[str, torch.Tensor] = {}
    programs = [_saved(part, number, session, run, each, weights) for number, each in enumerate(known)]
    torch.save(weights, part / WEIGHTS)
    with (part / PROGRAMS).open("wb") as file:
        _Writer(file, pickle.HIGHEST_PROTOCOL).dump([_fields(each) for each in programs])
    libraries = {each.library for each in programs} - {"eager"}
    about = {
        "format": FORMAT,
        "versions": {name: installed(name) for name in ("autopar", "torch", *sorted(libraries))},
        "processor": platform.machine(),
        "accelerators": sorted(
            device.name
            for device in session.machine.devices
            if torch.device(device.torch_device).type != "cpu"
        ),
        "calls": [shown(each.arguments, each) for each in programs],
        "bytes": {file.name: file.stat().st_size for file in sorted(part.iterdir())},
    }
    (part / ABOUT).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


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
    captured, runs = prepared.source, prepared.plan.costed.graph
    args, kwargs = prepared.example.filled()
    watched: list[Any] = []
    with torch.inference_mode(prepared.example.inference), torch.set_grad_enabled(prepared.example.grad):
        changed = runs.mutated & captured.state.keys()
        before = [(owner[key], owner[key].clone()) for owner, key in map(captured.state.__getitem__, changed)]
        token = WATCHED.set(watched)
        try:
            with torch.random.fork_rng():
                output = run(*args, **kwargs)
        finally:
            WATCHED.reset(token)
            with torch.no_grad():
                for tensor, known in before:
                    tensor.copy_(known)
    if len(watched) != 1 or watched[0][0].written or not watched[0][0].whole:
        why = "; ".join(session.notes()) or "Python runs between or beside its graphs"
        raise CaptureError(f"a folder holds models that are one graph, and this one is not: {why}")
    graph, given, results = watched[0]
    if session.latest is None or prepared is not session.latest[1]:
        raise CaptureError(
            "a call like the first one runs another program: save within the same contexts, such as autocast"
        )
    if own := {task.target for task in runs.tasks} & captured.calls.keys():
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
    if captured.sizes and not opened[0]:
        log.warning(
            "%s is saved for the sizes of its calls since they were opened alone: before save, call it once more with "
            "each size that servers get",
            captured.graph.name,
        )
    library, program, any_size, kernels = _kernels(part, number, prepared, read, bool(opened[0]))
    paths = {(id(owner), key): path for path, owner, key in slots(session.root)}
    state = {
        name: paths.get((id(owner), key), f"{name} {number}") for name, (owner, key) in captured.state.items()
    }
    weights |= {state[name]: owner[key].detach() for name, (owner, key) in captured.state.items()}
    return SavedProgram(
        prepared.plan,
        program,
        tuple(form_of(leaf) for leaf in leaves),
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


def _opened(
    region: Any, prepared: Prepared, inputs: Sequence[int], leaves: Sequence[Any]
) -> tuple[Any, Any, Any]:
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
        held = lengths_of(lengths, leaves)
        if held is None or [value_of(text, held) for text in texts] != [*captured.sizes]:
            return (), (), ()
        if not all(value_of(text, held) for text in conditions):
            return (), (), ()
    except ValueError:
        return (), (), ()
    return lengths, texts, conditions


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


def _kernels(
    part: Path, number: int, prepared: Prepared, inputs: Sequence[Any], opened: bool
) -> tuple[str, Program, bool, dict[str, SavedKernel]]:
    """Return the library of a program's kernels, the program in their pieces, whether they are for all sizes, and the
    kernels, whose files it writes."""
    executor = prepared.executor
    candidate = executor.selection.storable(inputs) if isinstance(executor, KernelExecutor) else None
    if candidate is None:
        if isinstance(executor, KernelExecutor) and executor.serving not in ("eager", "the model itself"):
            log.warning(
                "saved with PyTorch's kernels, as those of %s cannot be saved; those of onnxruntime and openvino "
                "can: kernels=\"onnxruntime\" (pip install 'autopar[onnxruntime,openvino]')",
                executor.serving,
            )
        return "eager", prepared.program, True, {}
    assert isinstance(executor, KernelExecutor)
    form = executor.selection.form
    if not (opened and candidate.any_size):
        form = dataclasses.replace(form, symbols=())
    library: Any = named(candidate.name)
    modules = modules_of(library, form, candidate.program)
    seen = seen_in(form, candidate.program, Replicas(), modules, inputs)
    kernels = {}
    for at, (piece, _, count) in enumerate(pieces_of(form, candidate.program)):
        name, file = piece.tasks[0], f"{candidate.name}-{number}-{at}"
        module, (read, results) = modules[name][0], seen[name]
        with tracing(), threads(count):
            library.store(library.model(module, read), str(part / file))
        bounds = module.meta.get("bounds", {})
        kernels[name] = SavedKernel(file, _layouts(read), _layouts(results), bounds)
    return candidate.name, candidate.program, bool(form.symbols), kernels


def _layouts(tensors: Sequence[torch.Tensor]) -> tuple[tuple[Any, ...], ...]:
    return tuple((tuple(each.shape), each.stride(), str(each.dtype)) for each in tensors)


class _Writer(pickle.Pickler):
    """Pickles plans and programs without what they have computed about themselves."""

    def reducer_override(self, item: Any) -> Any:
        if not dataclasses.is_dataclass(item) or isinstance(item, type) or not hasattr(item, "__dict__"):
            return NotImplemented
        return copyreg.__newobj__, (type(item),), _fields(item)  # type: ignore[attr-defined]


def _fields(item: Any) -> dict[str, Any]:
    return {field.name: getattr(item, field.name) for field in dataclasses.fields(item)}
