"""ONNX Runtime, through `torch.onnx.export`; weights are part of the model that it loads."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch

from .edge_cases import exact, in_range
from .stack import Compilation, Refusal, Stack, exported, keeps_numpy

LARGEST = 2**31 - 2**26
"""Limit on the bytes of weights, which are in one file with the graph."""

SPIN_US = 100
"""Microseconds for which an idle helper thread spins before it sleeps, more than a call takes on its way to the next
kernel (docs/kernels.md)."""


def missing() -> str:
    """Return the reason why it cannot be used, such as missing packages; "" if it can."""
    lacks = [name for name in ("onnxruntime", "onnx", "onnxscript") if not find_spec(name)]
    return f"not installed: {', '.join(lacks)} (pip install 'autopar[onnxruntime]')" if lacks else ""


def compile(work: Compilation) -> None:
    """Export a piece. Raises Refusal if it cannot be exported or is too large for one file, and the libraries'
    errors."""
    if sum(tensor.nbytes for tensor in work.module.buffers()) > LARGEST:
        raise Refusal("its weights are larger than the 2 GiB of an ONNX file")
    try:
        made = _converted(work, decompose=False)
    except torch.onnx.OnnxExporterError:
        try:
            made = _converted(work, decompose=True)
        except torch.onnx.OnnxExporterError as error:
            # Its own text begins with advice to developers of the exporter.
            raise Refusal(f"{_first(error)}\n{error}") from error
    (work.folder / "piece.onnx").write_bytes(made.model_proto.SerializeToString())


def _converted(work: Compilation, decompose: bool) -> torch.onnx.ONNXProgram:
    """Return a piece as a graph of ONNX, by way of decomposed operators if it has any that the exporter lists, or
    `decompose`. Raises the exporter's errors."""
    graph = exported(work, exact(work.module))

    def decomposed(table: dict[Any, Any]) -> torch.export.ExportedProgram:
        if any(node.target in table for node in graph.graph.nodes):
            return type(graph).run_decompositions(graph, table)
        return graph

    if not decompose:
        # The exporter calls this method, which traces the graph twice more even if nothing in it changes.
        vars(graph)["run_decompositions"] = decomposed
    with torch.no_grad():
        made = torch.onnx.export(graph, tuple(work.examples), dynamo=True, verbose=False)
    assert made is not None
    return made


def _first(error: BaseException) -> BaseException:
    """Return the first error in a chain of causes."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def load(work: Compilation) -> Callable[..., Any]:
    """Return the kernel of a piece: its own session."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = work.threads, 1
    options.log_severity_level = 3
    options.add_session_config_entry(*_spinning(work.lanes))
    session = onnxruntime.InferenceSession(
        str(work.folder / "piece.onnx"), options, providers=["CPUExecutionProvider"]
    )
    names = [each.name for each in session.get_inputs()]
    # The exporter drops inputs that a piece does not use.
    given = [str(node.target) for node in work.module.graph.find_nodes(op="placeholder")]
    taken = [(name, given.index(name)) for name in names]
    made = [each.name for each in session.get_outputs()]
    # `session.run` also looks up the names of inputs and outputs, which takes a seventh of a short call.
    run = getattr(session, "_sess", session).run

    def call(*tensors: torch.Tensor) -> list[torch.Tensor]:
        feeds = {name: tensors[at].numpy(force=True) for name, at in taken}
        return [torch.from_numpy(array) for array in run(made, feeds, None)]

    # ONNX Runtime counts negative ids from the end.
    return in_range(call, work)


def _spinning(lanes: int) -> tuple[str, str]:
    """Return the session's option for how long idle helper threads spin: by default for up to 50 ms after a call,
    on cores that other lanes or the caller need."""
    import onnxruntime

    if lanes > 1:
        return "session.intra_op.allow_spinning", "0"
    if tuple(map(int, onnxruntime.__version__.split(".")[:2])) >= (1, 26):
        return "session.intra_op.spin_duration_us", str(SPIN_US)
    return "session.force_spinning_stop", "1"


STACK = Stack("onnxruntime", True, missing, keeps_numpy, load, compile, open=True)
"""ONNX Runtime's CPU provider, all graph optimizations on."""
