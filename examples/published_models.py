"""Published figures of pipelines beside what autopar predicts for the same model, hosts and layout.

    python examples/published_models.py            all rows of Megatron-LM, then GPipe
    python -m autopar whatif examples.published_models:gpt_39b --hosts "64 x (cpu + 8 a100) over 8 ib-200" --batch 1536

Sources: Narayanan et al., "Efficient large-scale language model training on GPU clusters using Megatron-LM", SC 2021,
table 1; Huang et al., "GPipe: Efficient training of giant neural networks using pipeline parallelism", NeurIPS 2019,
table 2.
"""

import sys
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from autopar.distributed.forecast import captured, forecast
from autopar.ir.hosts import Hosts

VOCABULARY, SEQUENCE = 51_200, 2_048
MEGATRON = (
    # parameters in 10⁹, heads, hidden size, layers, tensor, pipeline, GPUs, batch, teraFLOP/s of each GPU
    (1.7, 24, 2304, 24, 1, 1, 32, 512, 137),
    (3.6, 32, 3072, 30, 2, 1, 64, 512, 138),
    (7.5, 32, 4096, 36, 4, 1, 128, 512, 142),
    (18.4, 48, 6144, 40, 8, 1, 256, 1024, 135),
    (39.1, 64, 8192, 48, 8, 2, 512, 1536, 138),
    (76.1, 80, 10240, 60, 8, 4, 1024, 1792, 140),
    (145.6, 96, 12288, 80, 8, 8, 1536, 2304, 148),
    (310.1, 128, 16384, 96, 8, 16, 1920, 2160, 155),
    (529.6, 128, 20480, 105, 8, 35, 2520, 2520, 163),
    (1008.0, 160, 25600, 128, 8, 64, 3072, 3072, 163),
)
GPIPE = {1: (1, 1.07, 1.3), 4: (1.7, 3.2, 4.8), 32: (1.8, 3.4, 6.3)}
"""Transformer-48 on TPUs, by micro-batches: normalized throughput on 2, 4 and 8 accelerators."""


class Block(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x):
        rows, length, hidden = x.shape
        parts = self.qkv(self.norm1(x)).view(rows, length, 3, self.heads, hidden // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(rows, length, hidden))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, layers, hidden, heads, vocabulary=VOCABULARY, length=SEQUENCE):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, hidden), nn.Embedding(length, hidden)
        self.layers = nn.ModuleList(Block(hidden, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(hidden), nn.Linear(hidden, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def gpt(layers, hidden, heads, batch=2, length=SEQUENCE, **more):
    """A GPT in bfloat16, and a batch of tokens."""
    model = GPT(layers, hidden, heads, length=length, **more).to(torch.bfloat16)
    return model, (torch.zeros(batch, length, dtype=torch.long),)


gpt_1b, gpt_3b, gpt_7b, gpt_18b, gpt_39b, gpt_76b, gpt_145b, gpt_310b, gpt_530b, gpt_1t = (
    partial(gpt, layers, hidden, heads) for _, heads, hidden, layers, *_ in MEGATRON
)


def megatron_flops(batch, layers, hidden):
    """FLOPs of a step as the paper counts them, with each layer computed again in the backward (its equation 3)."""
    rest = 1 + SEQUENCE / (6 * hidden) + VOCABULARY / (16 * layers * hidden)
    return 96 * batch * SEQUENCE * layers * hidden**2 * rest


def megatron(most=10):
    print(
        "Megatron-LM, A100 80 GB, 8 to a host, 8 ports of HDR InfiniBand: TFLOP/s of each GPU, as the paper counts"
    )
    print(
        "| parameters | GPUs | tensor × pipeline × data | published | predicted | ratio "
        "| own layout | its step | planned in |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for billions, heads, hidden, layers, tensor, pipeline, gpus, batch, published in MEGATRON[:most]:
        with torch.device("meta"):
            made = gpt(layers, hidden, heads)
        model = captured(*made)
        hosts = Hosts.declare(f"{gpus // 8} x (cpu + 8 a100) over 8 ib-200")
        data = gpus // tensor // pipeline
        told = [
            forecast(model, hosts, batch, tensor=tensor, recompute=True, replicas=data),
            forecast(model, hosts, batch),
        ]
        same, best = told
        rate = megatron_flops(batch, layers, hidden) / same.step_s / gpus / 1e12
        chunks = len(best.plan.stages) // best.plan.positions
        print(
            f"| {billions} B | {gpus:,} | {tensor} × {pipeline} × {data} | {published} | {rate:.0f} | "
            f"{rate / published:.2f} | {best.tensor} × {best.plan.positions} × {best.plan.replicas}, "
            f"{best.plan.schedule}{f' × {chunks}' if chunks > 1 else ''}{', recompute' if best.recompute else ''} | "
            f"{best.step_s / same.step_s:.2f} | {best.planning_s:.0f} s |",
            flush=True,
        )


def gpipe():
    print(
        "\nGPipe, Transformer-48, throughput normalized by 2 accelerators and 1 micro-batch: published / predicted"
    )
    print("| micro-batches | 2 accelerators | 4 | 8 |\n|---|---|---|---|")
    with torch.device("meta"):
        made = gpt(48, 2048, 32, vocabulary=32_000, length=1024)
    model = captured(*made)
    paces = {
        (m, k): forecast(
            model, Hosts.declare(f"1 x (cpu + {k} a100) over ib-200"), 32, tensor=1, recompute=True,
            schedules=["gpipe"], rows=32 // m, replicas=1, stages=k,
        ).rows_per_s
        for m in GPIPE for k in (2, 4, 8)
    }  # fmt: skip
    for m, published in GPIPE.items():
        cells = [f"{was} / {paces[m, k] / paces[1, 2]:.2f}" for was, k in zip(published, (2, 4, 8))]
        print(f"| {m} | {' | '.join(cells)} |")


if __name__ == "__main__":
    megatron(*map(int, sys.argv[1:]))
    gpipe()
