"""Thirty ordinary models with random weights, of torch, torchvision, timm and transformers, each with a call of it.

A library that is not installed leaves its models out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any, TypeAlias

import torch
from torch import nn

from autopar.bench.stacks import experts, library, mlp, recommender, recurrent, transformer

Call: TypeAlias = tuple[nn.Module, tuple[Any, ...]]
"""A model and the arguments it is called with."""


def models() -> dict[str, Callable[[], Call]]:
    """Each model's factory by name; it gives the model in eval mode and the arguments of its call."""
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


def _plain() -> Iterator[tuple[str, Callable[[], Call]]]:
    yield "mlp 784-256-10, batch 64", lambda: (mlp(784, 256, 10), (torch.randn(64, 784),))
    yield "mlp 2048, batch 1", lambda: (mlp(2048, 2048, 2048, 10), (torch.randn(1, 2048),))
    yield "mlp 1024, batch 256", lambda: (mlp(1024, 1024, 1024, 10), (torch.randn(256, 1024),))
    yield "4 lstms, batch 1", lambda: (_recurrent(nn.LSTM, 4, 128, 256), (torch.randn(1, 64, 128),))
    yield "4 lstms, batch 8", lambda: (_recurrent(nn.LSTM, 4, 128, 256), (torch.randn(8, 64, 128),))
    yield "2 grus, batch 4", lambda: (_recurrent(nn.GRU, 2, 64, 128), (torch.randn(4, 48, 64),))
    yield "26 bags, batch 64", lambda: (
        recommender(26, 50_000, 32, hidden=(256,)), (torch.randn(64, 13), torch.randint(50_000, (26, 64, 4)))
    )  # fmt: skip
    yield "8 experts, batch 8", lambda: (experts(8, 256, best=8), (torch.randn(8, 256),))
    yield "encoder of torch, batch 4", _encoder


def _recurrent(kind: type[nn.LSTM] | type[nn.GRU], count: int, features: int, hidden: int) -> nn.Module:
    return recurrent([kind(features, hidden, batch_first=True) for _ in range(count)], 10)


def _encoder() -> Call:
    layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False), (torch.randn(4, 64, 256),)


def _torchvision() -> Iterator[tuple[str, Callable[[], Call]]]:
    def made(name: str, side: int, **settings: Any) -> tuple[str, Callable[[], Call]]:
        def make() -> Call:
            built = getattr(library("torchvision.models"), name)(weights=None, **settings)
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
            built = library("timm").create_model(name, pretrained=False, num_classes=10, **settings)
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
            models = library("transformers")
            config = getattr(models, f"{model.rstrip('M').removesuffix('L').removesuffix('Model')}Config")
            built = getattr(models, model)(config(vocab_size=5000, **settings))
            return built, (torch.randint(5, 5000, (batch, length)),)

        return f"transformers {model}, batch {batch}", make

    plain = transformer(256, 4)
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
