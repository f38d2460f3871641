"""Operators of the strict accelerator give the CPU's numbers, forward and backward, and dtypes as on a GPU."""

import copy

import pytest
import rig
import torch
from torch import nn
from torch.nn import functional

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(rig.KIND != "strict", reason="it is about the stand-in: --accelerator strict"),
]

BF16 = torch.bfloat16
MODULES = {
    "linear": (lambda: nn.Linear(8, 4), (4, 8)),
    "conv": (lambda: nn.Conv2d(3, 4, 3, stride=2, padding=1), (2, 3, 8, 8)),
    "conv, groups": (lambda: nn.Conv2d(4, 8, 3, groups=2, bias=False), (2, 4, 8, 8)),
    "transposed": (lambda: nn.ConvTranspose1d(3, 4, 3, stride=2, output_padding=1), (2, 3, 8)),
    "batch norm": (lambda: nn.BatchNorm2d(4), (5, 4, 6, 6)),
    "batch norm, eval": (lambda: nn.BatchNorm2d(4).eval(), (5, 4, 6, 6)),
    "batch norm, no statistics": (lambda: nn.BatchNorm1d(4, track_running_stats=False), (9, 4)),
    "layer norm": (lambda: nn.LayerNorm(8), (4, 5, 8)),
    "group norm": (lambda: nn.GroupNorm(2, 8), (4, 8, 5)),
    "attention": (lambda: nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True), (2, 5, 16)),
    "pooling": (lambda: nn.MaxPool2d(2), (2, 3, 8, 8)),
    "lstm": (lambda: nn.LSTM(6, 5, 2, batch_first=True), (3, 4, 6)),
    "lstm, no bias": (lambda: nn.LSTM(6, 5, bias=False, bidirectional=True), (3, 4, 6)),
    "gru": (lambda: nn.GRU(6, 5, 2, batch_first=True), (3, 4, 6)),
    "gru, no bias": (lambda: nn.GRU(6, 5, bias=False, bidirectional=True), (3, 4, 6)),
}
LOW = [(name, False) for name in MODULES if "lstm" not in name and "gru" not in name]
LOW += [("batch norm", True), ("batch norm, eval", True)]
"""Names, and whether weights and statistics stay in float32."""


def both(make, shape, dtype=torch.float32, mixed=False):
    """Outputs, gradients and buffers after a step in training, there and on the CPU."""
    torch.manual_seed(0)
    here = make() if mixed else make().to(dtype)
    there = copy.deepcopy(here).to(rig.FIRST)
    x = torch.randn(shape, dtype=dtype)
    found = []
    for module, device in ((there, rig.FIRST), (here, "cpu")):
        given = x.to(device).requires_grad_()
        out = module(given)
        out = out[0] if isinstance(out, tuple) else out
        torch.manual_seed(1)
        (out * torch.randn(out.shape, dtype=dtype).to(device)).sum().backward()
        found.append([out, given.grad, *(p.grad for p in module.parameters()), *module.buffers()])
    for a, b in zip(*found, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
    return found


@pytest.mark.parametrize("name", MODULES)
def test_as_on_the_cpu(name):
    assert rig.error(*both(*MODULES[name])) < 1e-5


@pytest.mark.parametrize(("name", "mixed"), LOW)
@pytest.mark.parametrize("dtype", [BF16, torch.float16])
def test_in_low_precision(name, dtype, mixed):
    assert rig.error(*both(*MODULES[name], dtype=dtype, mixed=mixed)) < (4e-2 if dtype is BF16 else 5e-3)


@pytest.mark.parametrize("dtype", [BF16, torch.float16])
def test_statistics_of_batch_norm_are_float32(dtype):
    """As on CUDA, and as the Meta device says; the CPU's own are of the input's dtype."""
    x = torch.randn(6, 4, dtype=dtype)
    ones = torch.ones(4, dtype=dtype)
    for device in ("meta", rig.FIRST):
        a, b, c = (tensor.to(device) for tensor in (x, ones, ones))
        made = torch.ops.aten.native_batch_norm(a, b, b, None if device == "meta" else c, c, True, 0.1, 1e-5)
        assert [tensor.dtype for tensor in made] == [dtype, torch.float32, torch.float32], device
    assert torch.allclose(made[1].cpu(), x.float().mean(0), atol=1e-6)


def test_autocast():
    linear, x = nn.Linear(8, 4).to(rig.FIRST), torch.randn(2, 8, device=rig.FIRST)
    with torch.autocast(rig.KIND, dtype=BF16):
        y = linear(x)
        assert y.dtype == BF16
        assert functional.softmax(y, -1).dtype == torch.float32
        assert torch.cat([y, x], 1).dtype == torch.float32
    assert linear(x).dtype == torch.float32


def test_dropout_keeps_the_mean():
    x = torch.ones(20_000, device=rig.FIRST, requires_grad=True)
    y = functional.dropout(x, 0.25)
    y.sum().backward()
    kept = y.detach().cpu()
    assert set(kept.unique().tolist()) == {0.0, torch.tensor(4 / 3).item()}
    assert abs(kept.mean().item() - 1) < 0.05
    assert torch.equal(x.grad.cpu(), kept)


@pytest.mark.parametrize("fused", [False, True])
def test_optimizers(fused):
    def trained(device):
        torch.manual_seed(0)
        model = nn.Linear(6, 3).to(device)
        optimizer = torch.optim.Adam(model.parameters(), 0.1, fused=fused)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(4, 6, device=device)).square().sum().backward()
            optimizer.step()
        return [p.detach().cpu() for p in model.parameters()]

    assert rig.error(trained(rig.FIRST), trained("cpu")) < 1e-5


def test_views_and_results_written_into():
    x = torch.arange(24.0, device=rig.FIRST).view(4, 6)
    x[1:3, ::2].add_(100)
    x.t()[0].mul_(2)
    out = torch.empty(0, device=rig.FIRST)
    torch.add(x, x, out=out)
    y = torch.arange(24.0).view(4, 6)
    y[1:3, ::2].add_(100)
    y.t()[0].mul_(2)
    assert torch.equal(out.cpu(), y + y)
    assert x[0].unfold(0, 2, 2).data_ptr() == x.data_ptr()


def test_complex_numbers():
    x = torch.randn(8, dtype=torch.complex64)
    there = x.to(rig.FIRST)
    for function in (
        torch.conj,
        lambda z: torch.imag(z.conj()),
        lambda z: torch.view_as_real(z * 2),
        torch.fft.fft,
    ):
        assert torch.allclose(function(there).cpu().resolve_conj(), function(x).resolve_conj(), atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32, torch.bool])
def test_copies_convert(dtype):
    x = torch.arange(12).view(3, 4)
    there = torch.zeros(4, 3, dtype=dtype, device=rig.FIRST).t().copy_(x)
    assert torch.equal(there.cpu(), x.to(dtype))
    back = torch.zeros(4, 3).t().copy_(there)
    assert torch.equal(back, x.to(dtype).float())
    assert torch.equal(there.to("strict:1").cpu(), x.to(dtype))
