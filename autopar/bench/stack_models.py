"""Models of the suite of stacks: each function takes a batch and gives a model with random weights and its inputs."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from .libraries import library
from .networks import Experts, Recommender, Recurrent, mlp, transformer

Made = tuple[nn.Module, tuple[Tensor, ...]]


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
    model = library("torchvision.models").googlenet(weights=None, init_weights=False, aux_logits=False)
    images = torch.randn(batch, 3, 224, 224)
    return _settled(model, images), (images,)


def inception_v3(batch: int) -> Made:
    """Inception-v3; images of 299 × 299."""
    model = library("torchvision.models").inception_v3(weights=None, init_weights=False, aux_logits=False)
    images = torch.randn(batch, 3, 299, 299)
    return _settled(model, images), (images,)


def resnet18(batch: int) -> Made:
    """ResNet-18, trained; images of 128 × 128."""
    return library("torchvision.models").resnet18(weights=None), (torch.randn(batch, 3, 128, 128),)


class _Last(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        answer: Tensor = self.model(input_ids=ids).last_hidden_state
        return answer


def bert_small(batch: int) -> Made:
    """BERT of four layers of 512; 128 tokens."""
    models = library("transformers")
    config = models.BertConfig(**transformer(512, 4))
    return _Last(models.BertModel(config)), (torch.randint(5, config.vocab_size, (batch, 128)),)


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
    models = library("transformers")
    image = models.ViTConfig(**transformer(384, 6), patch_size=32)
    text = models.BertConfig(**transformer(256, 6))
    model = _Towers(models.ViTModel(image), models.BertModel(text), 256)
    return model, (torch.randn(batch, 3, 224, 224), torch.randint(5, text.vocab_size, (batch, 32)))


def lstms(batch: int) -> Made:
    """Four LSTMs of two layers of 256 beside each other; 64 steps."""
    layers = [nn.LSTM(128, 256, num_layers=2, batch_first=True) for _ in range(4)]
    return Recurrent(layers, 64), (torch.randn(batch, 64, 128),)


class _Mean(nn.Module):
    def __init__(self, models: list[nn.Module]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([model(x) for model in self.models]).mean(0)


def mlps(batch: int) -> Made:
    """An ensemble of eight MLPs 784-512-512-10."""
    return _Mean([mlp(784, 512, 512, 10) for _ in range(8)]), (torch.randn(batch, 784),)


def mlp784(batch: int) -> Made:
    """An MLP 784-256-10."""
    return mlp(784, 256, 10), (torch.randn(batch, 784),)


def mlp2048(batch: int) -> Made:
    """An MLP 2048-2048-2048."""
    return mlp(2048, 2048, 2048), (torch.randn(batch, 2048),)


def dlrm(batch: int) -> Made:
    """A recommendation model of 26 bags of 20,000 rows of 64, four ids each."""
    model = Recommender(26, 20_000, 64, hidden=(512, 256))
    return model, (torch.randn(batch, 13), torch.randint(20_000, (26, batch, 4)))


def moe(batch: int) -> Made:
    """A mixture of experts: two layers of eight each, of which two count; 32 tokens of 256."""
    return nn.Sequential(Experts(8, 256, best=2), Experts(8, 256, best=2)), (torch.randn(batch, 32, 256),)
