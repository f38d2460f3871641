"""Models of the suite of stacks: each function takes a batch and gives a model with random weights and its inputs."""

from __future__ import annotations

import importlib
import sys
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Made = tuple[nn.Module, tuple[Tensor, ...]]


def _library(name: str) -> Any:
    """torchvision, or a library that imports it where it is there; also a build that lacks its operators, which none
    of these models calls."""
    try:
        importlib.import_module("torchvision")
    except ImportError:
        pass
    except RuntimeError:
        for stale in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[stale]
        for operator in ("nms", "qnms"):
            torch.library.define(
                f"torchvision::{operator}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            )
    return importlib.import_module(name)


def _settled(model: nn.Module, images: Tensor) -> nn.Module:
    """The model with the statistics of these images: without them each layer's numbers are smaller than those before,
    and the answer is the last bias whatever the images are."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0
    with torch.no_grad():
        model.train()(images)
    return model


def googlenet(batch: int) -> Made:
    """GoogLeNet, of four branches a block; images of 224 × 224."""
    model = _library("torchvision.models").googlenet(weights=None, init_weights=False, aux_logits=False)
    images = torch.randn(batch, 3, 224, 224)
    return _settled(model, images), (images,)


def inception_v3(batch: int) -> Made:
    """Inception-v3; images of 299 × 299."""
    model = _library("torchvision.models").inception_v3(weights=None, init_weights=False, aux_logits=False)
    images = torch.randn(batch, 3, 299, 299)
    return _settled(model, images), (images,)


def resnet18(batch: int) -> Made:
    """ResNet-18, trained; images of 128 × 128."""
    return _library("torchvision.models").resnet18(weights=None), (torch.randn(batch, 3, 128, 128),)


def _sizes(width: int) -> dict[str, Any]:
    return {"hidden_size": width, "num_attention_heads": width // 64, "intermediate_size": 4 * width}


class _Last(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        answer: Tensor = self.model(input_ids=ids).last_hidden_state
        return answer


def bert_small(batch: int) -> Made:
    """BERT of four layers of 512; 128 tokens."""
    library = _library("transformers")
    config = library.BertConfig(num_hidden_layers=4, **_sizes(512))
    return _Last(library.BertModel(config)), (torch.randint(5, config.vocab_size, (batch, 128)),)


class _Towers(nn.Module):
    def __init__(self, image: nn.Module, text: nn.Module, width: int) -> None:
        super().__init__()
        self.image, self.text = image, text
        self.image_head, self.text_head = nn.Linear(384, width), nn.Linear(256, width)

    def forward(self, pixels: Tensor, ids: Tensor) -> Tensor:
        a = self.image_head(self.image(pixel_values=pixels).pooler_output)
        b = self.text_head(self.text(input_ids=ids).last_hidden_state[:, 0])
        return functional.normalize(a, dim=-1) @ functional.normalize(b, dim=-1).T


def clip(batch: int) -> Made:
    """Two towers as CLIP has: a vision transformer of six layers of 384 over 49 patches, and a BERT of six
    layers of 256 over 32 tokens."""
    library = _library("transformers")
    image = library.ViTConfig(num_hidden_layers=6, **_sizes(384), patch_size=32)
    text = library.BertConfig(num_hidden_layers=6, **_sizes(256))
    model = _Towers(library.ViTModel(image), library.BertModel(text), 256)
    return model, (torch.randn(batch, 3, 224, 224), torch.randint(5, text.vocab_size, (batch, 32)))


class _Lstms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstms = nn.ModuleList(nn.LSTM(128, 256, num_layers=2, batch_first=True) for _ in range(4))
        self.head = nn.Linear(4 * 256, 64)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.head(torch.cat([lstm(x)[0][:, -1] for lstm in self.lstms], 1))
        return answer


def lstms(batch: int) -> Made:
    """Four LSTMs of two layers of 256 beside each other; 64 steps."""
    return _Lstms(), (torch.randn(batch, 64, 128),)


class _Mean(nn.Module):
    def __init__(self, models: list[nn.Module]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([model(x) for model in self.models]).mean(0)


def mlps(batch: int) -> Made:
    """An ensemble of eight MLPs 784-512-512-10."""
    return _Mean([_mlp(784, 512, 512, 10) for _ in range(8)]), (torch.randn(batch, 784),)


def _mlp(*widths: int) -> nn.Module:
    layers = [layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def mlp784(batch: int) -> Made:
    """An MLP 784-256-10."""
    return _mlp(784, 256, 10), (torch.randn(batch, 784),)


def mlp2048(batch: int) -> Made:
    """An MLP 2048-2048-2048."""
    return _mlp(2048, 2048, 2048), (torch.randn(batch, 2048),)


class _Dlrm(nn.Module):
    """Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation Systems", 2019."""

    def __init__(self, bags: int = 26, rows: int = 20_000, width: int = 64) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(bags))
        self.bottom = nn.Sequential(_mlp(13, 512, 256, width), nn.ReLU())
        self.top = _mlp(width + bags * (bags + 1) // 2, 512, 256, 1)
        self.rows, self.columns = torch.tril_indices(bags + 1, bags + 1, -1)

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        x = self.bottom(dense)
        found = torch.stack([x, *(bag(ids[:, i]) for i, bag in enumerate(self.bags))], 1)
        crossed = found @ found.transpose(1, 2)
        answer: Tensor = self.top(torch.cat([x, crossed[:, self.rows, self.columns]], 1))
        return answer


def dlrm(batch: int) -> Made:
    """A recommendation model of 26 bags of 20,000 rows of 64, four ids each."""
    return _Dlrm(), (torch.randn(batch, 13), torch.randint(0, 20_000, (batch, 26, 4)))


class _Experts(nn.Module):
    def __init__(self, width: int = 256, experts: int = 8, best: int = 2) -> None:
        super().__init__()
        self.gate, self.best = nn.Linear(width, experts), best
        self.experts = nn.ModuleList(_mlp(width, 4 * width, width) for _ in range(experts))

    def forward(self, x: Tensor) -> Tensor:
        scores = self.gate(x)
        least = scores.topk(self.best, -1).values[..., -1:]
        shares = scores.masked_fill(scores < least, float("-inf")).softmax(-1)
        answers = [shares[..., i, None] * expert(x) for i, expert in enumerate(self.experts)]
        return torch.stack([x, *answers]).sum(0)


def moe(batch: int) -> Made:
    """A mixture of experts: two layers of eight each, of which two count; 32 tokens of 256."""
    return nn.Sequential(_Experts(), _Experts()), (torch.randn(batch, 32, 256),)
