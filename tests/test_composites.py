"""Operators that stay whole in a joint graph: same gradients as eager, one task each way, no device's own kernel."""

import re
from contextlib import ExitStack

import pytest
import torch
from torch import nn
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch.fx.traceback import preserve_node_meta
from torch.nn import functional as F

from autopar import composites

OWN = re.compile(r"_for_cpu|mkldnn|cudnn|miopen|_flash_|_efficient_|thnn|fused")
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}


class Called(nn.Module):
    """A function of some modules and tensors as a module that returns a tuple."""

    def __init__(self, function, *parts):
        super().__init__()
        self.function, self.parts = function, nn.ModuleList(parts)

    def forward(self, *tensors):
        made = self.function(*self.parts, *tensors)
        return tuple(made) if isinstance(made, tuple | list) else (made,)


def joint(model, *tensors):
    """The joint graph of a call after the swap."""
    module = torch.export.export(model, tensors, strict=False).module()
    composites.swap(module)
    with ExitStack() as stack, preserve_node_meta():
        return aot_export_joint_with_descriptors(stack, module, tensors).graph_module


def targets(graph_module):
    return [str(node.target) for node in graph_module.graph.nodes if node.op == "call_function"]


def run(graph_module, model, tensors, tangents):
    state = [*model.parameters(), *model.buffers()]
    with torch.no_grad():
        return graph_module([*state, *tensors], tangents)


def rn(*shape, dtype=torch.float64, grad=True):
    return torch.randn(*shape, dtype=dtype, requires_grad=grad)


def compare(model, tensors, whole, seed=0, times=1):
    """The joint graph is whole and gives what eager gives."""
    graph = joint(model, *tensors)
    names = targets(graph)
    assert not [name for name in names if OWN.search(name)]
    if whole:
        assert names.count(f"autopar.{whole}.default") == times
        assert names.count(f"autopar.{whole}_backward.default") == times
        assert not [name for name in names if name.startswith(f"aten.{whole}")]
    torch.manual_seed(seed)
    expected = model(*tensors)
    tangents = [torch.randn_like(out) for out in expected if out.requires_grad]
    wanted = [t for t in (*model.parameters(), *tensors) if t.requires_grad]
    grads = torch.autograd.grad([out for out in expected if out.requires_grad], wanted, tangents)
    torch.manual_seed(seed)
    made, found = run(graph, model, tensors, tangents)
    for one, other in zip((*made, *(g for g in found if g is not None)), (*expected, *grads), strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        scale = other.abs().max().clamp_min(1e-30)
        assert (one - other).abs().max() <= TOLERANCE[other.dtype] * scale
    return graph


@pytest.mark.parametrize("variant", ["plain", "causal", "bool", "float", "gqa", "scale", "3d", "values"])
def test_attention(variant):
    q, k, v = (rn(2, 4, 6, 8) for _ in range(3))
    tensors, options = [q, k, v], {}
    if variant == "causal":
        options = {"is_causal": True}
    elif variant == "bool":
        tensors.append(torch.rand(2, 1, 6, 6) > 0.3)
    elif variant == "float":
        tensors.append(rn(4, 6, 6))
    elif variant == "gqa":
        tensors[1:] = [rn(2, 2, 6, 8), rn(2, 2, 6, 8)]
        options = {"enable_gqa": True}
    elif variant == "scale":
        options = {"scale": 0.3}
    elif variant == "3d":
        tensors = [rn(4, 6, 8) for _ in range(3)]
    elif variant == "values":
        tensors = [rn(2, 4, 6, 8), rn(2, 4, 5, 8), rn(2, 4, 5, 7)]
    model = Called(lambda *given: F.scaled_dot_product_attention(*given, **options))
    compare(model, tuple(tensors), "scaled_dot_product_attention")


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_layers": 2, "bidirectional": True},
        {"batch_first": True},
        {"bias": False},
        {"proj_size": 3},
        {"nonlinearity": "relu"},
        {"dtype": torch.float32},
    ],
    ids=str,
)
def test_recurrent(kind, options):
    if ("proj_size" in options and kind is not nn.LSTM) or ("nonlinearity" in options and kind is not nn.RNN):
        pytest.skip("no such option")
    options = {"dtype": torch.float64} | options
    layer = kind(5, 6, **options)
    name = {nn.LSTM: "lstm", nn.GRU: "gru"}.get(kind, f"rnn_{options.get('nonlinearity', 'tanh')}")
    compare(Called(lambda layer, x: layer(x)[0], layer), (rn(4, 3, 5, dtype=options["dtype"]),), name)
