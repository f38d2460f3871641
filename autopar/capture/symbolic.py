"""The second route: `torch.fx.symbolic_trace`, for what export refuses and plain Python can still record.

Nothing is functional here. One real run shows what each call makes, shares and changes, and every task that
touches memory which some task changes gets read-after-write, write-after-read and write-after-write edges and
stays home.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx, nn

from .assembly import Assembly, Watch
from .captured import Captured
from .functions import Call
from .private import pytree, quiet
from .probe import unchanged
from .refusals import Untraceable
from .sharing import lent


def symbolic(call: Call, name: str, paths: tuple[str, ...]) -> Captured:
    """Capture by recording Python; raises Untraceable, or what the trace raises where Python decides by
    values.
    """
    if lent(call):
        raise Untraceable(
            f"{name}: an argument shares its memory with another one or with the model's own tensors"
        )
    tracer = _Tracer()
    with quiet(), unchanged(call):
        graph = tracer.trace(_flat(call))
    returned = call.returned
    if any(isinstance(item, fx.Proxy) for item in pytree.tree_leaves(returned.changed)):
        raise Untraceable(f"forward stores a tensor of the call in self.{next(iter(returned.changed))}")
    module = fx.GraphModule(tracer.root, graph)
    with unchanged(call), torch.no_grad():
        seen = Watch(module)
        seen.run(*[tensor.detach().clone() for tensor in call.arguments.tensors])
    assembly = Assembly(call, name, paths, module, seen)
    for node in graph.nodes:
        assembly.add(node)
    return Captured(
        assembly.graph(),
        {value: (slot.owner, slot.key) for value, slot in assembly.state.items()},
        assembly.calls,
        call.arguments.flatten,
        returned.rebuild,
        "symbolic trace",
        call.home,
        call.grads(len(assembly.outputs)),
    )


def _flat(call: Call) -> nn.Module:
    """A Module with one named parameter for each tensor, which is what fx can trace."""
    names = ", ".join(f"t{index}" for index in range(len(call.arguments.tensors)))
    scope: dict[str, Any] = {}
    exec(f"def forward(self{', ' + names if names else ''}):\n    return self.call({names})\n", scope)
    module = type("Flat", (nn.Module,), {"forward": scope["forward"]})()
    module.call = call
    return module


def _in_place(operation: Any) -> Any:
    def method(self: fx.Proxy, other: Any) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", operation, (self, other), {})

    return method


class _Proxy(fx.Proxy):
    """A proxy that records `x += y` as the change of x that it is; fx's own makes a new tensor of it."""

    def __setitem__(self, key: Any, value: Any) -> None:
        self.tracer.create_proxy("call_function", operator.setitem, (self, key, value), {})


for _name in (
    "iadd",
    "isub",
    "imul",
    "itruediv",
    "ifloordiv",
    "imod",
    "ipow",
    "imatmul",
    "iand",
    "ior",
    "ixor",
):
    setattr(_Proxy, f"__{_name}__", _in_place(getattr(operator, _name)))


class _Tracer(fx.Tracer):
    record_stack_traces = True
    # Otherwise `buffer.add_(1)` would be done while tracing, and be in no graph.
    proxy_buffer_attributes = True

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)
