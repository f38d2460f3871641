"""Small models in training for the tests of joint capture, one thing each, and eager to hold them against."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from capture_models import Call, Does, x
from capturing import joint
from torch import nn
from torch.utils import _pytree as pytree

from autopar.capture import Captured
from autopar.pipeline.compare import interpret

LIMIT = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}
"""Error of a tensor that is allowed, max|Δ| ÷ max|reference|: a sum of parts may be in another order."""


def differentiable(captured: Captured) -> tuple[bool, ...]:
    """Of each output of the call whether it has a tangent."""
    outputs = captured.graph.outputs
    smooth = {outputs[index] for _, index in captured.tangents}
    return tuple(name in smooth for name in outputs[: len(outputs) - len(captured.gradients)])


def agrees(function: Callable[..., Any], args: Any, kwargs: Any = None, limit: float = 0.0) -> Captured:
    """Capture a call, then hold outputs, updates and gradients of its graph against those of eager.

    Each call starts from the same random state; `limit` takes the place of `LIMIT` where it is larger.
    """
    kwargs = kwargs or {}
    captured = joint(function, args, kwargs)
    graph = captured.graph
    tensors = captured.flatten(args, kwargs)
    tangents = dict(captured.tangents)
    names = [name for name in graph.inputs if name not in tangents]
    assert len(names) == len(tensors)
    live = {
        **dict(zip(names, tensors)),
        **{name: owner[key] for name, (owner, key) in captured.state.items()},
    }
    before = {name: tensor.detach().clone() for name, tensor in live.items()}

    torch.manual_seed(1)
    flat = [leaf for leaf in pytree.tree_leaves(function(*args, **kwargs)) if isinstance(leaf, torch.Tensor)]
    assert differentiable(captured) == tuple(leaf.requires_grad for leaf in flat)
    given = {name: _strided(torch.randn_like(flat[index])) for name, index in captured.tangents}
    wanted = {name: tensor for name, tensor in live.items() if tensor.requires_grad}
    expected: tuple[Any, ...] = (None,) * len(wanted)
    if given and wanted:
        roots = [flat[index] for index in tangents.values()]
        expected = torch.autograd.grad(roots, list(wanted.values()), list(given.values()), allow_unused=True)
    after = {name: captured.state[name][0][captured.state[name][1]] for name in captured.state}
    after = {name: tensor.detach().clone() for name, tensor in {**dict(zip(names, tensors)), **after}.items()}

    values: dict[str, Any] = {**before, **given}
    torch.manual_seed(1)
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        for task in interpret(graph, captured.calls, values, torch.device("cpu")):
            for name in task.outputs:
                like = graph.value[name]
                if like.dtype != "object":
                    made = values[name]
                    assert (tuple(made.shape), str(made.dtype)) == (like.shape, f"torch.{like.dtype}"), (
                        task.where
                    )

    def same(name: str, reference: torch.Tensor, what: str) -> None:
        made = values[name]
        assert (made.shape, made.dtype) == (reference.shape, reference.dtype), what
        if not torch.equal(made, reference.detach()):
            assert reference.is_floating_point(), what
            error = (made.double() - reference.double()).abs().max() / reference.double().abs().max()
            assert error <= max(limit, LIMIT[reference.dtype]), f"{what}: {error}"

    for index, (name, leaf) in enumerate(zip(graph.outputs, flat)):
        same(name, leaf, f"output {index}")
    for made, to in graph.updates:
        same(made, after[to], f"update of {to}")
    gradients = dict(captured.gradients)
    assert set(gradients) <= set(wanted)
    assert graph.outputs[len(flat) :] == tuple(gradients.values())
    for name, reference in zip(wanted, expected):
        if reference is None:
            assert name not in gradients, f"{name} has a gradient where eager has None"
        else:
            same(gradients[name], reference, f"gradient of {name}")
    return captured


def _strided(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers by other strides, as what comes after may give them."""
    return tensor.mT.contiguous().mT if tensor.ndim > 1 else tensor


def mlp() -> Call:
    m = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))
    return Does(lambda s, x, t: F.cross_entropy(s.m(x), t), m=m), (x(), torch.randint(0, 3, (6,))), {}


