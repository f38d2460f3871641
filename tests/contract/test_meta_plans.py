"""Plans of models without memory: caches of language models, device maps, and what an error claims."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from zoo.entry import library

import autopar

MACHINE = autopar.Machine.declare("cpu-16", "a100-80")


class Cached(nn.Module):
    """Attention over a cache that begins as a tensor made from no numbers, as those of Hugging Face do."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.out = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x, cache=None):
        if cache is None:
            cache = torch.tensor([], dtype=x.dtype, device=x.device)
        keys = torch.cat([cache, self.key(x)], dim=-2)
        scale = torch.tensor([0.5], device=x.device)
        return self.out(torch.softmax(x @ keys.mT * scale, -1) @ keys), keys


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("past", [0, 5])
def test_tensors_made_from_numbers_are_planned_on_meta_as_on_the_cpu(grad, past):
    plans = []
    for device in ("cpu", "meta"):
        with torch.device(device), torch.set_grad_enabled(grad):
            model = Cached()
            args = (torch.ones(2, 3, 8), *((torch.ones(2, past, 8),) if past else ()))
            plans.append(autopar.plan(model, MACHINE, example_inputs=args, measure=False))
    real, meta = ([*facts(plan.costed.graph)] for plan in plans)
    assert meta == real and meta[0] > 0


def facts(graph):
    """FLOPs of all tasks, and the shapes of all outputs."""
    yield sum(task.flops for task in graph.tasks)
    yield from (graph.value[name].shape for name in graph.outputs)


def language_model(transformers, name):
    """A small decoder of Hugging Face."""
    size = {"vocab_size": 100, "eos_token_id": 1, "bos_token_id": 1}
    if name == "gpt2":
        made = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=2, n_embd=32, n_head=2, **size))
    elif name == "llama":
        config = transformers.LlamaConfig(
            num_hidden_layers=2, hidden_size=32, intermediate_size=64, num_attention_heads=4,
            num_key_value_heads=2, **size,
        )  # fmt: skip
        made = transformers.LlamaForCausalLM(config)
    else:
        config = transformers.T5Config(d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, **size)
        made = transformers.T5ForConditionalGeneration(config)
    return made.eval()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "llama", "t5"])
def test_language_models_are_planned_on_meta_with_their_caches(name):
    transformers = library("transformers")
    # Its modules are imported at first use, which the meta device would disturb.
    language_model(transformers, name)
    with torch.device("meta"), torch.no_grad():
        model, tokens = language_model(transformers, name), torch.zeros(2, 6, dtype=torch.long)
        first = {"input_ids": tokens} | ({"decoder_input_ids": tokens[:, :3]} if name == "t5" else {})
        begun = model(**first)
        word = torch.zeros(2, 1, dtype=torch.long)
        then = {"past_key_values": begun.past_key_values} | (
            {"encoder_outputs": (begun.encoder_last_hidden_state,), "decoder_input_ids": word}
            if name == "t5"
            else {"input_ids": word}
        )
        plans = [autopar.plan(model, MACHINE, example_kwargs=given, measure=False) for given in (first, then)]
    whole, step = (sum(task.flops for task in plan.costed.graph.tasks) for plan in plans)
    assert 0 < step < whole


def test_an_error_does_not_claim_what_was_not_tried():
    class Wrong(nn.Module):
        def forward(self, x):
            return x @ torch.ones(3, 3, device=x.device)

    for device in ("cpu", "meta"):
        with pytest.raises(
            autopar.CaptureError, match=r"fails on these arguments at .*test_meta_plans"
        ) as caught:
            autopar.plan(Wrong(), MACHINE, example_inputs=(torch.ones(2, 4, device=device),))
        assert "itself raises" not in str(caught.value) and "not run" in str(caught.value)


@pytest.mark.slow
def test_a_plan_that_splits_the_batch_is_carried_by_its_file_not_by_a_device_map(tmp_path):
    devices = ["cpu", "emulated:0", "emulated:1"]
    model, x = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).eval(), torch.ones(32, 64)
    with torch.no_grad():
        plan = autopar.plan(model, devices, example_inputs=(x,), split={"emulated:0": 0.5, "emulated:1": 0.5})
        with pytest.raises(autopar.PlanError, match=r"plan\.save.*compile\(model, devices, plan="):
            plan.device_map()
        plan.save(tmp_path / "plan.json")
        fast = autopar.compile(model, devices, plan=tmp_path / "plan.json")
        torch.testing.assert_close(fast(x), model(x))
        assert fast.plan.costed.graph.split == plan.costed.graph.split
        whole = autopar.plan(model, devices, example_inputs=(x,), split=None)
        assert whole.device_map()
