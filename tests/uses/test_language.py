"""Language models as people call them: with their caches, `generate`, and Hugging Face's trainer."""

from __future__ import annotations

import copy
import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from pairs import alike, compiled
from torch import nn
from zoo.entry import library, noise, tokens

import autopar

pytestmark = pytest.mark.slow

# All four models take minutes; CI has one of each kind, and one kind of cache with each.


@pytest.fixture(scope="module")
def transformers() -> ModuleType:
    return library("transformers")


def decoder(transformers: Any, name: str, layers: int = 1) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """A tiny model made from its configuration, and what `generate` is given."""
    torch.manual_seed(0)
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    if name == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=64, n_embd=32, n_layer=layers, n_head=4, n_positions=64, **special
        )
        return transformers.GPT2LMHeadModel(config).eval(), {"input_ids": tokens()}
    if name == "llama":
        config = transformers.LlamaConfig(
            vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=layers, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=64, **special,
        )  # fmt: skip
        return transformers.LlamaForCausalLM(config).eval(), {"input_ids": tokens()}
    if name == "t5":
        config = transformers.T5Config(
            vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=layers, num_heads=4,
            pad_token_id=0, eos_token_id=2, decoder_start_token_id=0,
        )  # fmt: skip
        return transformers.T5ForConditionalGeneration(config).eval(), {"input_ids": tokens()}
    config = transformers.WhisperConfig(
        vocab_size=64, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, num_mel_bins=8, max_source_positions=16,
        max_target_positions=32, decoder_start_token_id=3, **special,
    )  # fmt: skip
    model = transformers.WhisperForConditionalGeneration(config).eval()
    model.generation_config.update(suppress_tokens=None, begin_suppress_tokens=None)
    return model, {"input_features": noise(2, 8, 32)}


def keys_and_values(cache: Any) -> list[torch.Tensor]:
    """The tensors in a cache of any class."""
    if hasattr(cache, "self_attention_cache"):
        return keys_and_values(cache.self_attention_cache) + keys_and_values(cache.cross_attention_cache)
    return [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]


@pytest.mark.parametrize(
    "name",
    [
        "gpt2",
        # The caches of an encoder and a decoder are passed on in each step of `generate`.
        *(pytest.param(name, marks=pytest.mark.zoo) for name in ("llama", "t5", "whisper")),
    ],
)
def test_a_call_returns_the_cache_and_takes_it_again(transformers, name):
    # The cache of each layer is its own; an encoder-decoder has two a layer as it is.
    model, given = decoder(transformers, name, layers=1 if name == "t5" else 2)
    fast = compiled(model)
    if name in ("t5", "whisper"):
        given = {**given, "decoder_input_ids": tokens(length=4, seed=2)}
    with torch.no_grad():
        found, expected = fast(**given), model(**given)
        assert type(found) is type(expected)
        assert alike(found.logits, expected.logits)
        assert type(found.past_key_values) is type(expected.past_key_values)
        assert alike(keys_and_values(found.past_key_values), keys_and_values(expected.past_key_values))
        one = "input_ids" if name in ("gpt2", "llama") else "decoder_input_ids"
        for step in range(2):
            given = {**given, one: tokens(length=1, seed=3 + step)}
            found = fast(**given, past_key_values=found.past_key_values)
            expected = model(**given, past_key_values=expected.past_key_values)
            assert alike(found.logits, expected.logits)
            assert found.past_key_values.get_seq_length() == expected.past_key_values.get_seq_length()
    assert fast.plan.transfers
    fast.close()


@pytest.mark.parametrize(
    ("name", "cache"),
    [
        ("gpt2", "dynamic"),
        pytest.param("gpt2", "static", marks=pytest.mark.zoo),
        pytest.param("t5", "dynamic", marks=pytest.mark.zoo),
        ("t5", "static"),
        *(
            pytest.param(name, cache, marks=pytest.mark.zoo)
            for name in ("llama", "whisper")
            for cache in ("dynamic", "static")
        ),
    ],
)
def test_generate_gives_the_tokens_of_eager_through_the_plan(transformers, name, cache):
    model, given = decoder(transformers, name)
    fast = compiled(model)
    # The second one goes on with the programs of the first.
    for _ in range(2):
        options = {"max_new_tokens": 4, "do_sample": False, "cache_implementation": cache}
        expected = model.generate(**given, **options)
        found = fast.generate(**given, **options)
        assert torch.equal(found, expected)
    assert fast.plan.transfers
    fast.close()


def test_the_model_is_what_its_library_takes_it_for(transformers, tmp_path):
    model, given = decoder(transformers, "gpt2")
    fast = compiled(model)
    assert isinstance(fast, transformers.PreTrainedModel) and isinstance(fast, autopar.Compiled)
    assert inspect.signature(fast.forward) == inspect.signature(model.forward)
    assert list(fast.state_dict()) == list(model.state_dict())
    assert fast.config is model.config and fast.device == model.device and fast.dtype is model.dtype
    fast.save_pretrained(tmp_path)
    again = transformers.GPT2LMHeadModel.from_pretrained(tmp_path)
    with torch.no_grad():
        assert alike(again.eval()(**given).logits, model(**given).logits)


class Rows(torch.utils.data.Dataset):
    """Sentences with a class each."""

    def __init__(self, count: int) -> None:
        self.ids = tokens(count, 8)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.ids[index], "labels": torch.tensor(index % 2)}


@pytest.mark.release
def test_trainer_trains_a_compiled_model_as_a_plain_one(transformers, tmp_path):
    count = 14  # The last batch of an epoch is smaller.
    pytest.importorskip("accelerate")
    config = transformers.BertConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64
    )
    torch.manual_seed(0)
    plain = transformers.BertForSequenceClassification(config)
    fast = compiled(copy.deepcopy(plain))
    losses = []
    for index, model in enumerate((plain, fast)):
        where = tmp_path / str(index)
        args = transformers.TrainingArguments(
            str(where), num_train_epochs=2, per_device_train_batch_size=4, report_to=[], use_cpu=True,
            save_strategy="epoch", logging_steps=1, learning_rate=1e-3, disable_tqdm=True, seed=3,
        )  # fmt: skip
        trainer = transformers.Trainer(
            model=model, args=args, train_dataset=Rows(count), eval_dataset=Rows(6)
        )
        trainer.train()
        logs = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        losses.append([*logs, trainer.evaluate()["eval_loss"]])
        assert len(logs) == 2 * -(-count // 4)
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    # Adam turns rounding into steps where a gradient is close to zero.
    for key, value in plain.state_dict().items():
        assert torch.allclose(fast.state_dict()[key], value, atol=1e-4), key
    assert fast.plan.costed.graph.name == "BertForSequenceClassification"
    saved = sorted(Path(tmp_path / "1").glob("checkpoint-*"))[-1]
    again = transformers.BertForSequenceClassification.from_pretrained(saved)
    assert alike(again.state_dict(), fast.state_dict())
    fast.close()
