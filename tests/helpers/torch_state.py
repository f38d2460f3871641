"""State of torch in this thread and process that a call must leave as it was."""

from __future__ import annotations

import gc
import logging
import warnings
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch._dynamo import guards
from torch._dynamo.variables.builder import VariableBuilder
from torch.autograd import forward_ad
from torch.distributions import Distribution

KINDS = ("cpu", "cuda", "xpu", "mps")
LOGGERS = (
    "",
    "autopar",
    "torch",
    "torch._dynamo",
    "torch._subclasses.fake_tensor",
    "torch.fx",
    "torch._functorch",
)
OPERATORS = (
    "linear",
    "dropout",
    "einsum",
    "lstm",
    "gru",
    "scaled_dot_product_attention",
    "batch_norm",
    "matmul",
)


def nesting() -> int:
    """Return the number of autocast regions that this thread is in."""
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()


def state() -> dict[str, Any]:
    """Return a description of the state, to be compared with an earlier one by `==`."""
    hooks = torch._C._autograd._saved_tensors_hooks_get_disabled_error_message
    kernels = (getattr(torch.ops.aten, name) for name in OPERATORS)
    return {
        "grad": torch.is_grad_enabled(),
        "forward grad": torch._C._is_fwd_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": [(torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in KINDS],
        "nesting": nesting(),
        "cache": torch.is_autocast_cache_enabled(),
        "transforms": torch._C._functorch.get_dynamic_layer_stack_depth(),
        "in-place requires_grad": torch._C._functorch.get_inplace_requires_grad_allowed(),
        "dual level": (forward_ad._current_level, _dual()),
        "device": torch.get_default_device(),
        "dtype": torch.get_default_dtype(),
        "deterministic": (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        "hooks": hooks(),
        "attention": (
            torch.backends.cuda.flash_sdp_enabled(),
            torch.backends.cuda.math_sdp_enabled(),
            torch.backends.cuda.mem_efficient_sdp_enabled(),
            torch._C._get_sdp_priority_order(),
        ),
        "modes": (torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()),
        "distributions": Distribution._validate_args,
        "compiling": torch.compiler._is_compiling_flag,
        "anomaly": torch.is_anomaly_enabled(),
        "logs": [logging.getLogger(name).level for name in LOGGERS],
        "patches": (
            [str(dict(each.default.py_kernels) if hasattr(each, "default") else {}) for each in kernels],
            len(decomposition_table),
            [id(getattr(torch.SymInt, name)) for name in ("__floordiv__", "__mod__")],
            id(VariableBuilder.wrap_symfloat),
            id(guards.profile_guard_manager),
            id(warnings.showwarning),
        ),
        "settings": torch._dynamo.config.get_config_copy(),
        "collector": gc.isenabled(),
        "threads": torch.get_num_threads(),
    }


def _dual() -> bool:
    """Return True if torch's C++ is in a level of forward-mode AD, of which Python may not know."""
    try:
        torch._C._exit_dual_level(level=torch._C._enter_dual_level())
    except RuntimeError:
        return True
    return False


def changed(before: dict[str, Any]) -> dict[str, Any]:
    """Return what differs from an earlier `state`, with its values then and now."""
    now = state()
    return {name: (value, now[name]) for name, value in before.items() if value != now[name]}
