"""Lengths that vary, and tokens one at a time: an encoder over 30 lengths, `generate` with both kinds of cache.

    python examples/language_models.py --devices cpu

Models are built from configs with random weights. Prints seconds, eager's in the same run, interleaved, and their
ratio. Needs transformers: pip install -e '.[zoo]'.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

import autopar

ROUNDS = 5
"""Epochs and generations that are timed once everything is captured."""


def timed(call: Callable[..., Any], *args: Any, **kwargs: Any) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    call(*args, **kwargs)
    return time.perf_counter() - start


def ratio(ours: Callable[[], Any], eager: Callable[[], Any]) -> tuple[float, float]:
    """The medians of both, taken in turn."""
    times = [(timed(ours), timed(eager)) for _ in range(ROUNDS)]
    return statistics.median(t for t, _ in times), statistics.median(t for _, t in times)


def lengths(devices: list[str], hidden: int, layers: int) -> dict[str, float]:
    """An encoder over batches of 30 lengths from 10 to 59, in an order drawn once."""
    import transformers

    sizes = {"vocab_size": 1000, "hidden_size": hidden, "intermediate_size": 4 * hidden}
    config = transformers.BertConfig(**sizes, num_hidden_layers=layers, num_attention_heads=8)
    model = transformers.BertModel(config).eval()
    fast = autopar.compile(model, devices)
    chosen = random.Random(0).sample(range(10, 60), 30)
    batches = [torch.randint(5, 900, (4, length)) for length in chosen]

    def epoch(run: Callable[..., Any]) -> None:
        for tokens in batches:
            run(input_ids=tokens)

    first = timed(epoch, fast)
    equal = all(
        torch.allclose(fast(input_ids=x).last_hidden_state, model(input_ids=x).last_hidden_state, atol=1e-5)
        for x in batches
    )
    later, eager = ratio(lambda: epoch(fast), lambda: epoch(model))
    fast.close()
    return {
        "first epoch s": first,
        "later s": later,
        "eager s": eager,
        "÷ eager": later / eager,
        "equal": equal,
    }


def generation(devices: list[str], hidden: int, layers: int, cache: str | None) -> dict[str, float]:
    """24 new tokens for two prompts, greedily."""
    import transformers

    config = transformers.GPT2Config(vocab_size=1000, n_embd=hidden, n_layer=layers, n_head=8)
    model = transformers.GPT2LMHeadModel(config).eval()
    model.generation_config.pad_token_id, model.generation_config.eos_token_id = 0, None
    fast = autopar.compile(model, devices)
    prompts = torch.randint(5, 900, (2, 9))
    options: dict[str, Any] = {
        "max_new_tokens": 24,
        "do_sample": False,
        "attention_mask": torch.ones_like(prompts),
    }
    if cache:
        options["cache_implementation"] = cache
    first = timed(fast.generate, prompts, **options)
    equal = torch.equal(fast.generate(prompts, **options), model.generate(prompts, **options))
    later, eager = ratio(
        lambda: fast.generate(prompts, **options), lambda: model.generate(prompts, **options)
    )
    fast.close()
    return {"first s": first, "later s": later, "eager s": eager, "÷ eager": later / eager, "equal": equal}


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--devices", nargs="+", default=["cpu"])
    options.add_argument(
        "--hidden", type=int, default=512, help="width of the encoder, twice that of the decoder"
    )
    options.add_argument("--layers", type=int, default=4)
    chosen = options.parse_args()
    torch.manual_seed(0)
    with torch.no_grad():
        rows = {
            "30 lengths": lengths(chosen.devices, chosen.hidden, chosen.layers),
            "generate": generation(chosen.devices, chosen.hidden // 2, chosen.layers, None),
            "generate, static cache": generation(chosen.devices, chosen.hidden // 2, chosen.layers, "static"),
        }
    for name, found in rows.items():
        shown = ", ".join(
            f"{key} {bool(v) if key == 'equal' else format(v, '.3g')}" for key, v in found.items()
        )
        print(f"{name}: {shown}")


if __name__ == "__main__":
    main()
