"""What forward asks of autograd itself, as nodes of a record that is differentiated later.

`torch.export` drops the backward of an `autograd.Function` and the hooks of tensors without a word. Here each is an
operator of the record, and `Asked.again` does what the user wrote at the place of that operator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import library

from ..errors import CaptureError
from .holders import Holders
from .private import has_side_effect, pytree
from .signature import Arguments

library.define("autopar::function", "(str key, Tensor[] given) -> Tensor[]")
library.define("autopar::hook", "(str key, Tensor x) -> ()")
library.define("autopar::gradient", "(str key, Tensor[] given) -> Tensor[]")
library.define("autopar::require", "(str key, Tensor x) -> ()")
FUNCTION = has_side_effect(torch.ops.autopar.function.default)
HOOK = has_side_effect(torch.ops.autopar.hook.default)
GRADIENT = torch.ops.autopar.gradient.default
REQUIRE = has_side_effect(torch.ops.autopar.require.default)


@dataclass
class Applied:
    """One call of an `autograd.Function`; what it returns besides tensors is known once it has run."""

    function: Any
    arguments: Arguments
    leaves: tuple[Any, ...] = ()
    spec: Any = None

    def run(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Call it on these tensors; the tensors it returns."""
        args, _ = self.arguments.join(tensors)
        leaves, self.spec = pytree.tree_flatten(self.function.apply(*args))
        self.leaves = tuple(None if isinstance(leaf, torch.Tensor) else (leaf,) for leaf in leaves)
        return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

    def rebuild(self, tensors: list[torch.Tensor]) -> Any:
        """What it returned, with these tensors in it."""
        rest = iter(tensors)
        leaves = [next(rest) if leaf is None else leaf[0] for leaf in self.leaves]
        return pytree.tree_unflatten(leaves, self.spec)


@dataclass(frozen=True)
class Hooked:
    """One hook on a tensor; `where` is where forward registered it."""

    hook: Callable[[torch.Tensor], Any]
    where: str
    holders: Holders

    def run(self, grad: torch.Tensor) -> torch.Tensor:
        """The gradient as the hook changes it; CaptureError for a hook that is there for something else."""
        try:
            changed = self.hook(grad)
        except Exception as error:
            raise CaptureError(
                f"the hook on a tensor{self.where} cannot be traced ({type(error).__name__}: {error}); write it as "
                "a torch.autograd.Function that is given every tensor it reads"
            ) from error
        kept = self.holders.put_back()
        if kept or not isinstance(changed, torch.Tensor):
            what = "returns no gradient"
            for name, tensor in kept.items():
                what = f"keeps gradients in {name}" if tensor else f"changes {name}"
            raise CaptureError(
                f"the hook on a tensor{self.where} {what}, so it does what a graph does not repeat; return the "
                "tensor from forward and register the hook on it there, or remove it"
            )
        return changed


@dataclass(frozen=True)
class Gradient:
    """One `torch.autograd.grad` of so many `outputs` with respect to so many `inputs`.

    `seeds` says of each output whether its gradient is given. `create` is `create_graph`.
    """

    outputs: int
    inputs: int
    seeds: tuple[bool, ...]
    create: bool
    where: str

    def run(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """The gradients, from outputs, inputs and given gradients in one list."""
        outputs, inputs = tensors[: self.outputs], tensors[self.outputs : self.outputs + self.inputs]
        rest = iter(tensors[self.outputs + self.inputs :])
        seeds = [next(rest) if given else None for given in self.seeds]
        found = torch.autograd.grad(
            outputs, inputs, seeds, retain_graph=True, create_graph=self.create, allow_unused=True
        )
        if any(item is None for item in found):
            raise CaptureError(
                f"forward differentiates{self.where} with respect to a tensor that is not used, which is not captured; "
                "leave that tensor out"
            )
        return list(found)


@dataclass
class Asked:
    """What one call asked of autograd, by the keys in its record."""

    functions: dict[str, Applied] = field(default_factory=dict)
    hooks: dict[str, Hooked] = field(default_factory=dict)
    gradients: dict[str, Gradient] = field(default_factory=dict)

    def again(self, target: Any, key: str, given: Any) -> Any:
        """Do what a node of the record stands for."""
        if target is FUNCTION:
            return self.functions[key].run(given)
        if target is GRADIENT:
            return self.gradients[key].run(given)
        if target is REQUIRE:
            given.requires_grad_(key == "True")
            return None
        given.register_hook(self.hooks[key].run)
        return None


ASKED = (FUNCTION, HOOK, GRADIENT, REQUIRE)
"""The operators that stand for what was asked."""
RECORDING: list[Asked] = []
"""The call that is recorded now; captures take turns."""


@library.register_fake("autopar::function")
def _function(key: str, given: list[torch.Tensor]) -> list[torch.Tensor]:
    with torch.no_grad():
        return [torch.empty_like(tensor) for tensor in RECORDING[-1].functions[key].run(given)]


@library.register_fake("autopar::gradient")
def _gradient(key: str, given: list[torch.Tensor]) -> list[torch.Tensor]:
    gradient = RECORDING[-1].gradients[key]
    return [torch.empty_like(t) for t in given[gradient.outputs : gradient.outputs + gradient.inputs]]


@library.register_fake("autopar::require")
@library.register_fake("autopar::hook")
def _hook(key: str, x: torch.Tensor) -> None:
    return None
