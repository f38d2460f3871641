"""A graph of Dynamo's as it runs in eager mode."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from functools import cache
from typing import Any

from torch import fx
from torch.utils.checkpoint import checkpoint

from . import torch_private as private
from .torch_private import tag_activation_checkpoint
from .trace_state import restored_state

log = logging.getLogger("autopar")


def in_eager(module: fx.GraphModule) -> fx.GraphModule:
    """Return a graph of Dynamo's in the form for eager mode; `module` itself if it has no regions under
    `torch.utils.checkpoint`.

    Dynamo's operator for such a region leaves the random numbers of the recomputation to the compiler. In
    eager mode, it would draw other masks in the backward than in the forward.
    """
    parts = {name: part for name, part in module.named_children() if isinstance(part, fx.GraphModule)}
    inner = {name: eager for name, part in parts.items() if (eager := in_eager(part)) is not part}
    if not inner and not any(node.target is tag_activation_checkpoint for node in module.graph.nodes):
        return module
    graph = copy.deepcopy(module.graph)
    for node in graph.nodes:
        if node.target is tag_activation_checkpoint:
            node.target = _checkpointed
    eager = fx.GraphModule(module, graph)
    eager.meta.update(module.meta)
    for name, part in inner.items():
        setattr(eager, name, part)
    return eager


@cache
def warn_of_checkpoints(name: str) -> None:
    """Warn, once for each name of a model, that its regions under `torch.utils.checkpoint` save no memory."""
    log.warning(
        "%s: gradient checkpointing (torch.utils.checkpoint) saves no memory in a placed model, which keeps "
        "these activations like all others; pass recompute=0.5, the share of bytes to keep, instead",
        name,
    )


def unprinted(model: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls a model but leaves its errors alone: if a call of an `fx.GraphModule` fails,
    torch prints the generated code, strips the error's traceback, and stays in the modes that the graph has entered."""
    if not isinstance(model, fx.GraphModule):
        return model
    # torch may generate the code only at first use; until then, `forward` is such a call itself.
    _ = model.code
    forward = model.forward

    def call(*args: Any, **kwargs: Any) -> Any:
        with restored_state():
            return forward(*args, **kwargs)

    return call


def _checkpointed(body: fx.GraphModule, *args: Any, **options: Any) -> Any:
    """Run a region of a graph under a checkpoint with the user's options. As always under `torch.compile`,
    the checkpoint is not reentrant and draws the same random numbers again."""
    options.update(use_reentrant=False, preserve_rng_state=True)
    if private.CONTEXT_FN in body.meta:
        options["context_fn"] = body.meta[private.CONTEXT_FN]
    return checkpoint(unprinted(body), *args, **options)
