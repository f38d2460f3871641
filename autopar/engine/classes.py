"""The class of a compiled module, which is the model's own besides: libraries take it for the model."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn

T = TypeVar("T")

STEPS = ("training_step", "validation_step", "test_step", "predict_step")
"""Methods that Lightning calls in the place of a module."""


def sharing(form: type[T], model: nn.Module, shown: type) -> T:
    """An object of `form` and of the model's own class that has all attributes of the model, besides its slots; its
    class is called as `shown` is."""
    mixed: Any = _mixed
    fast: T = object.__new__(mixed(form, type(model), shown))
    object.__setattr__(fast, "__dict__", model.__dict__)
    return fast


@functools.lru_cache(maxsize=256)
def _mixed(form: type[Any], kind: type[nn.Module], shown: type) -> type[Any]:
    own: dict[str, Any] = {"__module__": shown.__module__, "__qualname__": shown.__qualname__}
    written = inspect.getattr_static(kind, "forward")
    # That of a scripted module is none of Python's.
    if inspect.isfunction(written):
        own["forward"] = Forward(form.forward, written)
    if any(base.__name__ == "LightningModule" for base in kind.__mro__):
        own |= {name: _counted(name, getattr(kind, name)) for name in STEPS if hasattr(kind, name)}
    return types.new_class(shown.__name__, (form, kind), exec_body=lambda names: names.update(own))


class Forward:
    """The attribute `forward` of a compiled module: to call it is to call the module.

    It shows the signature of the model's own, by which libraries choose the columns of a batch. A library may put a
    wrapper into the place of what it found here: a call of the model runs the wrapper, and that the model's own.
    """

    def __init__(self, called: Callable[..., Any], written: Callable[..., Any]) -> None:
        @functools.wraps(written)
        def forward(fast: Any, *args: Any, **kwargs: Any) -> Any:
            chosen = written if "forward" in fast.__dict__ else called
            return chosen(fast, *args, **kwargs)

        self.forward = forward

    def __get__(self, fast: Any, owner: Any = None) -> Any:
        if fast is None:
            return self.forward
        if torch.compiler.is_dynamo_compiling():
            # A model around this one is captured. Dynamo of torch 2.11 takes `__dict__.get` for this method.
            return fast._placement.model.forward
        wrapper = fast.__dict__.get("forward")
        return types.MethodType(_outermost(wrapper) if wrapper else self.forward, fast)

    def __set__(self, fast: Any, wrapper: Any) -> None:
        fast.__dict__["forward"] = wrapper

    def __delete__(self, fast: Any) -> None:
        if "forward" not in fast.__dict__:
            raise AttributeError("forward")
        del fast.__dict__["forward"]


def _outermost(wrapper: Callable[..., Any]) -> Callable[..., Any]:
    """A wrapper of `forward` that calls the module while it is the outermost, and itself once another is around it."""

    @functools.wraps(wrapper)
    def forward(fast: Any, *args: Any, **kwargs: Any) -> Any:
        within = torch.compiler.is_dynamo_compiling() or fast.__dict__.get("forward") is not wrapper
        return wrapper(*args, **kwargs) if within else fast(*args, **kwargs)

    return forward


def _counted(name: str, step: Callable[..., Any]) -> Callable[..., Any]:
    """A method that computes and counts as a call, which is not placed where it never calls the module itself."""

    @functools.wraps(step)
    def method(fast: Any, *args: Any, **kwargs: Any) -> Any:
        placement = fast._placement
        before = placement.backend.calls
        output = step(fast, *args, **kwargs)
        # Parts may be compiled themselves.
        if placement.backend.calls == before and not any(map(_compiled, placement.model.modules())):
            placement.unplaced(
                f"{name} calls parts of {type(fast).__name__}, not the module itself: let it call self(…), or compile "
                "the part where the module is made, self.net = autopar.compile(net, devices)"
            )
        return output

    return method


def _compiled(part: nn.Module) -> bool:
    return isinstance(inspect.getattr_static(type(part), "forward", None), Forward)
