"""The signatures of a training step that are kept, the least recently used dropped first."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch

from ..capture.functions import Function
from ..capture.signature import Arguments, take_apart
from ..errors import CaptureError
from ..kept import Kept
from ..keys import Lent, Parameters, call_key, visible
from ..machine import Machine
from ..options import Options
from ..runtime.memory import Replicas
from .losses import Loss
from .updates import Signature


class Signatures:
    """What serves the calls of one training step; all of it shares one pool of copies of the weights.

    CaptureError when the optimizer holds what the model does not have: no gradient would ever reach it.
    """

    def __init__(
        self, loss: Loss, optimizer: torch.optim.Optimizer, machine: Machine, options: Options
    ) -> None:
        self.loss, self.optimizer, self.machine, self.options = loss, optimizer, machine, options
        self.kept: Kept[Signature] = Kept(f"the training step of {type(loss).__name__}")
        self.latest: Signature | None = None
        self.pool = Replicas()
        self._shapes, self._lent = Parameters(), Lent()
        self._require_known()

    def serving(self, args: tuple[Any, ...]) -> Signature:
        """What serves this call, captured where nothing does yet."""
        arguments = take_apart(args, {})
        key = self._key(arguments)
        found = self.kept.used(key)
        if found is None:
            found = self._made(arguments, args)
            self.kept.add(key, found)
        self.latest = found
        return found

    def parameters(self) -> list[torch.Tensor]:
        """All that the optimizer holds."""
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    def refresh(self) -> None:
        """Look at the parameters' shapes and copy them to their devices again at the next call."""
        self._shapes.forget()
        self.pool.forget()

    def _made(self, arguments: Arguments, args: tuple[Any, ...]) -> Signature:
        for tensor in arguments.tensors:
            if tensor.requires_grad:
                raise CaptureError(
                    f"an argument of shape {list(tensor.shape)} requires grad, and a training step gives gradients to "
                    "parameters alone; .detach() it, or use autopar.compile and your own loop"
                )
        self._require_known()
        return Signature(self.loss, self.parameters(), self.machine, self.options, args, self.pool)

    def _key(self, arguments: Arguments) -> Hashable:
        """What decides whether a signature serves a call: the optimizer's groups and the state they ask for, and what
        the user's function sees, too."""
        groups = tuple(
            (tuple(map(id, group["params"])), bool(group.get("momentum")), bool(group.get("amsgrad")))
            for group in self.optimizer.param_groups
        )
        modules = tuple(self.loss.modules())
        parameters = tuple([id(item) for module in modules for item in module._parameters.values()])
        seen = visible(self.loss.rule.function[0]) if isinstance(self.loss.rule, Function) else ()
        key = call_key(modules, arguments, self.machine.torch_types, self._shapes, self._lent)
        return key, parameters, groups, seen

    def _require_known(self) -> None:
        known = {id(parameter) for parameter in self.loss.parameters()}
        for group in self.optimizer.param_groups:
            for index, parameter in enumerate(group["params"]):
                if id(parameter) not in known:
                    raise CaptureError(
                        f"the optimizer holds a parameter of shape {list(parameter.shape)} (number {index} of its "
                        f"group) that is neither in {type(self.loss).__name__} nor in its criterion; build the "
                        "optimizer from model.parameters() after the last change of the model, or make the criterion "
                        "an nn.Module that holds the parameter"
                    )
