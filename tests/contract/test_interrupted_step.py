"""Training steps interrupted at any instant: they never hang, and from a checkpoint training goes on as if nothing had
happened."""

import random
import signal
import time

import pytest
import torch
from torch import nn

import autopar

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers that send signals here"),
]


@pytest.mark.parametrize("devices", [["cpu"], ["cpu", "emulated:0"]], ids=str)
def test_training_goes_on_from_a_checkpoint_after_interrupts_at_any_instant(devices):

    def built():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(12, 300), nn.Tanh(), nn.Linear(300, 300), nn.Linear(300, 4)).double()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        step = autopar.train_step(model, nn.functional.mse_loss, optimizer, devices, policy="round_robin")
        for _ in range(3):
            step(x, y)
        return model, optimizer, step

    x, y = torch.randn(8, 12, dtype=torch.float64), torch.randn(8, 4, dtype=torch.float64)
    plain, _, undisturbed = built()
    model, optimizer, step = built()
    saved = [{name: value.clone() for name, value in model.state_dict().items()}, optimizer.state_dict()]
    saved[1] = {
        **saved[1],
        "state": {n: {k: v.clone() for k, v in s.items()} for n, s in saved[1]["state"].items()},
    }
    begin = time.perf_counter()
    step(x, y)
    took = time.perf_counter() - begin
    draw, interrupted = random.Random(0), 0
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for _ in range(40):
            try:
                try:
                    signal.setitimer(signal.ITIMER_REAL, draw.uniform(0.02, 1) * took)
                    step(x, y)
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                interrupted += 1
            assert torch.is_grad_enabled()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert interrupted
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    for _ in range(3):
        torch.testing.assert_close(step(x, y), undisturbed(x, y), rtol=0, atol=0)
    for own, other in zip(model.parameters(), plain.parameters()):
        torch.testing.assert_close(own, other, rtol=0, atol=0)
