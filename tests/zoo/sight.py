"""Vision, multimodal and audio models of transformers."""

from __future__ import annotations

from typing import Any

from .entry import Call, add, noise, tokens
from .language import hf

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
PATCHES = {**SMALL, "image_size": 32, "patch_size": 8}


def image(
    name: str, model: str, config: str, settings: dict[str, Any], side: int = 32, **options: Any
) -> None:
    """An entry called with two colour images of `side` × `side` pixels."""

    def make() -> Call:
        return hf(model, config, settings), (noise(2, 3, side, side),), {}

    add(name, "vision", make, **options)


def wave(name: str, model: str, config: str, settings: dict[str, Any], **options: Any) -> None:
    """An entry called with two sound waves of 1600 samples."""

    def make() -> Call:
        return hf(model, config, settings), (noise(2, 1600),), {}

    add(name, "audio", make, **options)


image("vit", "ViTForImageClassification", "ViTConfig", PATCHES)
image(
    "swin", "SwinModel", "SwinConfig",
    {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4],
     "window_size": 4},
)  # fmt: skip
image("convnext", "ConvNextForImageClassification", "ConvNextConfig",
      {"num_stages": 2, "hidden_sizes": [16, 32], "depths": [1, 1], "image_size": 32})  # fmt: skip
image("dinov2", "Dinov2Model", "Dinov2Config",
      {key: PATCHES[key] for key in PATCHES if key != "intermediate_size"})  # fmt: skip
# The first call of segformer and dpt registers hooks, which breaks the graph; the second is captured as a whole.
image(
    "segformer", "SegformerForSemanticSegmentation", "SegformerConfig",
    {"num_encoder_blocks": 2, "depths": [1, 1], "sr_ratios": [4, 2], "hidden_sizes": [16, 32],
     "patch_sizes": [7, 3], "strides": [4, 2], "num_attention_heads": [1, 2], "mlp_ratios": [2, 2],
     "decoder_hidden_size": 32}, graphs=3,
)  # fmt: skip
image("yolos (detr-like)", "YolosForObjectDetection", "YolosConfig",
      {**PATCHES, "image_size": [32, 32], "num_detection_tokens": 5})  # fmt: skip
image("dpt (depth)", "DPTForDepthEstimation", "DPTConfig",
      {**PATCHES, "num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3], 
       "neck_hidden_sizes": [8, 8, 16, 16], "fusion_hidden_size": 16, "is_hybrid": False}, graphs=3)  # fmt: skip
image("mobilevit", "MobileViTModel", "MobileViTConfig",
      {"hidden_sizes": [16, 24, 32], "neck_hidden_sizes": [8, 8, 12, 12, 16, 16, 32], 
       "num_attention_heads": 2, "image_size": 64}, side=64)  # fmt: skip


def _detr() -> Call:
    from .entry import library

    transformers = library("transformers")
    backbone = transformers.ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 16, 16, 16],
        depths=[1, 1, 1, 1],
        layer_type="basic",
        out_features=["stage4"],
    )
    config = transformers.DetrConfig(
        use_timm_backbone=False, backbone=None, use_pretrained_backbone=False, backbone_config=backbone,
        d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=64, decoder_ffn_dim=64, num_queries=5,
    )  # fmt: skip
    return transformers.DetrForObjectDetection(config), (noise(1, 3, 64, 64),), {}


add("detr", "vision", _detr)


def _clip() -> Call:
    text = {**SMALL, "vocab_size": 64, "max_position_embeddings": 16, "eos_token_id": 2, "bos_token_id": 1}
    model = hf(
        "CLIPModel", "CLIPConfig", {"text_config": text, "vision_config": PATCHES, "projection_dim": 16}
    )
    return model, (), {"input_ids": tokens(), "pixel_values": noise(2, 3, 32, 32)}


def _siglip() -> Call:
    text = {**SMALL, "vocab_size": 64, "max_position_embeddings": 16}
    model = hf("SiglipModel", "SiglipConfig", {"text_config": text, "vision_config": PATCHES})
    return model, (), {"input_ids": tokens(), "pixel_values": noise(2, 3, 32, 32)}


def _blip() -> Call:
    text = {**SMALL, "vocab_size": 64, "max_position_embeddings": 16, "encoder_hidden_size": 32}
    settings = {
        "text_config": text,
        "vision_config": PATCHES,
        "projection_dim": 16,
        "image_text_hidden_size": 16,
    }
    model = hf("BlipForConditionalGeneration", "BlipConfig", settings)
    return model, (), {"input_ids": tokens(), "pixel_values": noise(2, 3, 32, 32)}


add("clip", "multimodal", _clip)
add("siglip", "multimodal", _siglip)
add("blip", "multimodal", _blip)


def _whisper() -> Call:
    settings = {
        "vocab_size": 64, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
        "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64,
        "decoder_ffn_dim": 64, "num_mel_bins": 8,
        "max_source_positions": 16, "max_target_positions": 16, "pad_token_id": 0, "bos_token_id": 1,
        "eos_token_id": 2, "decoder_start_token_id": 3,
    }  # fmt: skip
    model = hf("WhisperForConditionalGeneration", "WhisperConfig", settings)
    return model, (), {"input_features": noise(2, 8, 32), "decoder_input_ids": tokens(length=6)}


WAVES = {
    **SMALL, "vocab_size": 16, "conv_dim": (8, 8, 8), "conv_stride": (5, 4, 4), "conv_kernel": (10, 8, 4),
    "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2, "num_feat_extract_layers": 3,
}  # fmt: skip
add("whisper", "audio", _whisper)
wave("wav2vec2", "Wav2Vec2ForCTC", "Wav2Vec2Config", WAVES)
wave("hubert", "HubertModel", "HubertConfig", WAVES, quick=True)
