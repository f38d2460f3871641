"""The settings of Dynamo in captures."""

from __future__ import annotations

from typing import Any

import torch

from .. import system

CAPTURES = 64
"""Limit on the captures of one function."""
RECAPTURED = (
    f"it was captured {CAPTURES} times, for other values of something that a graph holds fixed, such as a text; "
    "TORCH_LOGS=recompiles names it; make it a tensor or a number"
)

SETTINGS: dict[str, Any] = {
    # Otherwise, a recurrent layer is a graph break.
    "allow_rnn": True,
    # Otherwise, Dynamo does not notice hooks that are added later.
    "skip_nnmodule_hook_guards": False,
    # Otherwise, a count that a module keeps is a new capture in each call.
    "allow_unspec_int_on_nn_module": True,
    # Otherwise, each value of a float is a new capture.
    "specialize_float": False,
    # Otherwise, Dynamo does not notice when the default of a parameter changes.
    "skip_guards_on_constant_func_defaults": False,
    # Otherwise, torch draws numpy's random numbers, and they differ.
    "use_numpy_random_stream": True,
    # Otherwise, a gradient that forward itself computes is a graph break.
    "trace_autograd_ops": True,
    # Otherwise, `addcmul_` and others are computed in parts, whose last bits differ.
    "enable_dynamo_decompositions": False,
    # If Dynamo cannot take a frame, it runs as the user wrote it, and its errors are the user's own.
    "suppress_errors": True,
    # A collection would visit all objects that capture has made, and most of them stay alive.
    "run_gc_after_compile": False,
    # Past this limit, a model runs eagerly for ever. Each change of a constant that a forward reads counts.
    "recompile_limit": CAPTURES,
    # Otherwise, DistributedDataParallel splits graphs at its gradient buckets, and no plan sees the whole.
    "optimize_ddp": False,
}
FIXED: dict[str, Any] = {
    "specialize_float": True,
    "specialize_int": True,
    "allow_unspec_int_on_nn_module": False,
}
"""Settings under which a capture holds for the values of its floats and counts alone."""
if system.release(torch.__version__) < (2, 13):
    # Otherwise, Dynamo misses changes of a module's tensors and of other objects that its forward reads.
    SETTINGS |= {
        "use_recursive_dict_tags_for_guards": False,
        "skip_tensor_guards_with_matching_dict_tags": False,
    }
else:
    # Otherwise, torch.utils.swap_tensors refuses the weights, as before 2.13.
    SETTINGS["invalidate_compile_context_weakrefs"] = True
