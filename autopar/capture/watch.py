"""What a trace would lose in silence, seen while it happens."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from ..errors import CaptureError
from .applying import reader
from .asked import GRADIENT, HOOK, RECORDING, REQUIRE, Asked, Gradient, Hooked
from .functions import reachable
from .holders import Holders
from .locations import caller, foreign
from .private import FakeTensor, FunctionalTensor, FunctionMeta, pytree

_OWN_BEHALF = ("torch/_functorch/", "torch/_higher_order_ops/", "torch/_dynamo/")


@contextlib.contextmanager
def watched() -> Iterator[Asked]:
    """While this thread records a call, let what that asks of autograd be nodes of the record.

    Raises CaptureError, from within the call, for what cannot be one.
    """
    asked, mine = Asked(), threading.get_ident()
    register, engine = torch.Tensor.register_hook, torch.autograd._engine_run_backward
    requires = torch.Tensor.requires_grad_

    def register_hook(tensor: torch.Tensor, hook: Callable[[torch.Tensor], Any]) -> Any:
        if threading.get_ident() != mine or not _stands_in(tensor):
            return register(tensor, hook)
        where = caller()
        if tensor.is_leaf and tensor.requires_grad:
            raise CaptureError(
                f"forward registers a hook on a parameter or an input{where}, once more at each call; register it "
                "once, outside forward"
            )
        for name, item in reachable(hook):
            if any(map(_stands_in, pytree.tree_leaves(item))):
                raise CaptureError(
                    f"the hook on a tensor{where} reads {name}, a tensor of the call; write it as a "
                    "torch.autograd.Function that is given every tensor it reads"
                )
        key = f"hook.{len(asked.hooks)}"
        asked.hooks[key] = Hooked(hook, where, Holders([hook]))
        HOOK(key, tensor)
        return _Handle(where)

    def backward(
        outputs: Any, grads: Any, retain: bool, create: bool, inputs: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if threading.get_ident() != mine or _of_torch():
            return engine(outputs, grads, retain, create, inputs, *args, **kwargs)
        if kwargs.get("accumulate_grad"):
            raise CaptureError(
                f"forward calls backward{caller()}, which adds to .grad at each call; use torch.autograd.grad there"
            )
        key = f"gradient.{len(asked.gradients)}"
        asked.gradients[key] = Gradient(
            len(outputs), len(inputs), tuple(grad is not None for grad in grads), create, caller()
        )
        return tuple(GRADIENT(key, [*outputs, *inputs, *(grad for grad in grads if grad is not None)]))

    def require(tensor: torch.Tensor, requires_grad: bool = True) -> torch.Tensor:
        if (
            threading.get_ident() == mine
            and _stands_in(tensor)
            and foreign(sys._getframe(1).f_code.co_filename)
        ):
            REQUIRE(str(requires_grad), tensor)
        return requires(tensor, requires_grad)

    def refused(owner: Any, key: str, what: str, change: str) -> Callable[..., Any]:
        plain = getattr(owner, key)

        def call(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() == mine and foreign(sys._getframe(1).f_code.co_filename):
                raise CaptureError(f"forward uses {what}{caller()}, which a graph would not repeat; {change}")
            return plain(*args, **kwargs)

        return call

    def grad_fn(tensor: torch.Tensor) -> Any:
        node = plain_grad_fn.__get__(tensor)
        ours = threading.get_ident() == mine and foreign(sys._getframe(1).f_code.co_filename)
        return _Node(node) if node is not None and ours else node

    plain_grad_fn = torch.Tensor.__dict__.get("grad_fn") or torch._C.TensorBase.__dict__["grad_fn"]
    changes = [
        (torch.Tensor, "grad_fn", property(grad_fn)),
        (FunctionMeta, "__getattribute__", reader(asked)),
        (torch.Tensor, "register_hook", register_hook),
        (torch.Tensor, "requires_grad_", require),
        (torch.autograd, "_engine_run_backward", backward),
        *(
            (owner, key, refused(owner, key, what, change))
            for owner, key, what, change in (
                (torch.Tensor, "retain_grad", "retain_grad", "return the tensor and call it outside"),
                (
                    torch.Tensor,
                    "register_post_accumulate_grad_hook",
                    "register_post_accumulate_grad_hook",
                    "register it once, outside forward",
                ),
                (saved_tensors_hooks, "__init__", "saved_tensors_hooks", "use them around the call"),
            )
        ),
    ]
    RECORDING.append(asked)
    with contextlib.ExitStack() as stack:
        stack.callback(RECORDING.pop)
        for owner, key, item in changes:
            stack.enter_context(_put(owner, key, item))
        yield asked


class _Handle:
    """What registering a hook gives back while a call is recorded."""

    def __init__(self, where: str) -> None:
        self.where = where

    def remove(self) -> None:
        raise CaptureError(
            f"forward removes the hook{self.where} again, which a graph would not; leave it out"
        )


class _Node:
    """A node of autograd's graph, as forward may look at it; on a stand-in a hook would be lost."""

    def __init__(self, node: Any) -> None:
        self._node = node

    def __getattr__(self, key: str) -> Any:
        if key in ("register_hook", "register_prehook"):
            raise CaptureError(
                f"forward registers a hook on a grad_fn{caller()}, which a graph would not call; register it on the "
                "tensor (`tensor.register_hook`)"
            )
        return getattr(self._node, key)


@contextlib.contextmanager
def _put(owner: Any, key: str, item: Any) -> Iterator[None]:
    own = vars(owner).get(key)
    setattr(owner, key, item)
    try:
        yield
    finally:
        if own is None:
            delattr(owner, key)
        else:
            setattr(owner, key, own)


def _stands_in(item: Any) -> bool:
    return isinstance(item, (FakeTensor, FunctionalTensor))


def _of_torch() -> bool:
    """Whether torch differentiates on its own behalf: torch.func, or an operator that traces its own backward."""
    frame: Any = sys._getframe(2)
    while frame is not None and not foreign(frame.f_code.co_filename):
        if any(part in frame.f_code.co_filename for part in _OWN_BEHALF):
            return True
        frame = frame.f_back
    return False
