"""Where the user wrote it: the module path and source line of a traced node."""

from __future__ import annotations

import functools
import linecache
import os
import re
import sys
import sysconfig
from typing import Any

import torch

from .torch_private import origin

ROOT = "model"
"""Name of the user's module inside the one that is traced; modules that a function uses are
`model.<name>`.
"""

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_LIBRARIES = tuple(
    os.path.abspath(path) + os.sep
    for path in dict.fromkeys(sysconfig.get_path(key) for key in ("purelib", "platlib"))
)


class Locations:
    """Module paths and source lines of a graph, with the nodes of inlined regions (`no_grad`, autocast)
    resolved.

    Decomposing writes the code of such a region, generated, in the place of the user's; `before` is the
    program as it was, where each region is a submodule whose nodes still know.
    """

    def __init__(self, before: torch.fx.GraphModule | None = None) -> None:
        self.regions: dict[str, torch.fx.GraphModule] = {}
        if before is not None:
            self._collect(before)

    def _collect(self, module: torch.fx.GraphModule) -> None:
        for node in module.graph.nodes:
            if node.op == "call_function" and not isinstance(node.target, torch._ops.OpOverload):
                for argument in node.args:
                    if isinstance(argument, torch.fx.Node) and argument.op == "get_attr":
                        inner = getattr(module, str(argument.target), None)
                        if isinstance(inner, torch.fx.GraphModule):
                            self.regions[node.name] = inner
                            self._collect(inner)

    def find(self, node: torch.fx.Node) -> tuple[str, str, str]:
        """Module path, `file:line` and code; each "" when unknown."""
        trace = node.meta.get("stack_trace") or ""
        if "<eval_with_key>" in trace and origin(node) in self.regions:
            made = trace.strip().rsplit("\n", 1)[-1].split("=", 1)[0].strip()
            for inner in self.regions[origin(node)].graph.nodes:
                if inner.name == made:
                    return module_path(inner), *line(inner.meta.get("stack_trace") or "")
        return module_path(node), *line(trace)


class Origins(Locations):
    """Module paths and source lines of a graph of forward and backward.

    A node of the backward is where the user wrote what it is the gradient of; the sum of two gradients, where the
    last of them comes from.
    """

    def __init__(self, graph: torch.fx.Graph) -> None:
        super().__init__()
        self.partner: dict[int, torch.fx.Node] = {}
        self.places: dict[torch.fx.Node, tuple[str, str, str]] = {}
        for node in graph.nodes:
            if node.op == "call_function" and node.meta.get("nn_module_stack"):
                self.partner.setdefault(node.meta.get("seq_nr", -1), node)
        for node in graph.nodes:
            if node.op == "call_function":
                self.places[node] = self._place(node)

    def find(self, node: torch.fx.Node) -> tuple[str, str, str]:
        """Module path, `file:line` and code; each "" when unknown."""
        return self.places[node]

    def _place(self, node: torch.fx.Node) -> tuple[str, str, str]:
        place = super().find(node)
        partner = self.partner.get(node.meta.get("seq_nr", -1))
        if "nn_module_stack" in node.meta:
            return place
        if not place[1] and partner is not None:
            place = super().find(partner)
        if not any(place):
            known = [self.places[source] for source in node.all_input_nodes if source in self.places]
            place = next((found for found in reversed(known) if any(found)), place)
        return place


def module_path(node: torch.fx.Node) -> str:
    """Path of the innermost module of the user's that the node was traced in."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if not stack:
        return ""
    path = str(next(reversed(stack.values()))[0]).split("@", 1)[0]
    return "" if path == ROOT else path.removeprefix(ROOT + ".")


@functools.lru_cache(maxsize=65536)
def line(trace: str) -> tuple[str, str]:
    """`file:line` and code of the deepest frame outside torch, or of the deepest when there is none."""
    frames = [(found["file"], int(found["line"])) for found in _FRAME.finditer(trace)]
    for file, number in reversed(frames):
        if foreign(file):
            return f"{short(file)}:{number}", linecache.getline(file, number).strip()
    for file, number in reversed(frames):
        if not file.startswith((_OWN, "<eval_with_key")):
            return f"{short(file)}:{number}", linecache.getline(file, number).strip()
    return "", ""


def caller() -> str:
    """` at file:line: `code`` of the frame that is running, outside torch; "" when there is none."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        file, number = frame.f_code.co_filename, frame.f_lineno
        if foreign(file):
            code = linecache.getline(file, number).strip()
            return f" at {short(file)}:{number}" + (f": `{code}`" if code else "")
        frame = frame.f_back
    return ""


def foreign(file: str) -> bool:
    """Whether a file is neither torch's nor ours nor generated."""
    return not file.startswith((_TORCH, _OWN, "<eval_with_key"))


@functools.cache
def short(file: str) -> str:
    """A file as a reader would name it: from the library's name on, or from the working directory."""
    for library in _LIBRARIES:
        if file.startswith(library):
            return file.removeprefix(library)
    here = os.getcwd() + os.sep
    return file.removeprefix(here)
