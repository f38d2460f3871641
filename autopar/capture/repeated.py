"""Lists of equal modules, of which three stand for all while a model is captured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

FEWEST = 5
"""Equal modules from which a list is worth to be shortened."""


@contextmanager
def shortened(model: nn.Module) -> Iterator[dict[str, int]]:
    """The model with three modules in each list of equal ones, for the block; by the list's path, how many there are.

    Modules are equal that have one class, one printed form, and parameters of the same shapes and dtypes.
    """
    found: dict[str, tuple[nn.Module, dict[str, nn.Module | None]]] = {}
    for path, module in model.named_modules():
        if isinstance(module, (nn.ModuleList, nn.Sequential)) and len(module) >= FEWEST:
            inside = any(path.startswith(f"{other}.") for other in found)
            if path and not inside and len({_form(child) for child in module}) == 1:
                found[path] = module, dict(module._modules)
    try:
        for module, children in found.values():
            module._modules = dict(list(children.items())[:3])
        yield {path: len(children) for path, (_, children) in found.items()}
    finally:
        for module, children in found.values():
            module._modules = children


def _form(module: nn.Module) -> tuple[object, ...]:
    tensors = [*module.named_parameters(), *module.named_buffers()]
    return type(module), str(module), tuple((name, t.shape, t.dtype, t.requires_grad) for name, t in tensors)
