"""Activation checkpoints (`torch.utils.checkpoint`) in Dynamo's graphs."""

from __future__ import annotations

import copy
from typing import Any

from torch import fx
from torch.utils.checkpoint import checkpoint

from .torch_private import CONTEXT_FN, tag_activation_checkpoint


def in_eager(module: fx.GraphModule) -> fx.GraphModule:
    """Return the graph as it is to run in eager mode, `module` itself if it has no checkpointed regions.

    Dynamo's operator for a region leaves the random numbers of the recomputation to the compiler: in eager mode it
    would draw other masks in the backward than in the forward.
    """
    parts = {name: part for name, part in module.named_children() if isinstance(part, fx.GraphModule)}
    inner = {name: made for name, part in parts.items() if (made := in_eager(part)) is not part}
    if not inner and not any(node.target is tag_activation_checkpoint for node in module.graph.nodes):
        return module
    graph = copy.deepcopy(module.graph)
    for node in graph.nodes:
        if node.target is tag_activation_checkpoint:
            node.target = _checkpointed
    made = fx.GraphModule(module, graph)
    made.meta.update(module.meta)
    for name, part in inner.items():
        setattr(made, name, part)
    return made


def _checkpointed(body: fx.GraphModule, *args: Any, **options: Any) -> Any:
    """Run a region of a graph under a checkpoint with the user's options. As everywhere under `torch.compile`, none is
    reentrant, and all draw the same numbers again."""
    options.update(use_reentrant=False, preserve_rng_state=True)
    if CONTEXT_FN in body.meta:
        options["context_fn"] = body.meta[CONTEXT_FN]
    return checkpoint(body, *args, **options)
