"""Text models of transformers: encoders, decoders, encoder-decoders, mixtures of experts, state spaces."""

from __future__ import annotations

from typing import Any

import torch

from .entry import Call, add, library, tokens

SMALL = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
FEED = {**SMALL, "intermediate_size": 64}
GROUPED = {**FEED, "num_key_value_heads": 2, "max_position_embeddings": 64}


def hf(model: str, config: str, settings: dict[str, Any]) -> torch.nn.Module:
    """A transformers model of class `model` with random weights."""
    transformers = library("transformers")
    return getattr(transformers, model)(getattr(transformers, config)(**settings))


def text(name: str, family: str, model: str, config: str, settings: dict[str, Any], **options: Any) -> None:
    """An entry called with token ids."""

    def make() -> Call:
        return hf(model, config, settings), (tokens(),), {}

    add(name, family, make, **options)


def masked(name: str, family: str, model: str, config: str, settings: dict[str, Any], **options: Any) -> None:
    """An entry called by keyword with token ids and a mask that hides the tail of one row."""

    def make() -> Call:
        mask = torch.ones(2, 8, dtype=torch.long)
        mask[1, 5:] = 0
        return hf(model, config, settings), (), {"input_ids": tokens(), "attention_mask": mask}

    add(name, family, make, **options)


def pair(name: str, model: str, config: str, settings: dict[str, Any], **options: Any) -> None:
    """An encoder-decoder called with source and target token ids."""

    def make() -> Call:
        call = {"input_ids": tokens(), "decoder_input_ids": tokens(length=6, seed=2)}
        return hf(model, config, settings), (), call

    add(name, "encoder-decoder", make, **options)


masked("bert", "encoder", "BertModel", "BertConfig", FEED)
masked("roberta", "encoder", "RobertaForMaskedLM", "RobertaConfig", {**FEED, "max_position_embeddings": 66})
text(
    "distilbert", "encoder", "DistilBertModel", "DistilBertConfig",
    {"vocab_size": 64, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64},
)  # fmt: skip
text("albert (shared layers)", "encoder", "AlbertForMaskedLM", "AlbertConfig", {**FEED, "embedding_size": 16})
text("electra", "encoder", "ElectraForPreTraining", "ElectraConfig", {**FEED, "embedding_size": 16})
masked(
    "deberta-v2", "encoder", "DebertaV2Model", "DebertaV2Config",
    {**FEED, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8,
     "max_position_embeddings": 64},
)  # fmt: skip
text("mpnet", "encoder", "MPNetModel", "MPNetConfig", FEED)
SPECIAL = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2, "cls_token_id": 2, "sep_token_id": 1}
text("modernbert", "encoder", "ModernBertModel", "ModernBertConfig", {**FEED, **SPECIAL})

text(
    "gpt2", "decoder", "GPT2LMHeadModel", "GPT2Config",
    {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64,
     "bos_token_id": 1, "eos_token_id": 2}, quick=True,
)  # fmt: skip
text("llama", "decoder", "LlamaForCausalLM", "LlamaConfig", GROUPED)


def _decoding() -> Call:
    model = hf("LlamaForCausalLM", "LlamaConfig", GROUPED).eval()
    with torch.no_grad():
        cache = model(tokens()).past_key_values
    return model, (), {"input_ids": tokens(length=1, seed=2), "past_key_values": cache}


add("llama (a token at a time)", "decoder", _decoding, graphs=2)
text("mistral", "decoder", "MistralForCausalLM", "MistralConfig", {**GROUPED, "sliding_window": 4})
text("qwen2", "decoder", "Qwen2ForCausalLM", "Qwen2Config", GROUPED)
text("qwen3", "decoder", "Qwen3ForCausalLM", "Qwen3Config", {**GROUPED, "head_dim": 8})
text("gemma", "decoder", "GemmaForCausalLM", "GemmaConfig", {**GROUPED, "head_dim": 8})
text(
    "gemma2", "decoder", "Gemma2ForCausalLM", "Gemma2Config", {**GROUPED, "head_dim": 8, "sliding_window": 4}
)
text("phi", "decoder", "PhiForCausalLM", "PhiConfig", GROUPED)
masked(
    "opt", "decoder", "OPTForCausalLM", "OPTConfig",
    {**SMALL, "ffn_dim": 64, "word_embed_proj_dim": 32, "max_position_embeddings": 64},
)  # fmt: skip
text("bloom", "decoder", "BloomForCausalLM", "BloomConfig",
     {"vocab_size": 64, "hidden_size": 32, "n_layer": 2, "n_head": 4})  # fmt: skip
text("falcon", "decoder", "FalconForCausalLM", "FalconConfig", SMALL)
text("gpt_neox", "decoder", "GPTNeoXForCausalLM", "GPTNeoXConfig", {**FEED, "max_position_embeddings": 64})

T5 = {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
BART = {
    "vocab_size": 64, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 64,
}  # fmt: skip
pair("t5 (tied weights)", "T5ForConditionalGeneration", "T5Config", T5)
pair("bart", "BartForConditionalGeneration", "BartConfig", BART)
pair("marian", "MarianMTModel", "MarianConfig", {**BART, "pad_token_id": 0, "decoder_start_token_id": 1})
pair("pegasus", "PegasusForConditionalGeneration", "PegasusConfig", BART)

EXPERTS = {**GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2}
text("mixtral", "mixture of experts", "MixtralForCausalLM", "MixtralConfig", EXPERTS, quick=True)
text(
    "qwen2-moe", "mixture of experts", "Qwen2MoeForCausalLM", "Qwen2MoeConfig",
    {**GROUPED, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
     "shared_expert_intermediate_size": 32},
)  # fmt: skip


def _switch() -> Call:
    settings = {
        **T5,
        "num_sparse_encoder_layers": 1,
        "num_sparse_decoder_layers": 1,
        "num_experts": 4,
    }
    model = hf("SwitchTransformersForConditionalGeneration", "SwitchTransformersConfig", settings)
    # Its encoder needs a mask, which the library makes itself only when it is not being traced.
    mask, target = torch.ones(2, 8, dtype=torch.long), torch.ones(2, 6, dtype=torch.long)
    mask[1, 5:] = 0
    return model, (), {
        "input_ids": tokens(), "attention_mask": mask,
        "decoder_input_ids": tokens(length=6, seed=2), "decoder_attention_mask": target,
    }  # fmt: skip


# Which experts run, and on how many tokens, depends on values.
add("switch transformers", "mixture of experts", _switch, graphs=64)

STATE = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}
BRANCH = "transformers takes another branch where torch.compile traces it"
text("mamba", "state space", "MambaForCausalLM", "MambaConfig", STATE, loose=BRANCH)
text("mamba2", "state space", "Mamba2ForCausalLM", "Mamba2Config",
     {**STATE, "num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 4})  # fmt: skip
text("falcon_mamba", "state space", "FalconMambaForCausalLM", "FalconMambaConfig", STATE, loose=BRANCH)
text("rwkv", "state space", "RwkvForCausalLM", "RwkvConfig",
     {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "attention_hidden_size": 32,
      "context_length": 64}, graphs=2)  # fmt: skip
