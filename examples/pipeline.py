"""A decoder with tied embeddings trained by all processes of a job: planned stages, replicas and micro-batches.

    torchrun --nproc-per-node 2 examples/pipeline.py [--steps 20] [--stages 2 --replicas 1] [--schedule 1f1b]

Every process has the whole batch, and its loop is that of one process, but for the line that distributes the model.
What is printed beside the losses is the same loop in one process: the losses are equal but for rounding.
"""

from __future__ import annotations

import argparse
import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

import autopar

VOCABULARY, WIDTH, LENGTH, ROWS = 500, 64, 32, 16


class Decoder(nn.Module):
    """Tokens in, scores of the next ones out; the head is the embedding."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.0, batch_first=True) for _ in range(layers)
        )
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        x = self.tokens(tokens)
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(x)


def criterion(scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(scores.flatten(0, 1), target.flatten())


def batches(steps: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    made = torch.Generator().manual_seed(1)
    tokens = torch.randint(VOCABULARY, (steps, ROWS, LENGTH + 1), generator=made)
    return [(row[:, :-1], row[:, 1:]) for row in tokens]


def alone(model: nn.Module, steps: int) -> list[float]:
    """Losses of the plain loop in one process."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for x, y in batches(steps):
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    return losses


def together(model: nn.Module, steps: int, **options: object) -> tuple[autopar.Distributed, list[float]]:
    """The job, and its losses."""
    # The line that is new; criterion(model(x), y) and loss.backward() become job.step.
    job = autopar.distribute(model, example_inputs=batches(1)[0][:1], loss=criterion, **options)
    optimizer = torch.optim.AdamW(job.parameters(), lr=1e-3)
    losses = []
    for x, y in batches(steps):
        optimizer.zero_grad()
        losses.append(float(job.step(x, target=y)))
        optimizer.step()
    return job, losses


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--stages", type=int, help="stages of one replica (default: as planned)")
    parser.add_argument("--replicas", type=int, help="replicas of the model (default: as planned)")
    parser.add_argument(
        "--schedule", default="auto", help="gpipe, 1f1b, interleaved, zero-bubble (default: as planned)"
    )
    chosen = parser.parse_args()
    dist.init_process_group()
    torch.manual_seed(0)
    model = Decoder(chosen.layers)
    expected = alone(copy.deepcopy(model), chosen.steps)
    job, losses = together(
        model, chosen.steps, stages=chosen.stages, replicas=chosen.replicas, schedule=chosen.schedule
    )
    if dist.get_rank() == 0:
        print(job.explain())
        print(f"\nloss of step 1 and {chosen.steps}: {losses[0]:.4f}, {losses[-1]:.4f}")
        apart = max(abs(a - b) / abs(b) for a, b in zip(losses, expected))
        print(f"largest difference to one process with the whole batch: {apart:.1e} of the loss")
        if apart > 1e-4:
            raise SystemExit("the losses differ from those of one process")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
