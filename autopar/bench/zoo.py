"""Thirty ordinary models with random weights, of torch, torchvision, timm and transformers, each with a call of it.

A library that is not installed leaves its models out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

Call: TypeAlias = tuple[nn.Module, tuple[Any, ...]]
"""A model and the arguments it is called with."""


class Recurrent(nn.Module):
    """Layers of one recurrent kind beside each other over one sequence, batch first."""

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU], layers: int, features: int, hidden: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(kind(features, hidden, batch_first=True) for _ in range(layers))
        self.head = nn.Linear(layers * hidden, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of each row, of a sequence (batch, length, features)."""
        scores: Tensor = self.head(torch.cat([layer(x)[0][:, -1] for layer in self.layers], 1))
        return scores


class Recommender(nn.Module):
    """Embedding bags and a tower of numbers, their products, and a tower above: the form of DLRM."""

    def __init__(self, tables: int, rows: int, width: int) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        self.below = nn.Sequential(nn.Linear(13, 256), nn.ReLU(), nn.Linear(256, width), nn.ReLU())
        self.pairs: Tensor
        pairs = (tables + 1) * tables // 2
        self.above = nn.Sequential(nn.Linear(pairs + width, 256), nn.ReLU(), nn.Linear(256, 1))
        self.register_buffer("pairs", torch.triu_indices(tables + 1, tables + 1, 1), persistent=False)

    def forward(self, numbers: Tensor, indices: Tensor) -> Tensor:
        """A score of each row, of numbers (batch, 13) and indices (tables, batch, rows of a bag)."""
        dense = self.below(numbers)
        found = torch.stack([dense, *(bag(index) for bag, index in zip(self.bags, indices))], 1)
        products = found @ found.transpose(1, 2)
        scores: Tensor = self.above(torch.cat([dense, products[:, self.pairs[0], self.pairs[1]]], 1))
        return scores


class Experts(nn.Module):
    """A mixture of all experts, weighted by a gate."""

    def __init__(self, experts: int, width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.experts = nn.ModuleList(_mlp(width, 4 * width, width) for _ in range(experts))

    def forward(self, x: Tensor) -> Tensor:
        """What the experts make of x (batch, width), in the same shape."""
        weights = self.gate(x).softmax(-1)
        made = torch.stack([expert(x) for expert in self.experts], 1)
        mixed: Tensor = (made * weights[:, :, None]).sum(1)
        return mixed


def models() -> dict[str, Callable[[], Call]]:
    """What makes each model in eval mode with the arguments of its call, by name."""
    found = dict(_plain())
    if find_spec("torchvision"):
        found.update(_torchvision())
    if find_spec("timm"):
        found.update(_timm())
    if find_spec("transformers"):
        found.update(_transformers())
    return {name: _seeded(make) for name, make in found.items()}


def _seeded(make: Callable[[], Call]) -> Callable[[], Call]:
    def made() -> Call:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model, args = make()
        return model.eval(), args

    return made


def _mlp(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _plain() -> Iterator[tuple[str, Callable[[], Call]]]:
    yield "mlp 784-256-10, batch 64", lambda: (_mlp(784, 256, 10), (torch.randn(64, 784),))
    yield "mlp 2048, batch 1", lambda: (_mlp(2048, 2048, 2048, 10), (torch.randn(1, 2048),))
    yield "mlp 1024, batch 256", lambda: (_mlp(1024, 1024, 1024, 10), (torch.randn(256, 1024),))
    yield "4 lstms, batch 1", lambda: (Recurrent(nn.LSTM, 4, 128, 256), (torch.randn(1, 64, 128),))
    yield "4 lstms, batch 8", lambda: (Recurrent(nn.LSTM, 4, 128, 256), (torch.randn(8, 64, 128),))
    yield "2 grus, batch 4", lambda: (Recurrent(nn.GRU, 2, 64, 128), (torch.randn(4, 48, 64),))
    yield "26 bags, batch 64", _recommender
    yield "8 experts, batch 8", lambda: (Experts(8, 256), (torch.randn(8, 256),))
    yield "encoder of torch, batch 4", _encoder


def _recommender() -> Call:
    model = Recommender(26, 50_000, 32)
    return model, (torch.randn(64, 13), torch.randint(50_000, (26, 64, 4)))


def _encoder() -> Call:
    layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False), (torch.randn(4, 64, 256),)


def _operators() -> None:
    """Let a torchvision that was built for another torch be imported: no model here calls what it lacks."""
    try:
        import_module("torchvision")
    except RuntimeError:
        import sys

        for stale in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[stale]
        schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        for operator in ("nms", "qnms"):
            torch.library.define(f"torchvision::{operator}", schema)


def _torchvision() -> Iterator[tuple[str, Callable[[], Call]]]:
    def made(name: str, side: int, **settings: Any) -> tuple[str, Callable[[], Call]]:
        def make() -> Call:
            _operators()
            built = getattr(import_module("torchvision.models"), name)(weights=None, **settings)
            return built, (torch.randn(1, 3, side, side),)

        return f"torchvision {name}", make

    whole = {"init_weights": False, "aux_logits": False}
    yield made("resnet18", 224)
    yield made("mobilenet_v3_small", 224)
    yield made("squeezenet1_1", 224)
    yield made("shufflenet_v2_x0_5", 224)
    yield made("googlenet", 128, **whole)
    yield made("densenet121", 96)


def _timm() -> Iterator[tuple[str, Callable[[], Call]]]:
    def made(name: str, batch: int, side: int, **settings: Any) -> tuple[str, Callable[[], Call]]:
        def make() -> Call:
            _operators()
            built = import_module("timm").create_model(name, pretrained=False, num_classes=10, **settings)
            return built, (torch.randn(batch, 3, side, side),)

        return f"timm {name}", make

    yield made("convnext_atto", 1, 128)
    yield made("vit_tiny_patch16_224", 1, 224, depth=6)
    yield made("efficientnet_lite0", 1, 128)
    yield made("mixer_s32_224", 1, 224)
    yield made("regnetx_002", 2, 128)


def _transformers() -> Iterator[tuple[str, Callable[[], Call]]]:
    def text(model: str, batch: int, length: int, **settings: Any) -> tuple[str, Callable[[], Call]]:
        def make() -> Call:
            _operators()
            library = import_module("transformers")
            config = getattr(library, f"{model.rstrip('M').removesuffix('L').removesuffix('Model')}Config")
            built = getattr(library, model)(config(vocab_size=5000, **settings))
            return built, (torch.randint(5, 5000, (batch, length)),)

        return f"transformers {model}, batch {batch}", make

    plain = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
    grouped = {**plain, "num_key_value_heads": 2, "use_cache": False}
    yield text("BertModel", 1, 64, **plain)
    yield text("BertModel", 4, 128, **plain)
    yield text("DistilBertModel", 2, 64, dim=256, n_layers=4, n_heads=4, hidden_dim=1024)
    yield text("AlbertModel", 2, 64, embedding_size=128, **plain)
    yield text("ElectraModel", 2, 64, embedding_size=128, **plain)
    yield text("GPT2Model", 2, 64, n_embd=256, n_layer=4, n_head=4, use_cache=False)
    yield text("OPTModel", 1, 64, hidden_size=256, num_hidden_layers=4, num_attention_heads=4, ffn_dim=1024,
               word_embed_proj_dim=256, use_cache=False)  # fmt: skip
    yield text("LlamaModel", 2, 64, **grouped)
    yield text("MistralModel", 1, 128, **grouped)
    yield text("Qwen2Model", 2, 32, **grouped)
