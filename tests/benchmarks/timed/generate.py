"""`generate` of language models with random weights, 60 tokens with the default cache, which is one longer for each.

Rivals are eager and torch.compile, in the same process. All must give eager's tokens in every round.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch._dynamo

from autopar.bench import stacks
from autopar.engine.api import compile

from .timing import interleaved, report

TOKENS, PROMPT, ROUNDS = 60, (2, 9), 9
PATIENCE_S = 200.0
"""Limit on the seconds to wait for kernels."""
TRIES = 40
"""Limit on the generations until what serves is settled."""


def run(rounds: int = 0) -> dict[str, Any]:
    """Print and return the milliseconds of each contestant to generate, of `rounds` (default 9), and the seconds of its
    first answer."""
    # All models and contestants share a wrapper of transformers, and with it torch.compile's limit on its captures.
    torch._dynamo.config.recompile_limit = 64
    return {name: timed(name, make, rounds or ROUNDS) for name, make in models().items()}


def models() -> dict[str, Callable[[], Any]]:
    """Return constructors of the models, by name."""
    hf = stacks.library("transformers")
    sizes = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 2000}
    gpt2 = hf.GPT2Config(n_layer=4, n_embd=256, n_head=4, vocab_size=2000)
    llama = hf.LlamaConfig(**sizes, intermediate_size=688)
    t5 = hf.T5Config(num_layers=3, d_model=256, d_ff=512, num_heads=4, d_kv=64, vocab_size=2000)
    t5.decoder_start_token_id = 0
    return {
        "GPT-2, 4 layers of 256": lambda: hf.GPT2LMHeadModel(gpt2),
        "Llama, 4 layers of 256": lambda: hf.LlamaForCausalLM(llama),
        "T5, 3 + 3 layers of 256": lambda: hf.T5ForConditionalGeneration(t5),
    }


def timed(name: str, make: Callable[[], Any], rounds: int) -> dict[str, Any]:
    """Return the seconds of all contestants on one model. Raises RuntimeError for other tokens than eager's."""
    torch.manual_seed(0)
    model = make().eval()
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = None, 0
    prompt = torch.randint(5, 2000, PROMPT)
    plain, dynamic = copy.deepcopy(model), copy.deepcopy(model)
    dynamic.forward = torch.compile(dynamic.forward, dynamic=True)
    fast = compile(model, ["cpu"], kernels="onnxruntime")
    wanted = tokens(plain, prompt)

    def call(own: Any) -> None:
        if not torch.equal(tokens(own, prompt), wanted):
            raise RuntimeError(f"{name}: other tokens than eager's")

    first = {}
    for title, own in (("autopar", fast), ("torch.compile", dynamic)):
        began = time.perf_counter()
        call(own)
        first[title] = time.perf_counter() - began
        print(f"{name}: the first answer of {title} took {first[title]:.1f} s", flush=True)
    began = time.perf_counter()
    for _ in range(TRIES):
        call(fast)
        fast.wait(PATIENCE_S)
        if fast.settled:
            break
    built = time.perf_counter() - began
    print(f"{name}: kernels served after {built:.1f} s: {fast.serving}", flush=True)
    contestants = {"eager": plain, "autopar": fast, "torch.compile": dynamic}
    samples = interleaved({title: partial(call, own) for title, own in contestants.items()}, rounds)
    found = report(samples, base="eager")
    print(flush=True)
    fast.close()
    return {**found, "first_s": first, "kernels_s": built, "serving": fast.serving}


def tokens(model: Any, prompt: torch.Tensor) -> torch.Tensor:
    """Return the prompt and what a model adds to it."""
    made: torch.Tensor = model.generate(prompt, max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False)
    return made