def convolutions() -> Call:
    norms = (nn.GroupNorm(2, 4), nn.InstanceNorm2d(4, affine=True))
    layers = (nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2), *norms)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(36, 3)), (torch.randn(2, 3, 8, 8),), {}


def norm_in_eval() -> Call:
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval(), (x(),), {}


def tied() -> Call:
    table, out = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)
    out.weight = table.weight
    ids = torch.randint(0, 9, (2, 5))

    def body(m: Any, ids: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(m.out(m.table(ids)).flatten(0, 1), ids.flatten())

    return Does(body, table=table, out=out), (ids,), {}


def transformer() -> Call:
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (torch.randn(2, 3, 8),), {}


def recurrent() -> Call:
    return nn.LSTM(4, 5, 2, dropout=0.4, batch_first=True), (torch.randn(2, 3, 4, requires_grad=True),), {}


def bag() -> Call:
    return nn.EmbeddingBag(9, 4, mode="mean"), (torch.randint(0, 9, (2, 5)),), {}


def shared() -> Call:
    linear = nn.Linear(4, 4)
    return nn.Sequential(linear, nn.Tanh(), linear), (x(),), {}


def frozen() -> Call:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    return model, (x(),), {}


def input_that_requires_grad() -> Call:
    return nn.Linear(4, 4), (x().requires_grad_(),), {}


def half() -> Call:
    return nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.GELU()).bfloat16(), (x().bfloat16(),), {}


def double() -> Call:
    return nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.GELU()).double(), (x().double(),), {}


def closure() -> Call:
    linear, other = nn.Linear(4, 4), nn.Linear(4, 4)
    return (lambda x, module: F.relu(linear(x) * module(x)).sum()), (x(), other), {}


def nested() -> Call:
    def body(m: Any, d: Any) -> Any:
        return {"a": m.linear(d["x"]), "b": (d["x"].argmax(), 3, None), "c": m.linear(d["x"]).detach()}

    return Does(body, linear=nn.Linear(4, 4)), ({"x": x()},), {}


def unused() -> Call:
    children = {"linear": nn.Linear(4, 4), "idle": nn.Linear(4, 4), "cut": nn.Linear(4, 4)}
    return Does(lambda m, x: (m.linear(x).sum(), m.cut(x).detach().argmax(-1)), **children), (x(),), {}


def no_grad() -> Call:
    def body(m: Any, x: torch.Tensor) -> Any:
        with torch.no_grad():
            y = m.linear(x)
            with torch.enable_grad():
                z = m.linear(x)
        return m.linear(x) * y + z

    return Does(body, linear=nn.Linear(4, 4)), (x(),), {}


def in_place() -> Call:
    def body(m: Any, x: torch.Tensor) -> Any:
        h = m.linear(x)
        h.add_(1)
        h[:, 0] = 2
        h.mul_(m.linear.bias)
        m.count.mul_(0.9).add_(h.detach().mean(0))
        return h

    return Does(body, linear=nn.Linear(4, 4), count=torch.zeros(4)), (x(),), {}


def parametrized() -> Call:
    weight, orthogonal = nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.orthogonal
    return nn.Sequential(weight(nn.Linear(4, 4)), orthogonal(nn.Linear(4, 4))), (x(),), {}


def checkpointed() -> Call:
    from torch.utils.checkpoint import checkpoint

    m = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Linear(4, 4))
    return Does(lambda s, x: checkpoint(s.m, x, use_reentrant=False), m=m), (x(),), {}


def penalty() -> Call:
    def body(m: Any, x: torch.Tensor) -> Any:
        y = m.linear(x).tanh().sum()
        (kept,) = torch.autograd.grad(y, m.linear.weight, create_graph=True)
        (constant,) = torch.autograd.grad(y, m.linear.weight, retain_graph=True)
        return y + kept.norm() + (constant * m.linear.weight).sum()

    return Does(body, linear=nn.Linear(4, 4)), (x(),), {}


MODELS = (
    mlp, convolutions, norm_in_eval, tied, transformer, recurrent, bag, shared, frozen, input_that_requires_grad, half,
    double, closure, nested, unused, no_grad, in_place, parametrized, checkpointed, penalty,
)  # fmt: skip
