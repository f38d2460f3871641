"""Random numbers are eager's, whatever the strides of what is drawn and in however many parts the batch is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from capturing import capture, joint
from torch import Tensor, nn
from turns import by_turns

import autopar
from autopar.session.batch_split import split_graph
from autopar.session.compare import interpret

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")

LAYOUTS: dict[str, Callable[[], Tensor]] = {
    "contiguous": lambda: torch.randn(6, 4, 3, 8),
    "transposed": lambda: torch.randn(4, 6, 8, 3).transpose(0, 1).transpose(2, 3),
    "channels_last": lambda: torch.randn(6, 4, 3, 8).to(memory_format=torch.channels_last),
    "every second": lambda: torch.randn(6, 4, 3, 16)[..., ::2],
    "expanded": lambda: torch.randn(6, 1, 8, 3).transpose(2, 3).expand(6, 4, 3, 8),
}

# A CPU draws many numbers at once, from sixteen on, where memory has no gaps.
DRAWS: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda v: F.dropout(v, 0.4, True),
    "after dropout": lambda v: torch.randn_like(F.dropout(v, 0.4, True)),
    "dropout in place": lambda v: F.dropout(v * 1, 0.4, True, True),
    "dropout1d": lambda v: F.dropout1d(v[:, :, 0], 0.4, True),
    "dropout2d": lambda v: F.dropout2d(v, 0.4, True),
    "dropout3d": lambda v: F.dropout3d(v.unsqueeze(2), 0.4, True),
    "alpha_dropout": lambda v: F.alpha_dropout(v, 0.4, True),
    "feature_alpha_dropout": lambda v: F.feature_alpha_dropout(v, 0.4, True),
    "rrelu": lambda v: F.rrelu(v, 0.1, 0.4, True),
    "after rrelu": lambda v: torch.randn_like(torch.sin(F.rrelu(v, 0.1, 0.4, True))),
    "rrelu in place": lambda v: F.rrelu(v * 1, 0.1, 0.4, True, True),
    "bernoulli": lambda v: torch.bernoulli(v.sigmoid().detach()),
    "bernoulli of a number": lambda v: torch.bernoulli(v.detach(), 0.3),
    "bernoulli_": lambda v: torch.empty_like(v).bernoulli_(0.3),
    "bernoulli_ of a tensor": lambda v: torch.empty_like(v).bernoulli_(v.detach().sigmoid()),
    "normal": lambda v: torch.normal(v.detach(), v.detach().abs()),
    "normal_": lambda v: torch.empty_like(v).normal_(1.0, 2.0),
    "normal_ with gaps": lambda v: torch.empty_like(v)[..., ::2].normal_() * 1,
    "uniform_ with gaps": lambda v: torch.empty_like(v)[..., ::2].uniform_() * 1,
    "randn_like": lambda v: torch.randn_like(v),
    "rand_like": lambda v: torch.rand_like(v),
    "randint_like": lambda v: torch.randint_like(v.detach(), 9),
    "exponential_": lambda v: torch.empty_like(v).exponential_(),
    "geometric_": lambda v: torch.empty_like(v).geometric_(0.3),
    "cauchy_": lambda v: torch.empty_like(v).cauchy_(),
    "log_normal_": lambda v: torch.empty_like(v).log_normal_(),
    "after normal": lambda v: torch.randn_like(torch.sin(torch.normal(0.5, v.detach().abs()))),
    "after poisson": lambda v: torch.randn_like(torch.sin(torch.poisson(v.detach().abs()))),
    "gamma": lambda v: torch._standard_gamma(v.detach().abs() + 0.1),
    "poisson": lambda v: torch.poisson(v.detach().abs()),
    "multinomial": lambda v: torch.multinomial(v.detach()[0, 0].t().abs() + 0.1, 2),
    "gumbel_softmax": lambda v: F.gumbel_softmax(v, dim=1),
    "attention": lambda v: F.scaled_dot_product_attention(v, v, v, dropout_p=0.4),
    "attention of heads": lambda v: F.scaled_dot_product_attention(*[v.transpose(1, 2)] * 3, dropout_p=0.4),
    "randperm": lambda v: torch.randperm(24),
}


class Drawing(nn.Module):
    """All draws, each from what parts make."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        v = torch.tanh(x * self.scale)
        return *(draw(v) for draw in DRAWS.values()), torch.sin(v)


@by_turns("layout, training", LAYOUTS, [False, True])
def test_draws_are_eagers_in_any_layout_and_any_parts(layout: str, training: bool) -> None:
    torch.manual_seed(1)
    x, model = LAYOUTS[layout](), Drawing()
    torch.manual_seed(5)
    wanted = model(x)
    after = torch.get_rng_state()
    with torch.set_grad_enabled(training):
        captured = joint(model, (x,)) if training else capture(model, (x,), {})
    for sizes in ((6,), (1, 3, 2)):
        graph = split_graph(captured.graph, sizes)
        assert bool(graph.split) == (len(sizes) > 1)
        values = dict(
            zip(graph.inputs, [x, *(torch.randn(graph.value[n].shape) for n, _ in captured.tangents)])
        )
        values.update((name, owner[key]) for name, (owner, key) in captured.state.items())
        torch.manual_seed(5)
        with torch.no_grad():
            for _ in interpret(graph, captured.calls, values, CPU):
                pass
        assert torch.equal(torch.get_rng_state(), after)
        for what, name, eager in zip((*DRAWS, "sin"), graph.outputs, wanted):
            found = values[name]
            if "attention" in what or "softmax" in what:
                assert torch.allclose(found, eager, atol=1e-6), (what, sizes)
            else:
                assert torch.equal(found, eager), (what, sizes)


def test_rows_in_blocks_of_a_merged_axis_are_rejoined_in_eagers_order() -> None:
    def merged(x: Tensor) -> Tensor:
        v = torch.sin(torch.tanh(x * 2).reshape(-1, 5))
        return torch.randn_like(v) + v

    x = torch.randn(5, 3, 6).permute(1, 2, 0)
    captured = capture(merged, (x,), {})
    graph = split_graph(captured.graph, (4, 2))
    assert any(task.name.endswith("#merge") for task in graph.tasks)
    values = {graph.inputs[0]: x}
    torch.manual_seed(5)
    wanted = merged(x)
    torch.manual_seed(5)
    for _ in interpret(graph, captured.calls, values, CPU):
        pass
    assert torch.equal(values[graph.outputs[0]], wanted)


@by_turns("share, dtype", [0.1, 0.15, 0.3, 1.0], [torch.float32, torch.bfloat16])
def test_a_dropout_in_training_rounds_and_draws_as_eager(share: float, dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Dropout(share))
    fast = autopar.compile(model, ["cpu"], check="never")
    x = torch.randn(40, 30, dtype=dtype, requires_grad=True)
    tangent = torch.randn(40, 30, dtype=dtype)
    found = []
    for run in (model, fast):
        torch.manual_seed(5)
        out = run(x)
        found.append((out, *torch.autograd.grad(out, x, tangent), torch.rand(3)))
    for eager, placed in zip(*found):
        assert torch.equal(eager, placed)
