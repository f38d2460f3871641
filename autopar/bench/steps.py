"""The rivals of a training contest: zero_grad, forward, loss, backward and a step of SGD."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..engine import api
from .case import Case, Entrant, tensors
from .rivals import EAGER, Rival, tried

RATE = 1e-2
"""Learning rate of SGD."""


def loss_of(answer: Any) -> Tensor:
    """The `.loss` of an answer, or the answer where it is one number, else the means of the squares of its floating
    tensors: thousands of steps on these leave weights finite."""
    loss = getattr(answer, "loss", None)
    if isinstance(loss, Tensor):
        return loss
    if isinstance(answer, Tensor) and answer.dim() == 0:
        return answer
    return torch.stack([leaf.square().mean() for leaf in tensors(answer) if leaf.is_floating_point()]).sum()


def loop(case: Case, wrap: Callable[[nn.Module], Any] = lambda model: model) -> Entrant:
    """The plain loop about a copy of the model, or what `wrap` makes of that."""
    model = copy.deepcopy(case.model)
    call, optimizer = wrap(model), torch.optim.SGD(model.parameters(), lr=RATE)

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(call(*case.args))
        loss.backward()
        optimizer.step()
        return loss

    return _entrant(model, step, getattr(call, "close", None))


def compiled(case: Case, **settings: Any) -> Entrant:
    """The plain loop about `torch.compile`."""
    return loop(case, lambda model: torch.compile(model, **settings))


def autopar(case: Case, **options: Any) -> Entrant:
    """The plain loop about `autopar.compile`."""
    return loop(case, lambda model: api.compile(model, list(case.devices), **options))


SETTLING = 5
"""Steps after which the programs of a training step are made, and its kernels being compiled."""


def whole(case: Case, kernels: Literal["eager", "auto"] = "eager") -> Entrant:
    """`autopar.train_step`, from the first weights on once its kernels are chosen."""
    model, began = copy.deepcopy(case.model), time.perf_counter()
    step = api.train_step(
        model,
        None,
        torch.optim.SGD(model.parameters(), lr=RATE),
        list(case.devices),
        step_fn=lambda model, *batch: loss_of(model(*batch)),
        kernels=kernels,
    )
    if kernels != "eager":
        first = copy.deepcopy(model.state_dict())
        for _ in range(SETTLING):
            step(*case.args)
        step.wait(case.left(began))
        step.close()
        step.wait()
        tried(lambda: step(*case.args))
        model.load_state_dict(first)
    return _entrant(model, lambda: step(*case.args), step.close)


def _entrant(model: nn.Module, step: Callable[[], Tensor], close: Callable[[], None] | None) -> Entrant:
    before = [parameter.detach().clone() for parameter in model.parameters()]

    def answers() -> list[Tensor]:
        """The loss of the first step, and how far each weight has moved in it by the unit of the rate."""
        loss = step().detach().clone()
        moved = (after.detach() - was for after, was in zip(model.parameters(), before))
        return [loss, *(way / RATE for way in moved)]

    return Entrant(step, answers, close or (lambda: None))


RIVALS: list[Rival] = [
    Rival(EAGER, loop),
    Rival("eager-1", loop, one_thread=True),
    Rival("autopar", autopar),
    Rival("autopar-step", whole),
    Rival("autopar-step-auto", partial(whole, kernels="auto")),
    Rival("compile", compiled),
    Rival("max-autotune", partial(compiled, mode="max-autotune"), on_request=True),
]
