"""Convolutional and other image models of timm and torchvision."""

from __future__ import annotations

from typing import Any

from .entry import Call, add, library, noise


def timm(
    name: str, model: str, side: int = 32, settings: dict[str, Any] | None = None, **options: Any
) -> None:
    """A timm model called with two colour images of `side` × `side` pixels."""

    def make() -> Call:
        built = library("timm").create_model(model, pretrained=False, num_classes=10, **(settings or {}))
        return built, (noise(2, 3, side, side),), {}

    add(f"timm {name}", "image (timm)", make, **options)


def torchvision(name: str, side: int, settings: dict[str, Any] | None = None, **options: Any) -> None:
    """A torchvision model called with one colour image of `side` × `side` pixels."""

    def make() -> Call:
        library("torchvision")
        models = library("torchvision.models")
        return getattr(models, name)(weights=None, **(settings or {})), (noise(2, 3, side, side),), {}

    add(f"torchvision {name}", "image (torchvision)", make, **options)


timm("resnet10t", "resnet10t", quick=True)
timm("resnet18 (training)", "resnet18", side=96, train=True)
timm("efficientnet_lite0", "efficientnet_lite0")
timm("mobilenetv3_small_050", "mobilenetv3_small_050")
timm("convnext_atto", "convnext_atto")
timm("vit_tiny", "vit_tiny_patch16_224", settings={"img_size": 32, "depth": 2, "embed_dim": 48})
timm("swin_tiny", "swin_tiny_patch4_window7_224", settings={
    "img_size": 32, "window_size": 4, "embed_dim": 24, "depths": (2, 2), "num_heads": (2, 4)})  # fmt: skip
timm("mixer_s32", "mixer_s32_224", settings={"img_size": 224}, side=224)
timm("regnetx_002", "regnetx_002")
timm("densenet121", "densenet121", settings={"growth_rate": 8, "block_config": (2, 2, 2, 2)})
timm("res2net50", "res2net50_26w_4s", settings={"layers": (1, 1, 1, 1)})
timm("inception_v3", "inception_v3", side=96)
timm("nasnetalarge", "nasnetalarge", side=64, settings={"stem_size": 6, "num_features": 384})
timm("ghostnet_050", "ghostnet_050")
torchvision("googlenet", 64, {"init_weights": False, "aux_logits": False})
torchvision("inception_v3", 80, {"init_weights": False, "aux_logits": False})
torchvision("shufflenet_v2_x0_5", 64)
