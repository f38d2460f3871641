"""Models of several kinds with random weights: autopar, eager and the installed compilers.

Each function from `googlenet` on takes a batch size and returns a model and its inputs. Each model runs in its own
process, `python -m autopar bench tests.benchmarks.timed.stacks:NAME`, without another's threads or compiled code.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch import library as operators
from torch.nn import functional

from autopar.bench.contest import Row, read
from autopar.errors import AutoparError

ROOT = Path(__file__).resolve().parents[3]
_LARGER = ("lstms", "moe", "dlrm", "bert_small", "clip", "googlenet", "inception_v3", "resnet18")
MODELS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("mlp784", "mlp2048", "mlps"), ("1", "8", "256")),
    **dict.fromkeys(_LARGER, ("1", "8")),
}
"""Batch sizes of each model."""
TRAINED = ("resnet18",)
"""Models that are timed in a training step."""


def run(only: Sequence[str], words: Sequence[str]) -> Iterator[tuple[str, list[Row], str]]:
    """Yield the name of each model (of `only`, if any), its rows, and the reason if there are none, as soon
    as it is done.

    words: options for each; each runs in the root of the clone. Raises AutoparError for an unknown name.
    """
    for name in only:
        if name not in MODELS:
            raise AutoparError(f"no model of the suite is called {name!r}; there are {', '.join(MODELS)}")
    for name in only or MODELS:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "rows.json"
            command = [sys.executable, "-m", "autopar", "bench", f"tests.benchmarks.timed.stacks:{name}"]
            command += [word for batch in MODELS[name] for word in ("--batch", batch)]
            command += [*words, "--json", str(path), *(["--train"] if name in TRAINED else [])]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            found = json.loads(path.read_text())["rows"] if path.exists() else []
        said = done.stderr.strip().splitlines() or [f"ended with status {done.returncode}"]
        yield name, [read(row) for row in found], said[-1] if done.returncode else ""


def library(name: str) -> Any:
    """Return the module of this name. Raises ModuleNotFoundError if it is not installed.

    A torchvision built for another torch lacks its compiled operators and cannot be imported, and neither can timm and
    the vision half of transformers. Models that do not call these operators only need their schemas.
    """
    try:
        importlib.import_module("torchvision")
    except ImportError:
        pass
    except RuntimeError:
        for stale in [module for module in sys.modules if module.split(".")[0] == "torchvision"]:
            del sys.modules[stale]
        for operator in ("nms", "qnms"):
            schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            operators.define(f"torchvision::{operator}", schema)
    return importlib.import_module(name)


def mlp(*widths: int) -> nn.Sequential:
    """Return linear layers of these widths with ReLUs in between."""
    layers = [layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def transformer(width: int, layers: int) -> dict[str, int]:
    """Return common settings of transformers configurations: heads of 64, a feed-forward part four times as wide."""
    return {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": width // 64,
            "intermediate_size": 4 * width}  # fmt: skip


class _Parts(nn.Module):
    """Named parts and arguments, combined by `answer`."""

    def __init__(self, answer: Callable[..., Tensor], **parts: nn.Module) -> None:
        super().__init__()
        self.answer, self.parts = answer, nn.ModuleDict(parts)

    def forward(self, *args: Tensor) -> Tensor:
        return self.answer(self.parts, *args)


def recurrent(stacks: Sequence[nn.LSTM | nn.GRU], answers: int) -> nn.Module:
    """Return parallel stacks of recurrent layers over one sequence, and a linear layer over their last states: scores
    (batch, answers) of sequences (batch, length, features)."""
    names = [str(number) for number in range(len(stacks))]

    def scores(parts: nn.ModuleDict, x: Tensor) -> Tensor:
        found: Tensor = parts["head"](torch.cat([parts[name](x)[0][:, -1] for name in names], 1))
        return found

    head = nn.Linear(sum(stack.hidden_size for stack in stacks), answers)
    return _Parts(scores, **dict(zip(names, stacks)), head=head)


def recommender(bags: int, rows: int, width: int, hidden: Sequence[int]) -> nn.Module:
    """Return embedding bags and an MLP of numbers, their products, and an MLP on top: scores (batch, 1) of numbers
    (batch, 13) and row ids (bags, batch, ids in a bag); `hidden`: widths within both MLPs.

    Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation Systems", 2019.
    """
    names = [str(number) for number in range(bags)]

    def scores(parts: nn.ModuleDict, numbers: Tensor, ids: Tensor) -> Tensor:
        dense, pairs = parts["below"](numbers), parts.get_buffer("pairs")
        given = torch.stack([dense, *(parts[name](own) for name, own in zip(names, ids))], 1)
        products = given @ given.transpose(1, 2)
        found: Tensor = parts["above"](torch.cat([dense, products[:, pairs[0], pairs[1]]], 1))
        return found

    own = {name: nn.EmbeddingBag(rows, width, mode="sum") for name in names}
    below = nn.Sequential(*mlp(13, *hidden, width), nn.ReLU())
    model = _Parts(scores, **own, below=below, above=mlp(width + bags * (bags + 1) // 2, *hidden, 1))
    model.parts.register_buffer("pairs", torch.triu_indices(bags + 1, bags + 1, 1), persistent=False)
    return model


def experts(count: int, width: int, best: int) -> nn.Module:
    """Return a residual layer of (…, width): a mixture of MLPs, of which a gate selects the `best` for each row."""
    names = [str(number) for number in range(count)]

    def mixed(parts: nn.ModuleDict, x: Tensor) -> Tensor:
        scores: Tensor = parts["gate"](x)
        if best < count:
            least = scores.topk(best, -1).values[..., -1:]
            scores = scores.masked_fill(scores < least, float("-inf"))
        made = torch.stack([parts[name](x) for name in names], -2)
        return x + (made * scores.softmax(-1)[..., None]).sum(-2)

    gate = nn.Linear(width, count)
    return _Parts(mixed, gate=gate, **{name: mlp(width, 4 * width, width) for name in names})


Made: TypeAlias = tuple[nn.Module, tuple[Tensor, ...]]


def _settled(name: str, batch: int, side: int) -> Made:
    """Return a model of torchvision with the statistics of its images: without them activations shrink from layer to
    layer, and the output is the last bias for any image."""
    make = getattr(library("torchvision.models"), name)
    model = make(weights=None, init_weights=False, aux_logits=False)
    images = torch.randn(batch, 3, side, side)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0
    with torch.no_grad():
        model.train()(images)
    return model, (images,)


def googlenet(batch: int) -> Made:
    """Return GoogLeNet, with four branches in each block; images of 224 × 224."""
    return _settled("googlenet", batch, 224)


def inception_v3(batch: int) -> Made:
    """Return Inception-v3; images of 299 × 299."""
    return _settled("inception_v3", batch, 299)


def resnet18(batch: int) -> Made:
    """Return ResNet-18, to be trained; images of 128 × 128."""
    return library("torchvision.models").resnet18(weights=None), (torch.randn(batch, 3, 128, 128),)


def bert_small(batch: int) -> Made:
    """Return BERT with four layers of 512; 128 tokens."""
    models = library("transformers")
    config = models.BertConfig(**transformer(512, 4))
    model = _Parts(
        lambda parts, ids: parts["model"](input_ids=ids).last_hidden_state, model=models.BertModel(config)
    )
    return model, (torch.randint(5, config.vocab_size, (batch, 128)),)


def _alike(parts: nn.ModuleDict, pixels: Tensor, ids: Tensor) -> Tensor:
    a = parts["image_head"](parts["image"](pixel_values=pixels).pooler_output)
    b = parts["text_head"](parts["text"](input_ids=ids).last_hidden_state[:, 0])
    return functional.normalize(a, dim=-1) @ functional.normalize(b, dim=-1).T


def clip(batch: int) -> Made:
    """Return two towers as in CLIP: a vision transformer with six layers of 384 over 49 patches, and a BERT with six
    layers of 256 over 32 tokens."""
    models = library("transformers")
    image = models.ViTConfig(**transformer(384, 6), patch_size=32)
    text = models.BertConfig(**transformer(256, 6))
    towers = {"image": models.ViTModel(image), "text": models.BertModel(text)}
    model = _Parts(_alike, **towers, image_head=nn.Linear(384, 256), text_head=nn.Linear(256, 256))
    return model, (torch.randn(batch, 3, 224, 224), torch.randint(5, text.vocab_size, (batch, 32)))


def lstms(batch: int) -> Made:
    """Return four parallel LSTMs with two layers of 256; 64 steps."""
    layers = [nn.LSTM(128, 256, num_layers=2, batch_first=True) for _ in range(4)]
    return recurrent(layers, 64), (torch.randn(batch, 64, 128),)


def mlps(batch: int) -> Made:
    """Return an ensemble of eight MLPs 784-512-512-10."""
    each = {str(number): mlp(784, 512, 512, 10) for number in range(8)}
    model = _Parts(lambda parts, x: torch.stack([part(x) for part in parts.values()]).mean(0), **each)
    return model, (torch.randn(batch, 784),)


def mlp784(batch: int) -> Made:
    """Return an MLP 784-256-10."""
    return mlp(784, 256, 10), (torch.randn(batch, 784),)


def mlp2048(batch: int) -> Made:
    """Return an MLP 2048-2048-2048."""
    return mlp(2048, 2048, 2048), (torch.randn(batch, 2048),)


def dlrm(batch: int) -> Made:
    """Return a recommendation model with 26 bags of 20,000 rows of 64, four ids each."""
    model = recommender(26, 20_000, 64, hidden=(512, 256))
    return model, (torch.randn(batch, 13), torch.randint(20_000, (26, batch, 4)))


def moe(batch: int) -> Made:
    """Return a mixture of experts: two layers of eight each, two of them active; 32 tokens of 256."""
    return nn.Sequential(experts(8, 256, best=2), experts(8, 256, best=2)), (torch.randn(batch, 32, 256),)
