"""`PlainModel`: the plain model as a contestant of `kernels="auto"`, since on a short call guards may cost more than
kernels save."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import torch
from torch import is_grad_enabled, nn

from ..costs.blocks import disturbed, median, timed
from ..costs.detect import present
from .kernel_selection import BLOCK_S, ROUNDS, WAKE_S, WORTH, KernelExecutor
from .kernel_verdict import PLAIN
from .session import Session
from .stages import Prepared

log = logging.getLogger("autopar")

RACE_S = 1.0
"""Seconds after which one block of each contestant suffices."""


class PlainModel:
    """Decides once for each program whether the plain model answers calls of its sizes, which is right whatever has
    changed since. It competes for calls without gradients or side effects, where it computes on the devices of the
    plan."""

    def __init__(self, model: Callable[..., Any], session: Session) -> None:
        self._model, self._session = model, session
        self.kinds: set[Hashable] = set()
        """The kinds of calls that the plain model has won (`_kind`)."""
        options = session.options
        default = options.check != "always" and options.batch_norm == "full" and session.user_plan is None
        self.competes = (
            options.kernels == "auto" and default and present(session.machine) and self._computes_there()
        )

    def _computes_there(self) -> bool:
        """Return True if the plain model computes where its placed form does: on CPUs alone, or on one accelerator, on
        which the whole model is."""
        devices = {torch.device(device.torch_device) for device in self._session.machine.devices}
        model = self._model
        held = (*model.parameters(), *model.buffers()) if isinstance(model, nn.Module) else ()
        homes = {tensor.device for tensor in held}
        if devices == {torch.device("cpu")}:
            return homes <= devices
        return len(devices) == 1 and homes == devices and self._session.options.split in (None, "auto")

    def answers(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Return True for calls that the plain model is to answer."""
        return not is_grad_enabled() and self._session.recording is None and _kind(args, kwargs) in self.kinds

    def wins(self, placed: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Race the plain model and whole calls of its `placed` form if the latest program has new kernels; return
        True if the plain model wins such calls."""
        latest = self._session.latest
        if not self.competes or latest is None or latest[1].executor.raced:
            return False
        kind, (served, prepared) = _kind(args, kwargs), latest
        if is_grad_enabled() or self._session.recording is not None or kind is None:
            return False
        executor = prepared.executor
        if not (isinstance(executor, KernelExecutor) and isinstance(prepared, Prepared)):
            return False
        selection, captured = executor.selection, prepared.captured
        verdict, selection.raced = selection.verdict, True
        calls_user = any(task.target in captured.calls for task in captured.graph.tasks)
        if verdict is None or not served.whole or captured.stateful or calls_user:
            return False
        if verdict.plain:
            selection.candidate = None
        else:
            threads = torch.get_num_threads()
            turns = {
                name: (partial(call, *args, **kwargs), threads)
                for name, call in (("placed", placed), (PLAIN, self._model))
            }
            blocks = timed(turns, ROUNDS, RACE_S, BLOCK_S, WAKE_S, 1)
            ratio = median(blocks["placed"]) / median(blocks[PLAIN])
            if ratio <= 1 - WORTH:
                return False
            selection.lose(ratio, keep=not any(map(disturbed, blocks.values())))
            log.info("the plain model serves: a placed call takes %.2f times as long", ratio)
        self.kinds.add(kind)
        return True


def _kind(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable:
    """Return the sizes of the tensors of a call, and its other arguments; None if some are neither tensors nor
    constants."""
    items = (*args, *kwargs.values()) if kwargs else args
    kind: list[Hashable] = []
    for item in items:
        if isinstance(item, torch.Tensor):
            kind.append(item.shape)
        elif item is None or isinstance(item, (bool, int, float, str)):
            kind.append(item)
        else:
            return None
    return (*kind, *kwargs) if kwargs else tuple(kind)
