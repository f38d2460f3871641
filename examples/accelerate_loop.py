"""Hugging Face accelerate: a compiled model in its loop, and device maps both ways.

    python examples/accelerate_loop.py [--devices cpu emulated:0]

The model goes through `Accelerator.prepare`, in float32 and with bfloat16 autocast, gradients of two batches added up
and clipped; a plain twin beside it takes the same steps. Then accelerate's own device map of a small GPT-2 is used as
pins, and the map of the plan that comes of it is one that accelerate takes. Needs accelerate and transformers:
pip install -e '.[frameworks]'.
"""

from __future__ import annotations

import argparse
import copy
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import autopar

STEPS = 2
"""Batches whose gradients are added up."""


def data(count: int = 120) -> TensorDataset:
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(count, 8, generator=draw)
    return TensorDataset(x, (x[:, :1] * x[:, 1:2]).sign())


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))


def train(model: nn.Module, precision: str, epochs: int) -> list[float]:
    """The losses of a loop as accelerate's documentation has it."""
    import accelerate

    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = accelerate.Accelerator(
        mixed_precision=precision, gradient_accumulation_steps=STEPS, cpu=not torch.cuda.is_available()
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    prepared, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data(), batch_size=16))
    losses = []
    for _ in range(epochs):
        for x, y in loader:
            with accelerator.accumulate(prepared):
                loss = nn.functional.mse_loss(prepared(x), y)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(prepared.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
    return losses


def compare(devices: list[str], precision: str, epochs: int = 3) -> dict[str, Any]:
    """Losses, and how far they and the weights are from the plain run's."""
    torch.manual_seed(0)
    plain = network()
    fast = autopar.compile(copy.deepcopy(plain), devices)  # the line that changes
    losses, expected = train(fast, precision, epochs), train(plain, precision, epochs)
    found = {
        "first": losses[0],
        "last": losses[-1],
        "apart": max(abs(a - b) for a, b in zip(losses, expected, strict=True)),
        "weights": max((a - b).abs().max().item() for a, b in zip(fast.parameters(), plain.parameters())),
        "report": fast.explain(),
    }
    fast.close()
    return found


def maps() -> dict[str, Any]:
    """Accelerate's device map of a GPT-2, the plan that obeys it on stand-ins, and that plan's own map."""
    import accelerate
    import transformers

    config = transformers.GPT2Config(
        vocab_size=128, n_embd=32, n_layer=4, n_head=4, n_positions=32, bos_token_id=0, eos_token_id=0
    )
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(config).eval()
    asked = accelerate.infer_auto_device_map(
        model, max_memory={0: 100_000, 1: 100_000, "cpu": 10**9}, no_split_module_classes=["GPT2Block"]
    )
    fast = autopar.compile(model, ["cpu", "emulated:0", "emulated:1"], pins=asked)
    tokens = torch.arange(24).view(2, 12)
    with torch.no_grad():
        error = (fast(input_ids=tokens).logits - model(input_ids=tokens).logits).abs().max().item()
    found = fast.plan.device_map()
    accelerate.utils.modeling.check_device_map(model, found)
    again = autopar.compile(model, ["cpu", "emulated:0", "emulated:1"], pins=found)
    with torch.no_grad():
        again(input_ids=tokens)
    same = again.plan.device_map() == found
    fast.close()
    again.close()
    return {"asked": dict(asked), "found": found, "same": same, "error": error}


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--devices", nargs="+", default=["auto"])
    devices = options.parse_args().devices
    for precision, most in (("no", 1e-4), ("bf16", 5e-2)):
        found = compare(devices, precision)
        if precision == "no":
            print(found["report"].split("\n\n")[0])
        print(
            f"mixed_precision={precision!r}: loss {found['first']:.3f} → {found['last']:.3f}; largest difference from "
            f"the plain run: losses {found['apart']:.1e}, weights {found['weights']:.1e}"
        )
        assert max(found["apart"], found["weights"]) <= most, "not the plain run"
    found = maps()
    print(f"accelerate's device map: {found['asked']}")
    print(f"plan.device_map():       {found['found']}")
    assert found["same"] and found["error"] <= 1e-5, "not what was asked for"


if __name__ == "__main__":
    main()
