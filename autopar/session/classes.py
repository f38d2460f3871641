"""The class of a compiled module: a subclass of the model's own class, so that libraries accept it as the model."""

from __future__ import annotations

import functools
import inspect
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import nn

T = TypeVar("T")

STEPS = ("training_step", "validation_step", "test_step", "predict_step")
"""Methods that Lightning calls instead of the module."""

_LIBRARIES = ("torch", "lightning", "pytorch_lightning", "builtins", "typing", "abc")
"""Packages whose methods are never the computation of a user's module."""


def sharing(form: type[T], model: nn.Module, shown: type) -> T:
    """Return an object of `form` and of the model's own class, with the model's attributes and the slots of
    `form`. Its class takes the name of `shown`."""
    mixed: Any = _mixed
    fast: T = object.__new__(mixed(form, type(model), shown))
    object.__setattr__(fast, "__dict__", model.__dict__)
    return fast


@functools.lru_cache(maxsize=256)
def _mixed(form: type[Any], kind: type[nn.Module], shown: type) -> type[Any]:
    def plain(_: type[Any], *args: Any, **kwargs: Any) -> nn.Module:
        """Return a plain model: `self.__class__(…)` in a method of the model, such as a slice of nn.Sequential."""
        return kind(*args, **kwargs)

    members: dict[str, Any] = {
        "__module__": shown.__module__,
        "__qualname__": shown.__qualname__,
        "__new__": plain,
    }
    # The forward of a scripted module is not a Python function.
    if inspect.isfunction(inspect.getattr_static(kind, "forward")):
        members["forward"] = _Forward(form.forward, kind)
    for name in _computing(kind):
        if inspect.isfunction(inspect.getattr_static(kind, name, None)):
            members.setdefault(name, _counted(name, kind))
    return types.new_class(shown.__name__, (form, kind), exec_body=lambda names: names.update(members))


class _Forward:
    """The attribute `forward` of a compiled module: calling it calls the module.

    It has the signature of the model's `forward`, by which libraries choose the columns of a batch. If a
    library sets a wrapper in its place, a call of the model runs that, and that runs the model's forward.
    """

    def __init__(self, called: Callable[..., Any], kind: type[nn.Module]) -> None:
        @functools.wraps(kind.forward)
        def forward(fast: Any, *args: Any, **kwargs: Any) -> Any:
            chosen = kind.forward if "forward" in fast.__dict__ else called
            return chosen(fast, *args, **kwargs)

        self.forward = forward

    def __get__(self, fast: Any, owner: Any = None) -> Any:
        if fast is None:
            return self.forward
        if torch.compiler.is_dynamo_compiling():
            # A model around this one is captured. Dynamo of torch 2.11 mistakes `__dict__.get` for this.
            return (fast._placement.model if hasattr(fast, "_placement") else fast._model).forward
        wrapper = fast.__dict__.get("forward")
        return types.MethodType(_outermost(wrapper) if wrapper else self.forward, fast)

    def __set__(self, fast: Any, wrapper: Any) -> None:
        fast.__dict__["forward"] = wrapper

    def __delete__(self, fast: Any) -> None:
        if "forward" not in fast.__dict__:
            raise AttributeError("forward")
        del fast.__dict__["forward"]


def _outermost(wrapper: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a wrapper of `forward`: as the outermost wrapper it calls the module, otherwise the wrapper."""

    @functools.wraps(wrapper)
    def forward(fast: Any, *args: Any, **kwargs: Any) -> Any:
        within = torch.compiler.is_dynamo_compiling() or fast.__dict__.get("forward") is not wrapper
        return wrapper(*args, **kwargs) if within else fast(*args, **kwargs)

    return forward


def _computing(kind: type[nn.Module]) -> Iterator[str]:
    """Yield the names of the user's public methods except `forward`, and of Lightning's steps."""
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] not in _LIBRARIES:
            yield from (name for name in vars(base) if name != "forward" and not name.startswith("_"))
    if any(base.__name__ == "LightningModule" for base in kind.__mro__):
        yield from STEPS


_within = threading.local()
"""`method` is set inside a counted method, so that its inner calls are not counted again."""


def _counted(name: str, kind: type[nn.Module]) -> Callable[..., Any]:
    """Wrap a method of a class to count calls with tensors that never call the module as not placed."""

    @functools.wraps(getattr(kind, name))
    def method(fast: Any, *args: Any, **kwargs: Any) -> Any:
        # The class may have got another one since.
        written = getattr(kind, name)
        tensors = name in STEPS or any(isinstance(item, torch.Tensor) for item in (*args, *kwargs.values()))
        # A saved model that was loaded counts no calls.
        placement = getattr(fast, "_placement", None)
        uncounted = torch.compiler.is_dynamo_compiling() or getattr(_within, "method", False) or not tensors
        if placement is None or uncounted:
            return written(fast, *args, **kwargs)
        before = placement.session.calls
        _within.method = True
        try:
            output = written(fast, *args, **kwargs)
        finally:
            _within.method = False
        # If parts of the module are compiled themselves, the call may have been placed by these.
        if placement.session.calls == before and not any(map(_compiled, placement.model.modules())):
            placement.unplaced(
                f"{name} calls parts of {type(fast).__name__}, not the module itself: let it call self(…), or compile "
                + (
                    "the part where the module is made, self.net = autopar.compile(net, devices)"
                    if name in STEPS
                    else f"the method, autopar.compile(model.{name}, devices)"
                )
            )
        return output

    return method


def _compiled(part: nn.Module) -> bool:
    return isinstance(inspect.getattr_static(type(part), "forward", None), _Forward)
