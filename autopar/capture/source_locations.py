"""Source locations of traced nodes: module path and user's line; and readable names for Dynamo's."""

from __future__ import annotations

import functools
import linecache
import os
import re
import sysconfig

import torch
from torch import fx, nn

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_LIBRARIES = tuple(
    os.path.abspath(path) + os.sep
    for path in dict.fromkeys(sysconfig.get_path(key) for key in ("purelib", "platlib"))
)


def located(node: torch.fx.Node) -> tuple[str, str, str]:
    """Return module path, `file:line` and code of a node; "" for each that is unknown."""
    return module_path(node), *line(node.meta.get("stack_trace") or "")


def at_line(node: torch.fx.Node) -> str:
    """Return ` at file:line: `code`` of a node; "" if it is unknown."""
    _, where, code = located(node)
    return f" at {where}: `{code}`" if where else ""


def origins(graph: torch.fx.Graph) -> dict[torch.fx.Node, tuple[str, str, str]]:
    """Return module path, `file:line` and code of each call in a graph of forward and backward.

    A node of the backward has the location of its call in the forward. A sum of two gradients has that of the
    last one.
    """
    calls = [node for node in graph.nodes if node.op == "call_function"]
    partner: dict[int, torch.fx.Node] = {}
    for node in calls:
        if node.meta.get("nn_module_stack"):
            partner.setdefault(node.meta.get("seq_nr", -1), node)
    places: dict[torch.fx.Node, tuple[str, str, str]] = {}
    for node in calls:
        place, forward = located(node), partner.get(node.meta.get("seq_nr", -1))
        if "nn_module_stack" not in node.meta:
            if not place[1] and forward is not None:
                place = located(forward)
            if not any(place):
                known = [places[source] for source in node.all_input_nodes if source in places]
                place = next((location for location in reversed(known) if any(location)), place)
        places[node] = place
    return places


def module_path(node: torch.fx.Node) -> str:
    """Return the path of the user's innermost module in which the node was traced."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if not stack:
        return ""
    return str(next(reversed(stack.values()))[0]).split("@", 1)[0]


@functools.lru_cache(maxsize=65536)
def line(trace: str) -> tuple[str, str]:
    """Return `file:line` and code of the deepest frame outside torch, or of the deepest one if there is none."""
    frames = [(found["file"], int(found["line"])) for found in _FRAME.finditer(trace)]
    for file, number in reversed(frames):
        if foreign(file):
            return f"{short(file)}:{number}", linecache.getline(file, number).strip()
    for file, number in reversed(frames):
        if not file.startswith((_OWN, "<eval_with_key")):
            return f"{short(file)}:{number}", linecache.getline(file, number).strip()
    return "", ""


def foreign(file: str) -> bool:
    """Return True if a file is neither torch's nor autopar's nor generated."""
    return not file.startswith((_TORCH, _OWN, "<eval_with_key"))


@functools.cache
def short(file: str) -> str:
    """Return a file name relative to the directory of installed libraries, or to the working directory."""
    for library in _LIBRARIES:
        if file.startswith(library):
            return file.removeprefix(library)
    here = os.getcwd() + os.sep
    return file.removeprefix(here)


def name_modules(module: fx.GraphModule, root: nn.Module | None) -> None:
    """Label each node with its module's path in `state_dict`."""
    paths = {str(id(child)): path for path, child in root.named_modules()} if root is not None else {}
    for part in module.modules():
        for node in part.graph.nodes if isinstance(part, fx.GraphModule) else ():
            stack = node.meta.get("nn_module_stack")
            if stack:
                node.meta["nn_module_stack"] = {
                    key: (paths.get(str(key).split("@")[0], path_of(str(path))), *kind)
                    for key, (path, *kind) in stack.items()
                }


def path_of(source: str) -> str:
    """Return a readable name for a source of Dynamo: `L['self']._modules['0']._parameters['weight']` is `0.weight`,
    `L['batch']['mask']` is `batch.mask`."""
    keys = re.findall(r"\['?([^'\]]+)'?\]|\.(\w+)", source.split("@")[0])
    names = [first or second for first, second in keys]
    inner = ("_modules", "_parameters", "_buffers", "__dict__", "__closure__", "cell_contents")
    names = [name for name in names if name not in inner]
    return ".".join(names[1:] if names[:1] == ["self"] else names)


def first_line(text: str) -> str:
    """Return the first sentence of Dynamo's explanation."""
    return text.strip().split("\n", 1)[0].rstrip(".")
