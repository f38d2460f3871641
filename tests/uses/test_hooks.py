"""Hooks of modules, of tensors and of all modules, added before and after the first call."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pairs import alike, compiled, gradients
from torch import nn

pytestmark = pytest.mark.slow


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 6))


@pytest.mark.parametrize("training", [False, True])
def test_features_kept_by_a_hook_are_those_of_each_call(training):
    model = network()
    kept: list[torch.Tensor] = []
    model[0].register_forward_hook(lambda module, args, output: kept.append(output))
    fast = compiled(model)
    with torch.set_grad_enabled(training):
        for call in range(4):
            x = torch.randn(4, 6) + call
            fast(x)
            assert len(kept) == call + 1 and type(kept[-1]) is torch.Tensor
            assert alike(kept[-1].detach(), nn.functional.linear(x, model[0].weight, model[0].bias).detach())


def test_a_loss_on_features_of_a_hook_trains():
    model = network()
    kept: dict[str, torch.Tensor] = {}
    model[1].register_forward_hook(lambda module, args, output: kept.update(features=output))
    fast, x = compiled(model), torch.randn(4, 6)

    def loss(run: Any) -> torch.Tensor:
        return run(x).sum() + kept["features"].pow(2).sum()

    expected = gradients(model, lambda: loss(model))
    for _ in range(2):
        assert alike(gradients(model, lambda: loss(fast)), expected)


def test_hooks_of_the_model_itself_are_called_once_a_call():
    model, calls = network().eval(), []
    model.register_forward_pre_hook(lambda module, args, kwargs: calls.append("before"), with_kwargs=True)
    model.register_forward_hook(lambda module, args, output: calls.append("after") or -output)
    fast, x = compiled(model), torch.randn(4, 6)
    with torch.no_grad():
        for call in range(3):
            assert alike(fast(x), -model[2](model[1](model[0](x))))
            assert calls == ["before", "after"] * (call + 1)


def test_what_a_hook_reads_may_change():
    model, factor = network().eval(), [1.0]
    model[0].register_forward_hook(lambda module, args, output: output * factor[0])
    fast, x = compiled(model), torch.randn(4, 6)
    with torch.no_grad():
        first = fast(x)
        factor[0] = 4.0
        assert alike(fast(x), model(x)) and not alike(fast(x), first)


def test_hooks_of_all_modules():
    model, scale = network().eval(), {"by": 2.0}
    fast, x = compiled(model), torch.randn(4, 6)
    with torch.no_grad():
        fast(x)
        handle = nn.modules.module.register_module_forward_hook(
            lambda module, args, output: output * scale["by"] if isinstance(module, nn.ReLU) else None
        )
        try:
            assert alike(fast(x), model(x))
            scale["by"] = 5.0
            assert alike(fast(x), model(x))
        finally:
            handle.remove()
        assert alike(fast(x), model(x))


def test_full_backward_hooks_are_called_with_the_gradients():
    model = network()
    seen: list[torch.Tensor] = []
    model[0].register_full_backward_hook(lambda module, inputs, outputs: seen.append(outputs[0].clone()))
    fast, x = compiled(model), torch.randn(4, 6)
    expected = gradients(model, lambda: model(x).sum())
    assert alike(gradients(model, lambda: fast(x).sum()), expected)
    assert len(seen) == 2 and alike(*seen)


def test_parametrizations_and_weight_norm():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(6, 6)),
        nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6)),
    ).eval()
    fast, x = compiled(model), torch.randn(4, 6)
    with torch.no_grad():
        assert alike(fast(x), model(x))
    assert alike(gradients(model, lambda: fast(x).sum()), gradients(model, lambda: model(x).sum()))
